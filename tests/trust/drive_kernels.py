"""Random calls of one build of the CPU kernels.

    python -m tests.trust.drive_kernels LIBRARY CALLS SEED

They are for what the build watches: memory, undefined behaviour, or the lines reached. Results must
not depend on what an earlier call left behind, and tame ones in float64 are the reference's.
"""

from __future__ import annotations

import ctypes
import math
import random
import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from sparse_attn import Mapping, mapping_names
from sparse_attn.kernels import cpu, reference
from sparse_attn.kernels.cpu import build, kernel_args
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.mappings import get_spec
from tests.fuzz.strategies import LAYOUTS, lay_out, numbers, same
from tests.kernels.problems import LEARNED

DTYPES = (torch.float32, torch.float64, torch.float32, torch.float64, torch.float16, torch.bfloat16)
FUSED = [name for name in mapping_names() if get_spec(name).kernel is not None]
UNLEARNED = [
    ("top-p-softmax", {"p": 0.7}),
    ("threshold-softmax", {"lam": 0.05}),
    ("max-gap", {"a": 1.0}),
    ("adaptive-temperature", {}),
    ("softpick", {}),
    ("clipped-softmax", {}),
    ("sigmoid", {}),
    ("relu", {}),
]
TAME, WILD = ("plain", "tied"), ("tiny", "large", "odd")
ODD = (
    0.0,
    -0.0,
    1e-40,
    -1e-40,
    1e-310,
    1e30,
    -1e30,
    3e38,
    88.0,
    -104.0,
    math.inf,
    -math.inf,
    math.nan,
)


def drawn(shape: tuple[int, ...], kind: str) -> Tensor:
    """A tensor in float64."""
    values = torch.randn(shape, dtype=torch.float64)
    if kind == "tied":
        return values.round()
    if kind == "odd":
        odd = torch.tensor(ODD, dtype=torch.float64)[torch.randint(len(ODD), shape)]
        return values.where(torch.rand(shape) < 0.8, odd)
    return values * {"plain": 1.0, "tiny": torch.finfo(torch.float32).tiny, "large": 1e30}[kind]


def mapping(heads: int, kind: str) -> Mapping:
    """Any mapping with a kernel, for all heads or each; its parameters at their ends if wild."""
    if kind in TAME or random.random() < 0.3:
        name, values = random.choice(LEARNED + UNLEARNED)
        learn = values if (name, values) in LEARNED else ()
        learned = Mapping(name, learn=learn, num_heads=random.choice([None, heads]), **values)
        for raw in learned.parameters():
            if kind == "odd":  # the ends of the range, to which a learned value rounds
                raw.data[0] = random.choice([-math.inf, math.inf, math.nan])
        return learned
    name, values = random.choice([*FUSED, "scaled-softmax"]), {}
    spec = get_spec(name, sink=get_spec(name).mass != "free" and random.random() < 0.3)
    for parameter in spec.parameters:
        if values.get(parameter.instead_of) is not None:
            continue
        if spec.kernel is not None and parameter.name not in spec.kernel.constants:
            known = [parameter.default, *numbers(parameter, torch.float32)]
            each = random.choices(known[1:], k=heads)
            values[parameter.name] = random.choice([each, random.choice(known)])
    per_head = any(isinstance(value, list) for value in values.values())
    return Mapping(name, num_heads=heads if per_head else None, **values)


def pairs(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to (batch, heads, queries, keys)."""
    return tuple(random.choice([size, size, min(size, 1)]) for size in shape)


def draw(
    sizes: dict[str, list[int]], kind: str, dtype: torch.dtype
) -> tuple[AttentionInputs, Tensor]:
    """A call, and the gradient of its output."""
    size = {name: random.choice(choices) for name, choices in sizes.items()}
    batch, key_heads, keys, dim = (size[n] for n in ("batch", "key_heads", "keys", "dim"))
    heads, queries = key_heads * size["groups"], size["queries"]
    options: dict[str, Any] = {}
    if random.random() < 0.3:
        batch, queries = 1, keys
        ends = sorted(random.choices(range(keys + 1), k=random.choice([0, 1, 3, 20])))
        options["cu_seqlens"] = torch.tensor([0, *ends, keys])
    if random.random() < 0.4:
        options["mask"] = torch.rand(pairs((batch, heads, queries, keys))) < random.choice(
            [0.1, 0.8]
        )
    if "cu_seqlens" not in options and random.random() < 0.4:
        options["key_lengths"] = torch.randint(-1, keys + 3, (batch,))
    scores = random.choice(["plain", kind])
    shapes = {
        "query": ((batch, heads, queries, dim), "tied" if kind == "tied" else scores),
        "key": ((batch, key_heads, keys, dim), "tied" if kind == "tied" else "plain"),
        "value": ((batch, key_heads, keys, size["value_dim"]), random.choice(["plain", kind])),
    }
    if random.random() < 0.6:
        shapes["bias"] = (pairs((batch, heads, queries, keys)), kind)
    for name, (shape, of) in shapes.items():
        tensor = lay_out(drawn(shape, of).to(dtype), random.choice(LAYOUTS))
        options[name] = tensor.requires_grad_(random.random() < 0.7)
    chosen = mapping(heads, kind)
    scaled = chosen.spec.kernel is not None and chosen.spec.kernel.scaled
    if not chosen.has_sink and chosen.spec.mass != "free" and random.random() < 0.2:
        options["sink"] = drawn((heads,), kind).to(dtype).requires_grad_(random.random() < 0.7)
    call = AttentionInputs(
        mapping=chosen,
        causal=random.random() < 0.3,
        window=random.choice([None, None, 1, 4, 2**40]),
        softcap=None if scaled else random.choice([None, None, None, 1e-3, 8.0]),
        scaling=random.choice([None, None, 0.0, -1.0, 1e30 if kind in WILD else 3.0]),
        dropout=random.choice([0.0, 0.0, 0.25, 0.999]),
        **options,
    )
    upstream = drawn((batch, heads, queries, size["value_dim"]), random.choice(["plain", kind]))
    return call, lay_out(upstream.to(dtype), random.choice(LAYOUTS))


def draw_long() -> tuple[AttentionInputs, Tensor]:
    """A call whose keys are screened, unless they are odd, or many stay."""
    keys, queries, dim = random.choice([1024, 1100]), random.choice([1, 3, 14]), 64
    kinds = random.choices(["plain", "plain", "plain", "tied", "large", "odd"], k=2)
    shapes = {"query": (1, 4, queries, dim), "key": (1, 2, keys, dim), "value": (1, 2, keys, 40)}
    tensors = {
        name: lay_out(drawn(shape, kind).float(), random.choice(LAYOUTS)).requires_grad_()
        for (name, shape), kind in zip(shapes.items(), [*kinds, "plain"], strict=True)
    }
    if random.random() < 0.4:
        tensors["mask"] = torch.rand(pairs((1, 4, queries, keys))) < 0.9
    chosen = random.choice(
        [Mapping("sparsemax"), Mapping("max-gap", a=random.choice([1.0, 200.0])), Mapping("entmax")]
    )
    call = AttentionInputs(
        mapping=chosen, window=random.choice([None, 1050]), scaling=0.5, **tensors
    )
    return call, drawn((1, 4, queries, 40), "plain").float()


def solve(call: AttentionInputs, upstream: Tensor, implementation: Any = cpu) -> list[Tensor]:
    """The output and all gradients."""
    torch.manual_seed(1)  # the same weights are dropped
    compiled = sum(call.shape) % 3 == 0  # whose forward pass keeps no support
    with mock.patch.object(torch.compiler, "is_compiling", return_value=compiled):
        return _solve(call, upstream, implementation)


def _solve(call: AttentionInputs, upstream: Tensor, implementation: Any) -> list[Tensor]:
    out = implementation.attention(call).output
    leaves = [t for t in (call.query, call.key, call.value, call.bias, call.sink) if t is not None]
    leaves = [t for t in (*leaves, *call.mapping.parameters()) if t.requires_grad]
    if not leaves:
        return [out]
    found = torch.autograd.grad(out, leaves, upstream, allow_unused=True, materialize_grads=True)
    return [out.detach(), *found]


def measure(call: AttentionInputs) -> list[Tensor]:
    """The output and the statistics, and the latter where no key is special."""
    torch.manual_seed(1)
    special = torch.rand(call.shape[0], call.shape[3]) < 0.5
    found = []
    for keys in (special, None):
        result = cpu.attention(replace(call, need_statistics=True, special_keys=keys))
        found += [result.output.detach(), result.statistics]
    return found


SIZES = {
    "batch": [1, 1, 2, 3, 0],
    "key_heads": [1, 2],
    "groups": [1, 1, 3],
    "queries": [1, 2, 5, 7, 13, 40, 100, 0],
    "keys": [1, 2, 3, 8, 17, 33, 65, 130, 300, 0],
    "dim": [1, 3, 8, 16, 17, 40, 64, 112, 136],
    "value_dim": [1, 3, 8, 16, 17, 40, 64, 112, 136, 0],
}


def leave(value: float, dtype: torch.dtype) -> None:
    """Leave 0 or NaN in all memory that the threads keep."""
    shape = (torch.get_num_threads(), 1, 120, 320)
    query, key = (torch.full((*shape[:2], n, 64), value, dtype=dtype) for n in shape[2:])
    call = AttentionInputs(query.requires_grad_(), key, key, Mapping("softmax"), softcap=1.0)
    solve(call, torch.full_like(query, value))
    measure(call)


def main(library: str, count: int, seed: int) -> None:
    loaded = ctypes.CDLL(library)
    assert loaded.size_of_args() == ctypes.sizeof(kernel_args.KernelArgs)
    build.library = lambda: loaded
    random.seed(seed)
    torch.manual_seed(seed)
    for number in range(count):
        kernel_args.SERIAL_WORK, kernel_args.TILE_BYTES = (
            random.choice([0, 2**21]),
            random.choice([1, 2**13, 2**17]),
        )
        torch.set_num_threads(random.choice([1, 2, 5]))
        kind, dtype = random.choice(TAME + WILD), random.choice(DTYPES)
        call, upstream = draw(SIZES, kind, dtype)
        if number % 20 == 19:
            kind, dtype = "long", torch.float32
            call, upstream = draw_long()
        state = torch.get_rng_state()
        compared = kind in TAME and dtype == torch.float64 and not call.dropout
        twice = compared or number % 5 == 0
        if twice:
            leave(0.0, dtype)
        found = solve(call, upstream) + measure(call)
        if twice:
            leave(math.nan, dtype)
            again = solve(call, upstream) + measure(call)
            assert all(map(same, found, again)), f"call {number} reads what another left: {call}"
        if compared:
            expected = solve(call, upstream, reference)
            # ties share p, but at a kink each has a slope of its own; rounded products tie with no
            # sink
            upto = len(expected) if kind == "plain" and call.scale else 1
            upto = 0 if kind == "tied" and call.has_sink and call.scaling is None else upto
            for place, pair in enumerate(zip(found[:upto], expected[:upto], strict=True)):
                where = f"call {number}, result {place}: {call}"
                torch.testing.assert_close(
                    *pair, rtol=1e-5, atol=1e-6, msg=lambda m, w=where: m + w
                )
        torch.set_rng_state(state)
    print(f"{count} calls")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
