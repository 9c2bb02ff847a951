"""Attention calls and training steps with them."""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from benchmarks.attention import cases, contestants, step
from benchmarks.attention.cases import PASSES, AttentionCase, Problem, problem
from benchmarks.attention.contestants import BASE, Ours, Peer, mapping_of
from benchmarks.race import Contestant, Race, Row
from benchmarks.suite import Pace, Record, Suite
from benchmarks.tables import Column
from benchmarks.timing import DeviceClock, Task, wall_clock
from sparse_attn.kernels import attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHECKED = 2048  # longest rows checked against the reference
# tolerances for outputs, which are averages of standard normal values
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}
# near ties may swap in r-softmax's quantile, in one row of thousands
GRADIENT_TOLERANCE = {torch.float32: 2e-2, torch.bfloat16: 0.5}


class Attention(Suite[AttentionCase, Any]):
    name = "attention"
    title = "Benchmarks"
    meaning = """\
Times are medians in milliseconds with quartiles. A ratio is the median over rounds of
the time divided by that of SDPA (as PyTorch chooses its backend) in the same round, again with
quartiles: below 1 is faster. `forward` is inference without gradients, `forward+backward` the
output and the gradients to query, key and value. Memory is the peak of the tensors PyTorch
allocates during the call, beyond its inputs: the allocator's high-water mark on the GPU, the sum of
torch.profiler's events on the CPU, where scratch space outside PyTorch's allocator is not seen.
`max error` is of the output, `gradient error` that of the gradients' norm, both for the first two
heads against the float32 reference (not beyond N=2048, nor with dropout). On the GPU attention is
timed by CUDA events with launches hidden, `cold` with the L2 cache overwritten before, `warm` right
after the same call; steps are timed by the wall clock, and `p > 0` is the share of their attention
weights that are not 0."""
    base = BASE
    columns = (Column("memory_mib", "MiB"), Column("nonzeros", "p > 0"))
    paces: ClassVar = {"cpu": Pace(10, 5, 780), "cuda": Pace(2.5, 7, 450), "quick": Pace(1, 3, 60)}

    def cases(self, device: str, options: argparse.Namespace) -> list[AttentionCase]:
        return cases.cases(device, options.quick)

    def contestants(self, case: AttentionCase, device: torch.device) -> Sequence[Contestant]:
        if case.group == "step":
            return step.contestants(case)
        return contestants.contestants(case, device)

    def measure(self, case: AttentionCase, race: Race[Any]) -> dict[str, Any]:
        torch.compiler.reset()  # earlier variants count towards its limit
        # each mapping recompiles one function; beyond the limit it would run eagerly
        # private: torch.compiler has no such limit
        torch._dynamo.config.recompile_limit = 64
        sizes = {"batch": case.batch, "length": case.length, "heads": case.heads}
        if case.group == "step":
            return {**sizes, "rows": race.rows(step.maker(case, race.device), "step")}
        checked, rows = Checked(case, race.device), list[Row]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SDPA warns before it raises
            for which, cache in itertools.product(PASSES, case.caches):
                clock = DeviceClock(cold=cache == "cold") if cache else wall_clock
                with torch.set_grad_enabled(which == PASSES[1]):
                    rows += race.rows(checked.task, which, cache, clock)
        return {**sizes, "rows": rows}

    def pictures(self, record: Record) -> dict[str, Figure]:
        """Plot time and memory by length, for groups with at least two lengths."""
        from benchmarks.attention.pictures import PLOTTED, draw

        groups = {
            group: [case for case in record["cases"] if case["group"] == group]
            for group in ("length", "causal")
        }
        return {
            f"-{group}-{measure}": draw(found, *PLOTTED[measure], record["environment"]["device"])
            for group, found in groups.items()
            if len({case["length"] for case in found}) > 1
            for measure in PLOTTED
        }


class Checked:
    """Make the tasks of a case, and check them against the float32 reference.

    Outputs are checked by their maximum error. Gradients are checked by the norm of the error,
    because they jump at rounded scores. A wrong output fails both passes. Wrong contestants are not
    timed.
    """

    def __init__(self, case: AttentionCase, device: torch.device) -> None:
        self.data = problem(case, device)
        self.facts: dict[str, dict[str, Any]] = defaultdict(dict)
        self.expected: dict[tuple[str, bool], list[Tensor]] = {}

    def task(self, contestant: Peer | Ours) -> Task:
        """Return the timed call: inference, or forward and backward.

        Raises:
            ValueError: wrong results.
        """
        facts = self.facts[contestant.name]
        if isinstance(contestant, Ours):
            facts["implementation"] = contestant.implementation(self.data)
        run = self.data.call(contestant.make(self.data))
        case = self.data.case
        if "wrong" not in facts and not case.dropout and case.length <= CHECKED:
            self._check(run, contestant.mapping, facts)
        if "wrong" in facts:
            raise ValueError(facts["wrong"])
        return Task(run, facts=facts)

    def _check(
        self, run: Callable[[], tuple[Tensor, ...]], name: str, facts: dict[str, Any]
    ) -> None:
        case, train = self.data.case, torch.is_grad_enabled()
        if (name, train) not in self.expected:
            self.expected[name, train] = _expected(name, self.data.first())
        valid = case.length if case.lengths is None else case.lengths[0]
        pairs = [
            (ours[:1, :2, :valid].float(), theirs[:, :, :valid])
            for ours, theirs in zip(run(), self.expected[name, train], strict=True)
        ]
        if train:
            error = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
            tolerance = GRADIENT_TOLERANCE[self.data.query.dtype]
        else:
            error = (pairs[0][0] - pairs[0][1]).abs().max().item()
            tolerance = TOLERANCE[self.data.query.dtype]
        facts["gradient_error" if train else "max_error"] = error
        if not error <= tolerance:
            kind = "its gradients differ" if train else "differs"
            facts["wrong"] = f"wrong: {kind} from the float32 reference by {error:.2g}"


def _expected(name: str, sample: Problem) -> list[Tensor]:
    mapping = mapping_of(name)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = sample.case.causal
        return attention(q, k, v, mapping, mask=sample.seen, causal=causal, impl="reference")

    return [t.detach() for t in sample.call(forward)()]
