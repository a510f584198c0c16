"""The test rig: GPU nodes without GPUs. Fake NVML, Docker engines of their own, private databases and brokers."""
