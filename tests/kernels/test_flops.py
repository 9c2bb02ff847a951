"""FlopCounterMode counts the products of the fused kernels as it counts those of PyTorch."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count

from sparse_attn import Mapping
from sparse_attn.kernels import attention

from .backends import CPU, CUDA, TRITON, each

B, H, Q, K, D = 2, 2, 5, 9, 16


def tensors(device="cpu", kv_heads=H, value_dim=D):
    shapes = (B, H, Q, D), (B, kv_heads, K, D), (B, kv_heads, K, value_dim)
    return [torch.randn(s, device=device, requires_grad=device != "meta") for s in shapes]


def counted(function, *arguments):
    with FlopCounterMode(display=False) as counter:
        result = function(*arguments)
    return counter.get_total_flops(), result


def both_passes(impl, inputs, mapping="r-softmax", **options):
    """What is counted forward, and backward."""
    forward, output = counted(lambda: attention(*inputs, Mapping(mapping), impl=impl, **options))
    return forward, counted(output.sum().backward)[0]


@each(CPU, TRITON, CUDA)
def test_as_sdpa_forward_and_flash_attention_backward(backend):
    """Backward takes four products, and the scores once more."""
    inputs = tensors(backend.device)
    with sdpa_kernel(SDPBackend.MATH):
        expected, _ = counted(lambda: scaled_dot_product_attention(*inputs))
    assert expected == 2 * B * H * Q * K * (D + D)
    forward, backward = both_passes(backend.impl, inputs)
    assert forward == both_passes(backend.impl, inputs, causal=True)[0] == expected
    shapes = [tensor.shape for tensor in inputs]
    assert backward == sdpa_backward_flop_count((B, H, Q, D), *shapes)


@pytest.mark.parametrize("mapping", ["softmax", "entmax", "sparsehourglass"])
def test_grouped_heads_and_another_dimension_of_values(mapping):
    inputs = tensors(kv_heads=1, value_dim=24)
    forward, backward = both_passes("cpu", inputs, mapping)
    by_reference = both_passes("reference", inputs, mapping)
    assert forward == by_reference[0] == 2 * B * H * Q * K * (D + 24)
    assert backward == by_reference[1] + 2 * B * H * Q * K * D


def test_packed_sequences_count_as_each_alone():
    inputs = [torch.randn(1, H, 9, D, requires_grad=True) for _ in range(3)]
    got = both_passes("cpu", inputs, cu_seqlens=torch.tensor([0, 2, 2, 9]))
    parts = [both_passes("cpu", [t[:, :, s] for t in inputs]) for s in (slice(2), slice(2, 9))]
    assert got == tuple(map(sum, zip(*parts, strict=True)))


def test_the_meta_device_counts_without_computing():
    flops, output = counted(lambda: attention(*tensors("meta"), Mapping("sparsemax")))
    assert flops == 2 * B * H * Q * K * (D + D)
    assert output.is_meta
    assert output.shape == (B, H, Q, D)
