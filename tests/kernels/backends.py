"""Which implementation runs a test, and where: pairs of a backend and what it is tested on."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from .problems import Inputs, Problem

HAS_GPU = torch.cuda.is_available()
INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Backend:
    """An implementation and the device of its tensors."""

    impl: str
    device: str = "cpu"

    def __str__(self) -> str:
        return self.impl if self.device == "cpu" else f"{self.impl}-{self.device}"

    def inputs(self, problem: Problem) -> Inputs:
        """In float32, on the device."""
        return Inputs(problem, device=self.device)


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


def over(names: str, cases: Iterable[Any], few: Iterable[Any], cpu: Any = None) -> Any:
    """Parametrize `backend` and `names`: the interpreter is slow and takes only `few` cases.

    The kernels of the CPU take those of `cpu`, where another test says the same of them.
    """
    cases = list(cases)
    pairs = [
        pytest.param(backend, *case, marks=MARKS[backend], id="-".join(map(str, (backend, *case))))
        for backend, some in {CPU: cases if cpu is None else cpu, TRITON: few, CUDA: cases}.items()
        for case in some
    ]
    return pytest.mark.parametrize(("backend", *names.split()), pairs)


def on(cases: Iterable[Any], few: Iterable[Any] = (), cpu: Any = None) -> Any:
    """As `over` of the one name `case`."""
    return over("case", zip(cases), zip(few), None if cpu is None else zip(cpu))


def each(*backends: Backend) -> Any:
    """Parametrize `backend` alone."""
    pairs = [pytest.param(b, marks=MARKS[b], id=str(b)) for b in backends or (CPU, TRITON, CUDA)]
    return pytest.mark.parametrize("backend", pairs)
