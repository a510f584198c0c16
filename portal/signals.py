"""What the accounts tell other apps, after commit. Receivers get ids' owners, never a request."""

from django.dispatch import Signal

# The user's keys differ from before: ``user``. Rental wakes the nodes of the leases these keys open.
ssh_keys_changed = Signal()
