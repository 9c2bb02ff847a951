"""Wrong arguments of `kernels.attention`, which are refused before an implementation is chosen."""

from typing import Any

import torch

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from tests.bad_input import Wrong

VALUE, TYPE = ValueError, TypeError
SEVEN: dict[str, Any] = {"query": (1, 4, 7, 8), "key": (1, 2, 7, 8)}  # as packed sequences are
# name, what is given, exception, what the message must hold
TABLE: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("query of 3 dimensions", {"query": (4, 5, 8)}, VALUE, "query"),
    ("integer query", {"query": torch.ones(2, 4, 5, 8, dtype=torch.long)}, TYPE, "query"),
    ("no head_dim", {"query": (2, 4, 5, 0), "key": (2, 2, 7, 0)}, VALUE, "query"),
    ("key of another dtype", {"key": torch.ones(2, 2, 7, 8).double()}, TYPE, "key"),
    ("key of another batch", {"key": (3, 2, 7, 8)}, VALUE, "key"),
    ("key of another head_dim", {"key": (2, 2, 7, 9)}, VALUE, "key"),
    ("key heads that do not divide", {"key": (2, 3, 7, 8)}, VALUE, "key: its heads"),
    ("value of another dtype", {"value": torch.ones(2, 2, 7, 8).bfloat16()}, TYPE, "value"),
    ("value of another length", {"value": (2, 2, 6, 8)}, VALUE, "value"),
    ("dropout of 1", {"dropout": 1.0}, VALUE, "dropout"),
    ("dropout as text", {"dropout": "x"}, VALUE, "dropout"),
    ("dropout as a tensor", {"dropout": torch.tensor(0.5)}, VALUE, "dropout"),
    ("softcap of 0", {"softcap": 0.0}, VALUE, "softcap"),
    ("softcap as text", {"softcap": "x"}, VALUE, "softcap"),
    ("causal", {"causal": 2}, TYPE, "causal"),
    ("window of 0", {"window": 0}, VALUE, "window"),
    ("window that is no integer", {"window": 2.5}, VALUE, "window"),
    ("NaN as scale", {"scale": float("nan")}, VALUE, "scale"),
    ("scale as text", {"scale": "x"}, VALUE, "scale"),
    ("additive mask", {"mask": torch.zeros(5, 7)}, TYPE, "bias=mask"),
    ("integer mask", {"mask": torch.ones(5, 7, dtype=torch.long)}, TYPE, r"mask\.bool\(\)"),
    ("list as mask", {"mask": [[True]]}, TYPE, "mask"),
    ("mask of another length", {"mask": torch.ones(5, 8).bool()}, VALUE, "mask"),
    ("mask of (batch, keys)", {"mask": torch.ones(2, 7).bool()}, VALUE, "None, None, :"),
    ("bias of another length", {"bias": torch.zeros(6, 7)}, VALUE, "bias"),
    ("boolean bias", {"bias": torch.ones(7).bool()}, TYPE, "mask="),
    ("float key_lengths", {"key_lengths": torch.ones(2)}, VALUE, "key_lengths"),
    ("key_lengths of another batch", {"key_lengths": torch.tensor([1] * 3)}, VALUE, "key_lengths"),
    ("key_lengths elsewhere", {"key_lengths": torch.ones(2).long().to("meta")}, VALUE, "device"),
    *((f"cu_seqlens {ends}", {"cu_seqlens": torch.tensor(ends), **SEVEN}, VALUE, "cu_seqlens")
      for ends in ([0, 5], [1, 7], [0, 5, 3, 7], [0, 8, 7], [0], [[0, 7]], [0.0, 7.0])),
    ("list as cu_seqlens", {"cu_seqlens": [0, 7], **SEVEN}, TYPE, "cu_seqlens"),
    ("cu_seqlens elsewhere", {"cu_seqlens": torch.tensor([0, 7]).to("meta"), **SEVEN}, VALUE,
     "device"),
    ("cu_seqlens beside a batch", {"cu_seqlens": torch.tensor([0, 7]), "query": (2, 4, 7, 8)},
     VALUE, "batch of 1"),
    ("cu_seqlens with other keys", {**SEVEN, "cu_seqlens": torch.tensor([0, 5]),
     "query": (1, 4, 5, 8)}, VALUE, "cache"),
    ("cu_seqlens and key_lengths", {"cu_seqlens": torch.tensor([0, 7]),
     "key_lengths": torch.tensor([7]), **SEVEN}, VALUE, "key_lengths"),
    ("cu_seqlens, flex", {"cu_seqlens": torch.tensor([0, 7]), "impl": "flex", **SEVEN},
     NotImplementedError, "packed"),
    ("the name of a mapping", {"mapping": "r-softmax"}, TYPE, "mapping"),
    *((f"values for other heads, {impl}", {"impl": impl, "mapping": Mapping("r-softmax",
       r=[0.1, 0.2, 0.3], num_heads=3)}, VALUE, r"\br\b") for impl in ("cpu", "reference")),
    *((f"weights for other keys, {impl}", {"impl": impl, "mapping": Mapping("weighted-softmax",
       weights=[1.0] * 6)}, VALUE, "weights|bias") for impl in ("cpu", "reference")),
    ("impl", {"impl": "fast"}, VALUE, "triton, cpu, flex, reference"),
]  # fmt: skip


def called(given: dict[str, Any]) -> None:
    """Call attention with tensors, or random ones of the shapes given."""
    options = {"query": (2, 4, 5, 8), "key": (2, 2, 7, 8), "mapping": Mapping("softmax"), **given}
    options.setdefault("value", options["key"])
    tensors = [options.pop(tensor) for tensor in ("query", "key", "value")]
    attention(*(torch.randn(t) if isinstance(t, tuple) else t for t in tensors), **options)


ROWS = [
    Wrong(f"attention: {name}", lambda _, given=given: called(given), error, says)
    for name, given, error, says in TABLE
]
