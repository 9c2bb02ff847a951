"""The implementations of attention that need only torch and Triton."""

from types import ModuleType

from sparse_attn.kernels import flex, reference, triton

IMPLEMENTATIONS: dict[str, ModuleType] = {"triton": triton, "flex": flex, "reference": reference}
# on the CPU, Triton runs in its interpreter alone
AUTOMATIC = {"cuda": ("triton", "flex", "reference"), "cpu": ("reference",)}
