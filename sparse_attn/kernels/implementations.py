"""The implementations of attention, and which are preferred on which device."""

from types import ModuleType

from sparse_attn.kernels import cpu, flex, reference, triton

IMPLEMENTATIONS: dict[str, ModuleType] = {
    "triton": triton,
    "cpu": cpu,
    "flex": flex,
    "reference": reference,
}
# by preference; flex last, as it compiles for a long time on the CPU
AUTOMATIC = {"cuda": ("triton", "flex", "reference"), "cpu": ("cpu", "reference")}
