"""Wrong arguments of `kernels.attention`, which are refused before an implementation is chosen."""

from typing import Any

import torch

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from tests.bad_input import Wrong

INF, NAN = float("inf"), float("nan")


def wrong(name: str, error: type[Exception], says: str, **given: Any) -> Wrong:
    """attention of tensors, or of random ones of the shapes given."""

    def call(_: object) -> None:
        shapes = {"query": (2, 4, 5, 8), "key": (2, 2, 7, 8)}
        options = {**shapes, "mapping": Mapping("softmax"), **given}
        options.setdefault("value", options["key"])
        tensors = [options.pop(tensor) for tensor in ("query", "key", "value")]
        attention(*(torch.randn(t) if isinstance(t, tuple) else t for t in tensors), **options)

    return Wrong(f"attention: {name}", call, error, says)


def whole(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.long)


def true(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


PACKED: dict[str, Any] = {"query": (1, 4, 7, 8), "key": (1, 2, 7, 8)}
LENGTHS = r"key_lengths: expected 2 int.*"
ROWS = [
    wrong("query of 3 dimensions", ValueError, r"query: expected 4 dimensions.*\(4, 5, 8\)",
          query=(4, 5, 8)),
    wrong("key of 5 dimensions", ValueError, r"key: expected 4 dimensions.*\(1, 2, 2, 7, 8\)",
          key=(1, 2, 2, 7, 8)),
    wrong("value of 2 dimensions", ValueError, r"value: expected 4 dimensions.*\(7, 8\)",
          value=(7, 8)),
    wrong("integer query", TypeError, r"query: .*int64", query=whole(2, 4, 5, 8)),
    wrong("complex query", TypeError, r"query: .*complex64",
          query=torch.ones(2, 4, 5, 8, dtype=torch.cfloat)),
    wrong("head_dim 0", ValueError, "query: head_dim must be at least 1", query=(2, 4, 5, 0),
          key=(2, 2, 7, 0)),
    wrong("key of another dtype", TypeError, r"key: .*float32.*float64.*\.to\(",
          key=torch.ones(2, 2, 7, 8, dtype=torch.float64)),
    wrong("value of another dtype", TypeError, r"value: .*float32.*bfloat16",
          value=torch.ones(2, 2, 7, 8, dtype=torch.bfloat16)),
    wrong("key of another batch", ValueError, r"key: expected batch 2 .*\(3, 2, 7, 8\)",
          key=(3, 2, 7, 8)),
    wrong("key of another head_dim", ValueError, r"key: .*head_dim 8 .*\(2, 2, 7, 9\)",
          key=(2, 2, 7, 9)),
    *(wrong(f"{n} key heads", ValueError, rf"key: its heads, {n}, must divide .*4",
            key=(2, n, 7, 8)) for n in (0, 3, 8)),
    wrong("value of another length", ValueError, r"value: expected .*\(2, 2, 7\).*\(2, 2, 6, 8\)",
          value=(2, 2, 6, 8)),
    wrong("value of other heads", ValueError, r"value: expected .*\(2, 2, 7\).*\(2, 4, 7, 8\)",
          value=(2, 4, 7, 8)),
    *(wrong(f"dropout {rate}", ValueError, rf"dropout={rate}: expected .*\[0, 1\)", dropout=rate)
      for rate in (1.0, -0.1, NAN, None)),
    *(wrong(f"{name} of a wrong type", ValueError, rf"{name}='x': expected a", **{name: "x"})
      for name in ("dropout", "softcap", "scale")),
    wrong("dropout as a tensor", ValueError, r"dropout=tensor\(0.5000\): expected a number",
          dropout=torch.tensor(0.5)),
    *(wrong(f"softcap {cap}", ValueError, rf"softcap={cap}: expected a finite number above 0",
            softcap=cap) for cap in (0.0, -3.0, NAN, INF)),
    wrong("causal", TypeError, r"causal=2: expected True or False", causal=2),
    *(wrong(f"window {n}", ValueError, rf"window={n}: expected an integer of at least 1",
            window=n) for n in (0, -1, 2.5, True)),
    *(wrong(f"scale {scale}", ValueError, rf"scale={scale}: expected a finite", scale=scale)
      for scale in (NAN, INF)),
    wrong("additive mask", TypeError, r"mask: expected a boolean.*float32; use `mask.bool\(\)` "
          "if 1 = .*, `bias=mask` if it", mask=torch.zeros(5, 7)),
    wrong("integer mask", TypeError, r"mask: .*boolean.*int64; use `mask.bool\(\)` if 1 = takes "
          "part$", mask=whole(5, 7)),
    wrong("list as mask", TypeError, "mask: expected a tensor, got list", mask=[[True]]),
    wrong("mask of another length", ValueError, r"mask: shape \(5, 8\) .*\(2, 4, 5, 7\)",
          mask=true(5, 8)),
    wrong("mask of 5 dimensions", ValueError, "mask: shape", mask=true(1, 2, 4, 5, 7)),
    wrong("mask of (batch, keys)", ValueError, r"mask: shape \(2, 7\).*mask\[:, None, None, :\]",
          mask=true(2, 7)),
    wrong("bias of another length", ValueError, r"bias: shape \(6, 7\) .*\(2, 4, 5, 7\)",
          bias=torch.zeros(6, 7)),
    wrong("boolean bias", TypeError, "bias: expected a floating-point tensor.*mask=", bias=true(7)),
    wrong("float key_lengths", ValueError, LENGTHS + "float32", key_lengths=torch.ones(2)),
    wrong("boolean key_lengths", ValueError, LENGTHS + "bool", key_lengths=true(2)),
    wrong("key_lengths of another batch", ValueError, LENGTHS + r"\(3,\)", key_lengths=whole(3)),
    wrong("key_lengths of 2 dimensions", ValueError, LENGTHS + r"\(2, 1\)",
          key_lengths=whole(2, 1)),
    wrong("key_lengths on another device", ValueError, "key_lengths: expected the device",
          key_lengths=whole(2).to("meta")),
    *(wrong(f"cu_seqlens {values}", ValueError, r"cu_seqlens: expected numbers rising from 0 to "
            rf"the length of query, 7, got \[{shown}\]", cu_seqlens=torch.tensor(values), **PACKED)
      for values, shown in (([0, 5], "0, 5"), ([1, 7], "1, 7"), ([0, 5, 3, 7], "0, 5, 3, 7"),
                            ([0, 8, 7], "0, 8, 7"), ([-1, 7], "-1, 7"),
                            ([0] * 9, r"0, 0, 0, 0, 0, 0, \.\.\., 0"))),
    *(wrong(f"cu_seqlens of {shape}", ValueError, r"cu_seqlens: expected int32 or int64 of shape "
            rf"\(sequences \+ 1,\).*\({shape}\)", cu_seqlens=ends, **PACKED)
      for ends, shape in ((whole(1), "1,"), (whole(0), "0,"), (whole(2, 2), "2, 2"),
                          (whole(), ""))),
    wrong("float cu_seqlens", ValueError, "cu_seqlens: expected int32 or int64.*float32",
          cu_seqlens=torch.tensor([0.0, 7.0]), **PACKED),
    wrong("list as cu_seqlens", TypeError, "cu_seqlens: expected a tensor, got list",
          cu_seqlens=[0, 7], **PACKED),
    wrong("cu_seqlens on another device", ValueError, "cu_seqlens: expected the device",
          cu_seqlens=whole(2).to("meta"), **PACKED),
    wrong("cu_seqlens beside a batch", ValueError, r"cu_seqlens: expected a batch of 1.*\(2, 4, "
          r"7, 8\).*join the sequences", cu_seqlens=torch.tensor([0, 7]), query=(2, 4, 7, 8)),
    wrong("cu_seqlens with other keys", ValueError, "cu_seqlens: .*a key for each query.*cache",
          cu_seqlens=torch.tensor([0, 5]), query=(1, 4, 5, 8), key=(1, 2, 7, 8)),
    wrong("cu_seqlens and key_lengths", ValueError, "key_lengths: packed sequences have no padding",
          cu_seqlens=torch.tensor([0, 7]), key_lengths=whole(1), **PACKED),
    wrong("cu_seqlens, flex", NotImplementedError, "flex.*between packed sequences", impl="flex",
          cu_seqlens=torch.tensor([0, 7]), **PACKED),
    wrong("the name of a mapping", TypeError, "mapping: expected a sparse_attn.Mapping",
          mapping="r-softmax"),
    *(wrong(f"values for other heads, {impl}", ValueError, "r: expected one value or one for each "
            "of the 4 heads" if impl == "cpu" else r"\br\b", impl=impl,
            mapping=Mapping("r-softmax", r=[0.1, 0.2, 0.3], num_heads=3))
      for impl in ("cpu", "reference")),
    *(wrong(f"weights of shape {shape}, {impl}", ValueError, "weights|bias", impl=impl,
            mapping=Mapping("weighted-softmax", weights=torch.ones(shape).tolist()))
      for shape in ((6,), (3, 7), (2, 2, 4, 5, 7)) for impl in ("cpu", "reference")),
    *(wrong(f"impl {impl!r}", ValueError, rf"impl='{impl}'.*triton, cpu, flex, reference",
            impl=impl) for impl in ("fast", "", "Triton", "cuda")),
]  # fmt: skip
