"""The machine code of the Triton kernels, read without a GPU: counts and their budget."""
