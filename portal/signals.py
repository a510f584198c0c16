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

# Inside the transaction that deletes an organisation, before anything changes: ``tenant``, ``give_up_balance`` (an
# owner has said that the money may go). Who knows a reason against it raises a DomainError.
tenant_closing = Signal()

# A person's sessions were ended, or their account was closed: ``tenant_ids`` they could look into. Streams look again.
access_changed = Signal()

# Inside the transaction that closes an account: ``user``, ``actor``, ``deleted`` (by its owner, else by an operator).
# What runs for tenants without any active member left is stopped, in the same transaction.
account_closed = Signal()

# Inside the transaction that makes a deleted account anonymous: the ``addresses`` it had, the ``label`` in their place.
account_erased = Signal()
