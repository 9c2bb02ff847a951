"""Instruction counts of the Triton kernels' machine code, and their budget; needs no GPU."""
