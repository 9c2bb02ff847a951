"""The machine code of the Triton kernels, read without a GPU: counts, budgets, a prediction."""
