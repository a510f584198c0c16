"""What the accounts tell other apps, after commit. Receivers get ids' owners, never a request."""

from django.dispatch import Signal

# The keys that open leases differ from before: ``user``. Rental wakes the nodes of the leases these keys open. With
# ``tenant_ids`` only these tenants are meant, also those that the user has just left.
ssh_keys_changed = Signal()

# What a member may see differs from before (joined, left, another role): ``user``, ``tenant_id``. Streams look again.
membership_changed = Signal()

# An operator has suspended a tenant, or taken that back: ``tenant_id``. Both may come twice.
tenant_suspended = Signal()
tenant_restored = Signal()
