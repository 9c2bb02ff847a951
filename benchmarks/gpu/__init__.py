"""Check and measure the Triton kernels on an NVIDIA GPU, in calls of a few minutes."""
