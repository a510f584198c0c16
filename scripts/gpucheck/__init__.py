"""What ``scripts/gpu-check`` does: the steps of docs/unproven.md on a machine with real GPUs."""
