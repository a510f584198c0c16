"""What ``scripts/demo`` does after the set-up: start Lessor, enrol this machine, rent a GPU."""
