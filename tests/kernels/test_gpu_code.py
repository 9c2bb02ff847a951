"""The Triton kernels compile for real GPUs, which needs a compiler but no GPU.

The interpreter runs Python that the compiler would refuse; this is what tells them apart.
"""

import pytest

from tests.commands import run

pytest.importorskip("triton", reason="triton is not installed")

SCRIPT = """
import sys
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from sparse_attn import Mapping
from sparse_attn.kernels import triton as kernels
from sparse_attn.kernels.inputs import AttentionInputs


class NoGpu:
    '''What Triton asks of a driver before it launches; a warm-up does not launch.'''

    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", int(sys.argv[1]), 32))


class WarmUp:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def compile(*args, **kwargs):
            code = self.kernel.warmup(*args, grid=grid, **kwargs)
            assert len(code.asm["cubin"]) > 0
            print(self.kernel.__name__, code.metadata.shared)

        return compile


def qkv(length, dim, dtype, heads=(2, 2, 2)):
    return [torch.zeros(1, h, length, dim, dtype=dtype, requires_grad=True) for h in heads]


driver.set_active(NoGpu())
kernels.plan.shared_memory = lambda tensor: int(sys.argv[3])
for name in ("fwd_kernel", "bwd_dq_kernel", "bwd_dkdv_kernel"):
    setattr(kernels.launch, name, WarmUp(getattr(kernels.launch, name)))
output = kernels.attention(eval(f"AttentionInputs({sys.argv[2]})")).output
output.backward(torch.ones_like(output))
"""
CALLS = {
    "whole": """*qkv(100, 64, torch.bfloat16), Mapping("r-softmax"), dropout=0.1,
        mask=torch.ones(1, 1, 1, 100, dtype=torch.bool)""",
    "wide": """*qkv(128, 128, torch.float16), Mapping("top-p-softmax", sink=0.5)""",
    "short": """*qkv(300, 64, torch.bfloat16, (4, 2, 2)), Mapping("sparsehourglass", learn="q"),
        mask=torch.ones(300, 300, dtype=torch.bool), bias=torch.zeros(300), softcap=20.0""",
    "long": """*qkv(2000, 128, torch.float16), Mapping("entmax", alpha=1.25), causal=True""",
    "free": """*qkv(300, 64, torch.bfloat16), sink=torch.zeros(2, requires_grad=True),
        mapping=Mapping("clipped-softmax", gamma=-0.01, learn="gamma")""",
    "window": """*qkv(2000, 80, torch.float32, (1, 1, 1)), Mapping("sigsoftmax", learn="bias"),
        window=100, key_lengths=torch.tensor([1500])""",
}
SHARED = {80: 166912, 86: 101376, 90: 232448}  # bytes that one program may use
KERNELS = {"whole": 2, "wide": 3, "short": 3, "long": 3, "free": 3, "window": 3}


@pytest.mark.parametrize(
    ("call", "capability"),
    [*((call, 90) for call in CALLS if call != "wide"), ("long", 80), ("wide", 86)],
)
def test_compiles(call, capability, tmp_path):
    done = run(
        "-W", "ignore", "-c", SCRIPT, capability, CALLS[call], SHARED[capability],
        env={"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    shared = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(shared) == KERNELS[call]
    assert max(shared) <= SHARED[capability]
