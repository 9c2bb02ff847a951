"""Calls of attention with random inputs, their gradients, and the budget of their errors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.mappings import get_spec

# Every fixed value is a float32 number, so that float64 and float32 solve the same problem.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {}),
    ("sigsoftmax", {}),
    ("sigsoftmax", {"bias": 1.5}),
    ("taylor-softmax", {}),
    ("spherical-softmax", {"eps": 0.03125}),
    ("spherical-softmax", {"eps": 0.0}),
    ("softmax-abs", {}),
    ("normalized-relu", {}),
    ("normalized-sigmoid", {}),
    ("t-softmax", {"t": 1.75}),
    ("t-softmax", {"t": 0.0}),
    ("t-softmax", {"t": float("inf")}),
    ("r-softmax", {"r": 0.0}),
    ("r-softmax", {"r": 0.15625}),
    ("r-softmax", {"r": 0.8125}),
    ("r-softmax", {"r": 1.0}),
    ("sparsemax", {}),
    ("sparsegen", {"lam": 0.5}),
    ("sparsegen", {"lam": -2.0}),
    ("sparsecone", {"q": 0.5}),
    ("sparsecone", {"q": 0.0}),
    ("sparsehourglass", {"q": 0.5}),
    ("sparsehourglass", {"q": 0.0}),
    ("sparsehourglass", {"q": 10.0}),
    ("entmax", {"alpha": 1.0}),
    ("entmax", {"alpha": 1.001953125}),
    ("entmax", {"alpha": 1.25}),
    ("entmax", {"alpha": 1.5}),
    ("entmax", {"alpha": 2.0}),
    ("top-p-softmax", {"p": 0.90625}),
    ("threshold-softmax", {"lam": 0.0234375}),
    ("max-gap", {"a": 1.0}),
    ("adaptive-temperature", {}),
    ("softpick", {}),
    ("clipped-softmax", {}),
    ("clipped-softmax", {"gamma": -0.0625}),
    ("sigmoid", {}),
    ("sigmoid", {"bias": -1.0}),
    ("relu", {}),
    ("scaled-r-softmax", {"r": 0.3125, "beta": 0.5}),
    ("scaled-sigmoid", {"delta": 0.25}),
]
# Those whose rows sum to one, and those that take a sink.
DISTRIBUTIONS = [s for s in SETTINGS if get_spec(s[0]).mass == "one"]
COMPETING = [s for s in SETTINGS if get_spec(s[0]).mass != "free"]
# One mapping for each solver, and the one whose rows share a sum.
SOLVERS = [
    ("softmax", {}),
    ("t-softmax", {"t": 1.75}),
    ("r-softmax", {"r": 0.3125}),
    ("sparsehourglass", {"q": 0.5}),
    ("entmax", {"alpha": 1.5}),
    ("top-p-softmax", {"p": 0.90625}),
    ("softpick", {}),
]
LEARNED = [
    ("sigsoftmax", {"bias": 0.5}),
    ("spherical-softmax", {"eps": 0.25}),
    ("t-softmax", {"t": 1.75}),
    ("r-softmax", {"r": 0.3125}),
    ("sparsegen", {"lam": 0.5}),
    ("sparsecone", {"q": 0.5}),
    ("sparsehourglass", {"q": 0.5}),
    ("entmax", {"alpha": 1.25}),
    ("entmax", {"alpha": 1.75}),
    ("clipped-softmax", {"gamma": -0.0625}),
    ("sigmoid", {"bias": -1.0}),
    ("scaled-softmax", {"beta": 0.5}),
]


@dataclass(frozen=True)
class Problem:
    """One call of attention. `mask` and `bias` give their shapes in the letters B, H, Q, K, 1."""

    mapping: str
    params: dict[str, Any] = field(default_factory=dict)
    learn: str = ""
    per_head: bool = False
    batch: int = 2
    heads: int = 2
    kv_heads: int = 2
    queries: int = 20
    keys: int = 20
    dim: int = 32
    value_dim: int = 0
    spread: float = 3.0
    layout: str = "contiguous"
    mask: str | None = None
    bias: str | None = None
    bias_learned: bool = False
    bias_masks: bool = False
    sink: float | None = None  # of the call, plus half its number for each head
    key_lengths: tuple[int, ...] | None = None
    packed: tuple[int, ...] | None = None  # lengths of the sequences, in all queries and keys
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        plain = Problem(self.mapping)
        shown = [self.mapping, *(f"{k}={v}" for k, v in (self.params | self.options).items())]
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name not in ("mapping", "params", "options") and value != getattr(plain, name):
                shown.append(name if value is True else f"{name}={value}")
        return "-".join(shown).replace(" ", "")

    @property
    def shape(self) -> dict[str, int]:
        return {"B": self.batch, "H": self.heads, "Q": self.queries, "K": self.keys, "1": 1}

    def make_mapping(self, device: str = "cpu") -> Mapping:
        heads = self.heads if self.per_head else None
        params = dict(self.params)
        if self.per_head and self.learn:
            # one value a head, so that a kernel that takes the wrong head shows it
            value = params[self.learn]
            params[self.learn] = [value * (1 + 0.125 * h / self.heads) for h in range(self.heads)]
        learn = (self.learn,) if self.learn else ()
        return Mapping(self.mapping, learn=learn, num_heads=heads, **params).to(device)

    def named(self, shape: str) -> list[int]:
        return [self.shape[letter] for letter in shape]


@dataclass
class Inputs:
    """The tensors of a problem: values rounded to `stored`, held in `computed`."""

    problem: Problem
    stored: torch.dtype = torch.float32
    computed: torch.dtype = torch.float32
    device: str = "cpu"
    noise: float = 0.0  # relative, of every number of query, key and value

    def __post_init__(self) -> None:
        p = self.problem
        self.random = torch.Generator().manual_seed(1)
        self.query = self._leaf(p.heads, p.queries, p.dim, p.spread)
        self.key = self._leaf(p.kv_heads, p.keys, p.dim)
        self.value = self._leaf(p.kv_heads, p.keys, p.value_dim or p.dim)
        shape = (p.batch, p.heads, p.queries, p.value_dim or p.dim)
        self.grad = self._normal(*shape)
        self.mapping = p.make_mapping(self.device)
        self.arguments: dict[str, Any] = dict(p.options)
        if p.mask is not None:
            keep = torch.rand(p.named(p.mask), generator=self.random) < 0.7
            self.arguments["mask"] = keep.to(self.device)
        if p.key_lengths is not None:
            self.arguments["key_lengths"] = torch.tensor(p.key_lengths, device=self.device)
        if p.packed is not None:
            ends = torch.tensor((0, *p.packed), device=self.device).cumsum(0)
            self.arguments["cu_seqlens"] = ends.int()
        if p.bias is not None:
            self.arguments["bias"] = self._bias(p)
        if p.sink is not None:
            sink = p.sink + torch.arange(p.heads, dtype=self.computed, device=self.device) / 2
            self.arguments["sink"] = sink.requires_grad_()

    def _normal(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self.random, dtype=torch.float64)
        return values.to(self.stored).to(self.device, self.computed)

    def _leaf(self, heads: int, length: int, dim: int, scale: float = 1.0) -> Tensor:
        batch = self.problem.batch
        values = (self._normal(batch, heads, length, dim) * scale).to(self.stored)
        if self.noise:
            values = values.to(self.computed) * (1 + self.noise * torch.randn_like(values))
        return lay_out(values.to(self.computed), self.problem.layout).requires_grad_()

    def _bias(self, p: Problem) -> Tensor:
        assert p.bias is not None
        bias = self._normal(*p.named(p.bias))
        if p.bias_masks:
            drop = torch.rand(p.named(p.bias), generator=self.random) < 0.2
            bias = bias.masked_fill(drop.to(self.device), -torch.inf)
        return bias.requires_grad_(p.bias_learned)

    @property
    def leaves(self) -> dict[str, Tensor]:
        found = {"query": self.query, "key": self.key, "value": self.value}
        found |= dict(self.mapping.named_parameters())
        if self.problem.bias_learned:
            found["bias"] = self.arguments["bias"]
        if self.problem.sink is not None:
            found["sink"] = self.arguments["sink"]
        return found

    def attend(self, impl: str | None, **changed: Any) -> Tensor:
        arguments = {**self.arguments, **changed}
        return attention(self.query, self.key, self.value, self.mapping, impl=impl, **arguments)

    def solve(self, impl: str | None, **changed: Any) -> dict[str, Tensor]:
        """The output and the gradient of every leaf."""
        output = self.attend(impl, **changed)
        gradients = torch.autograd.grad(output, list(self.leaves.values()), self.grad)
        result = {"output": output.detach()}
        result |= {f"d{n}": g for n, g in zip(self.leaves, gradients, strict=True)}
        return result


def lay_out(values: Tensor, layout: str) -> Tensor:
    """The same values with other strides."""
    batch, heads, length, dim = values.shape
    if layout == "transposed":  # as Transformers hands them over
        return values.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":  # one part of a fused projection
        wide = values.new_full((batch, length, 3, heads, dim), torch.nan)
        wide[:, :, 1] = values.transpose(1, 2)
        return wide[:, :, 1].transpose(1, 2)
    if layout == "columns":  # the last dimension is not the dense one
        return values.transpose(2, 3).contiguous().transpose(2, 3)
    if layout == "every-second":
        wide = values.new_full((batch, heads, length, 2 * dim), torch.nan)
        wide[..., ::2] = values
        return wide[..., ::2]
    assert layout == "contiguous"
    return values.clone()


def solve(
    problem: Problem, impl: str | None, stored: torch.dtype, computed: torch.dtype, device: str
) -> dict[str, Tensor]:
    """Output and gradients of a problem whose numbers are of `stored`, computed in `computed`."""
    return Inputs(problem, stored, computed, device).solve(impl)


# A kernel adds in another order than the reference, and both miss the truth by roundings of like
# size: twice the error of the reference leaves room for chance, not for a lost digit.
FACTOR = 2.0
# Where the reference happens to be exact (one key, one-hot rows, good luck with few numbers) this
# many roundings of the largest number are still allowed, and those that the scores stand for: a
# score q k^T has an error of |q| |k| eps before anything is done to it, and e^z the same in
# proportion. A gradient that is 0 is a difference of numbers as large as those of dvalue.
FLOOR = 4.0
# A GPU multiplies float32 as three products of TF32, which keep 22 bits of each number. A problem
# that magnifies such a change of its inputs, as a row of nearly no temperature does, magnifies it
# in the best of kernels.
TF32X3 = 2.0**-22


def assert_within_budget(problem: Problem, impl: str, dtype: torch.dtype, device: str) -> None:
    """Error against float64 at most FACTOR times that of the reference in `dtype`, and a floor."""
    got = solve(problem, impl, dtype, dtype, device)
    truth = solve(problem, "reference", dtype, torch.float64, device)
    yardstick = solve(problem, "reference", dtype, dtype, device)
    rounded = yardstick
    if device == "cuda" and dtype == torch.float32:
        noisy = Inputs(problem, dtype, torch.float64, device, noise=TF32X3)
        rounded = noisy.solve("reference")
    # scores are computed in float32 whatever the dtype
    scores_eps = largest_score(problem, dtype) * torch.finfo(torch.float32).eps
    for name, expected in truth.items():
        assert got[name].shape == expected.shape, name
        assert got[name].dtype == yardstick[name].dtype, name
        assert got[name].isfinite().all(), f"{name} is not finite"
        eps = torch.finfo(got[name].dtype).eps
        error = (got[name].double() - expected.double()).abs()
        own = max(
            (other[name].double() - expected.double()).abs().max().item()
            for other in (yardstick, rounded)
        )
        largest = (expected if expected.any() else truth["dvalue"]).abs().max().item()
        roundings = FLOOR * eps + 2 * scores_eps  # scores are computed forward and again backward
        floor = roundings * max(1.0, largest)
        if name.startswith(("draw", "dsink")):  # one number, the sum over rows of either sign
            floor += roundings * (problem.batch * problem.queries) ** 0.5
        allowed = FACTOR * own + floor
        worst = int(error.argmax())
        where = [int(i) for i in torch.unravel_index(torch.tensor(worst), error.shape)]
        assert error.max() <= allowed, (
            f"{name}: error {error.max():.3e} > {allowed:.3e} (reference in {dtype}: {own:.3e}), "
            f"worst at {where}: got {got[name].flatten()[worst]:.9g}, "
            f"expected {expected.flatten()[worst]:.9g}"
        )


def largest_score(problem: Problem, dtype: torch.dtype) -> float:
    """The largest |q| |k| of a problem, scaled as in attention: what a dot product is rounded by.

    The result may cancel to far less.
    """
    inputs = Inputs(problem, dtype, torch.float32)
    key = inputs.key.repeat_interleave(problem.heads // problem.kv_heads, dim=1)
    scale = problem.options.get("scale", problem.dim**-0.5)
    norms = inputs.query.norm(dim=-1)[..., None] * key.norm(dim=-1)[..., None, :]
    return (norms * abs(scale)).detach().max().item()


def assert_equal_to_rounding(problem: Problem, impl: str, tolerance: float = 1e-12) -> None:
    """The reference in float64, to all digits but the last few."""
    got = solve(problem, impl, torch.float64, torch.float64, "cpu")
    assert_close(got, solve(problem, "reference", torch.float64, torch.float64, "cpu"), tolerance)


def assert_close(
    got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-12
) -> None:
    """Results in float64 are equal to all digits but the last few."""
    for name, wanted in expected.items():
        assert got[name].dtype == wanted.dtype, name
        # the gradient of a parameter passes through its float32 value
        relative = tolerance if wanted.dtype == torch.float64 else 2e-5
        close = relative * max(1.0, wanted.abs().max().item())

        def named(text: str, name: str = name) -> str:
            return f"{name}: {text}"

        torch.testing.assert_close(got[name], wanted, rtol=relative, atol=close, msg=named)


def rows_call(
    scores: Tensor,
    mapping: Mapping,
    impl: str | None,
    upstream: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """p of each row of scores [Q, N], and their gradient for this one of p, or a random one.

    Through attention: the queries are the scores, keys and values unit vectors. Parameters have
    their gradients in `grad`.
    """
    unit = torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device)
    leaf = scores.clone().requires_grad_(torch.is_grad_enabled())
    query, key = leaf[None, None], unit[None, None]
    p = attention(query, key, key, mapping, scale=1.0, impl=impl, **options)[0, 0]
    if p.requires_grad:
        p.backward(torch.randn_like(p) if upstream is None else upstream.to(p))
    return p.detach(), torch.empty(0) if leaf.grad is None else leaf.grad


def vary(base: Problem, **lists: Any) -> list[Problem]:
    """The base with one field changed at a time."""
    return [replace(base, **{name: value}) for name, values in lists.items() for value in values]
