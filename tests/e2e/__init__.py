"""A whole Lessor from the outside: pages, API and OpenSSH against a live portal and a node with fake GPUs."""
