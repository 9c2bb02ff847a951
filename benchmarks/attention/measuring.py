"""Attention calls and training steps with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention import contestants, step
from benchmarks.attention.cases import PASSES, AttentionCase, Problem, cases, problem
from benchmarks.attention.contestants import Ours, Peer, mapping_of, share_of_zeros
from benchmarks.table import Benchmark, Pace
from benchmarks.timing import Contestant, DeviceClock, Race, Row, Task, wall_clock
from sparse_attn.kernels import attention

CHECKED = 2048  # longest rows checked against the reference
# tolerances for outputs, which are averages of standard normal values
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}
# near ties may swap in r-softmax's quantile, in one row of thousands
GRADIENT_TOLERANCE = {torch.float32: 2e-2, torch.bfloat16: 0.5}
MEANING = """\
Times are medians in milliseconds with quartiles. A ratio is the median over rounds of the time
divided by that of SDPA (as PyTorch chooses its backend) in the same round, again with quartiles:
below 1 is faster. In the group `sparsity` the divisor is our own softmax. `forward` is inference
without gradients, `forward+backward` the output and the gradients to query, key and value. MiB is
the peak of the tensors PyTorch allocates during the call, beyond its inputs: the allocator's
high-water mark on the GPU, the sum of torch.profiler's events on the CPU, where scratch space
outside PyTorch's allocator is not seen. `max error` is of the output, `gradient error` that of the
gradients' norm, both for the first two heads against the float32 reference (not beyond N=2048, nor
with dropout). On the GPU attention is timed by CUDA events with launches hidden, right after the
same call; steps are timed by the wall clock. `zeros` is the share of weights that are exactly 0."""


def everyone(case: AttentionCase, device: torch.device) -> Sequence[Contestant]:
    """Return the contestants of a call or of a training step."""
    if case.group == "step":
        return step.contestants(case)
    return contestants.contestants(case, device)


def measure(case: AttentionCase, race: Race[Any]) -> list[Row]:
    """Return the rows of a case: of both passes, or of training steps."""
    torch.compiler.reset()  # earlier variants count towards its limit
    # each mapping recompiles one function; beyond the limit it would run eagerly
    # private: torch.compiler has no such limit
    torch._dynamo.config.recompile_limit = 64
    if case.group == "step":
        return race.rows(step.maker(case, race.device), "step")
    checked, rows = Checked(case, race.device), list[Row]()
    clock = DeviceClock() if race.device.type == "cuda" else wall_clock
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SDPA warns before it raises
        for which in PASSES:
            with torch.set_grad_enabled(which == PASSES[1]):
                rows += race.rows(checked.task, which, clock)
    return rows


class Checked:
    """Make the tasks of a case, and check them against the float32 reference.

    Outputs are checked by their maximum error. Gradients are checked by the norm of the error,
    because they jump at rounded scores. A wrong output fails both passes. Wrong contestants are not
    timed.
    """

    def __init__(self, case: AttentionCase, device: torch.device) -> None:
        self.data = problem(case, device)
        self.wrong: dict[str, str] = {}  # by contestant
        self.expected: dict[tuple[str, bool], list[Tensor]] = {}

    def task(self, contestant: Peer | Ours) -> Task:
        """Return the timed call: inference, or forward and backward.

        Raises:
            ValueError: wrong results.
        """
        facts: dict[str, Any] = {}
        case = self.data.case
        if isinstance(contestant, Ours):
            facts["implementation"] = contestant.implementation(self.data)
            if case.group in ("sparsity", "decoding"):
                facts["zeros"] = share_of_zeros(self.data, mapping_of(contestant.mapping))
        run = self.data.call(contestant.make(self.data))
        known = contestant.name in self.wrong
        if not known and not case.dropout and case.length <= CHECKED:
            facts |= self._check(run, contestant)
        if contestant.name in self.wrong:
            raise ValueError(self.wrong[contestant.name])
        return Task(run, facts=facts)

    def _check(
        self, run: Callable[[], tuple[Tensor, ...]], contestant: Peer | Ours
    ) -> dict[str, float]:
        """Return the error of the pass, and note the contestant if it is wrong."""
        name = contestant.mapping
        case, train = self.data.case, torch.is_grad_enabled()
        if (name, train) not in self.expected:
            self.expected[name, train] = _expected(name, self.data.first())
        valid = case.length if case.lengths is None else case.lengths[0]
        pairs = [
            (ours[:1, : theirs.shape[1], :valid].float(), theirs[:, :, :valid])
            for ours, theirs in zip(run(), self.expected[name, train], strict=True)
        ]
        if train:
            error = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
            tolerance = GRADIENT_TOLERANCE[self.data.query.dtype]
        else:
            error = (pairs[0][0] - pairs[0][1]).abs().max().item()
            tolerance = TOLERANCE[self.data.query.dtype]
        if not error <= tolerance:
            kind = "its gradients differ" if train else "differs"
            self.wrong[contestant.name] = f"wrong: {kind} from the float32 reference by {error:.2g}"
        return {"gradient_error" if train else "max_error": error}


def _expected(name: str, sample: Problem) -> list[Tensor]:
    mapping = mapping_of(name)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = sample.case.causal
        return attention(q, k, v, mapping, mask=sample.seen, causal=causal, impl="reference")

    return [t.detach() for t in sample.call(forward)()]


BENCHMARK = Benchmark(
    "attention",
    "Attention",
    MEANING,
    {
        "memory_mib": "MiB",
        "zeros": "zeros",
        "max_error": "max error",
        "gradient_error": "gradient error",
    },
    # on a GPU AdaSplash-2 may tune for two minutes after the last case has begun
    {"cpu": Pace(10, 5, 780), "cuda": Pace(2.5, 7, 400), "quick": Pace(1, 3, 60)},
    cases,
    everyone,
    measure,
)
