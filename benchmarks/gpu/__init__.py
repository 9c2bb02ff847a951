"""Checks and measures the Triton kernels on an NVIDIA GPU, in calls of a few minutes."""
