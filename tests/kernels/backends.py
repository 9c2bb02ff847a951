"""Which implementation runs a test, and where: pairs of a backend and what it is tested on."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Backend:
    """An implementation and the device of its tensors."""

    impl: str
    device: str = "cpu"

    def __str__(self) -> str:
        return self.impl if self.device == "cpu" else f"{self.impl}-{self.device}"

    @property
    def exact(self) -> bool:
        """Whether it computes in float64 too, so that rounding hides nothing."""
        return self.impl in ("cpu", "reference")


REFERENCE = Backend("reference")
CPU, TRITON, CUDA = Backend("cpu"), Backend("triton"), Backend("triton", "cuda")
FLEX, FLEX_CUDA = Backend("flex"), Backend("flex", "cuda")

MARKS: dict[Backend, Any] = {
    REFERENCE: (),
    CPU: (),
    TRITON: (
        pytest.mark.skipif(not INTERPRETS, reason="Triton is not in interpreter mode"),
        # the interpreter computes with numpy, which warns of the infinities of masked scores
        pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    ),
    CUDA: (pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")),
    # torch's own inductor imports a module that torch deprecates
    FLEX: (pytest.mark.filterwarnings("ignore::DeprecationWarning"),),
    FLEX_CUDA: (
        pytest.mark.gpu,
        pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device"),
        pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    ),
}


def on(cases: Iterable[Any], few: Sequence[Any] = (), flex: Sequence[Any] = ()) -> Any:
    """Parametrize `backend` and `case`: the interpreter is slow and takes only `few` of them."""
    cases = list(cases)
    plan = {CPU: cases, TRITON: few, CUDA: cases, FLEX: flex, FLEX_CUDA: flex}
    pairs = [
        pytest.param(backend, case, marks=MARKS[backend], id=f"{backend}-{case}")
        for backend, some in plan.items()
        for case in some
    ]
    return pytest.mark.parametrize(("backend", "case"), pairs)


def each(*backends: Backend) -> Any:
    """Parametrize `backend` alone."""
    pairs = [pytest.param(b, marks=MARKS[b], id=str(b)) for b in backends or (CPU, TRITON, CUDA)]
    return pytest.mark.parametrize("backend", pairs)


def over(names: str, cases: Iterable[Any], few: Iterable[Any]) -> Any:
    """Parametrize `backend` and `names`: all cases, or `few` of them in the interpreter."""
    pairs = [
        pytest.param(backend, *case, marks=MARKS[backend], id=f"{backend}-{case}")
        for backend, some in {CPU: cases, TRITON: few, CUDA: cases}.items()
        for case in some
    ]
    return pytest.mark.parametrize(("backend", *names.split()), pairs)
