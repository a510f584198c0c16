"""The SSH gateway of a node: one public port for all leases, the user name is the lease id.

It runs without privileges: no engine socket, no node token, no way into a container but execd's three verbs. Knows no
Django.
"""
