"""Half-precision attention and training steps on a GPU: every mapping as it is timed.

`make gpu-tests` runs all of these first. Triton's interpreter runs one problem of each check.
"""

import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks.attention import step
from benchmarks.attention.cases import AttentionCase
from benchmarks.attention.contestants import CURVES, MAPPINGS

from .backends import CPU, CUDA, MARKS, TRITON
from .problems import SOLVERS, Inputs, Problem, assert_within_budget, solve

GPU = MARKS[CUDA]
BF16, FP16 = torch.bfloat16, torch.float16
# Triton compiles one kernel for all batches, lengths and numbers of heads with the same
# divisibility by 16, so these are the kernels that `benchmarks attention` times
SHAPES = {
    "N=128": Problem("", batch=4, heads=4, kv_heads=4, queries=128, keys=128, dim=64),
    "N=512": Problem("", heads=4, kv_heads=4, queries=512, keys=512, dim=64),
    "MRPC": Problem("", heads=4, kv_heads=4, queries=79, keys=79, dim=64, mask="B11K"),
    "causal": Problem("", batch=1, heads=16, kv_heads=16, queries=1152, keys=1152, dim=64,
                      options={"causal": True}),
}  # fmt: skip
LENGTHS = replace(SHAPES["MRPC"], mask=None, key_lengths=(79, 41))
DECODING = Problem("", queries=1, keys=3000, dim=128)
TINY = Problem("r-softmax", {"r": 0.3125}, queries=17, keys=17, dim=16, key_lengths=(17, 9))
STEPS = [
    AttentionCase("step", "BERT-base", 2, 128, model="BERT-base", dropout=0.1),
    AttentionCase(
        "step", "BERT-base MRPC", 2, 79, lengths=(79, 41), model="BERT-base", dropout=0.1
    ),
]


def problems():
    timed = {title: (title.partition(" ")[0], params) for title, params in MAPPINGS.items()}
    shaped = [(name, shape, timed.values(), BF16) for name, shape in SHAPES.items()]
    shaped += [("lengths", LENGTHS, [timed[name] for name in CURVES], BF16)]
    shaped += [("1 query", DECODING, SOLVERS, FP16)]
    for shape_name, shape, mappings, dtype in shaped:
        for number, (name, params) in enumerate(mappings):
            case = replace(shape, mapping=name, params=params)
            label = f"{shape_name}-{number}-{name}"
            yield pytest.param(CUDA, case, dtype, marks=GPU, id=label)
    # the interpreter multiplies bfloat16 wrongly
    yield pytest.param(TRITON, TINY, FP16, marks=MARKS[TRITON], id="interpreter")
    yield pytest.param(CPU, TINY, torch.float32, id="cpu")


@pytest.mark.parametrize(("backend", "problem", "dtype"), [*problems()])
def test_calls_are_within_budget_and_agree(backend, problem, dtype):
    """Two training calls to the last bit, and inference with them to rounding."""
    impl, device = backend.impl, backend.device
    with poisoned():
        assert_within_budget(problem, impl, dtype, device)
        one, other = (solve(problem, impl, dtype, dtype, device) for _ in range(2))
        with torch.no_grad():
            alone = Inputs(problem, dtype, dtype, device).attend(impl)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    allowed = 4 * torch.finfo(dtype).eps * max(1.0, one["output"].abs().max().item())
    assert (alone - one["output"]).abs().max() <= allowed


@contextmanager
def poisoned():
    """Make `torch.empty` return NaN, so that entries that a kernel does not write show up."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reference need not be deterministic
            assert torch.empty(3).isnan().all()
            yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mapping", step.PATCHED)
@pytest.mark.parametrize("case", STEPS, ids=lambda case: case.name)
def test_weights_are_finite_after_a_step(case, mapping):
    trainer = step.Trainer(case, torch.device("cuda"))
    trainer.use(mapping)
    trainer.step()
    assert_finite(trainer)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_a_compiled_step_is_one_graph_that_cuda_replays(fresh_compiler):
    trainer = step.Trainer(STEPS[0], torch.device("cuda"))
    trainer.use(step.PATCHED[0])
    trainer.compile()
    counters["inductor"].clear()
    for _ in range(3):
        trainer.step()
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert_finite(trainer)


def assert_finite(trainer):
    wrong = [name for name, p in trainer.model.named_parameters() if not p.isfinite().all()]
    assert wrong == []
