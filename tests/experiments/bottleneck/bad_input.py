"""Wrong input to the bottleneck."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.bottleneck.targets import draw
from tests.bad_input import Wrong
from tests.experiments.bottleneck.tiny import one, sweep


def swept(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: sweep(**changes)


ROWS = [
    Wrong(f"bottleneck: {name}", call, error, says)
    for name, call, error, says in (
        ("alphas", swept(alphas=[0.0]), ValueError, "alpha=0.0"),
        ("dimensions", swept(dimensions=[5, 5]), ValueError, "dimensions=.* different"),
        ("vocabularies", swept(vocabularies=[1]), ValueError, "vocabulary=1"),
        ("contexts", swept(contexts=0), ValueError, "contexts=0"),
        ("heads", swept(heads={"hardmax": {}}), ValueError, "'hardmax': unknown"),
        ("option", swept(heads={"plif": {"units": 3}}), TypeError, "units=3: unknown"),
        ("steps", swept(steps=0), ValueError, "steps=0"),
        ("batch", swept(batch=31), ValueError, "batch=31"),
        ("seeds", swept(seeds=0), ValueError, "seeds=0"),
        ("seed", lambda _: one(seed=-1), ValueError, "seed=-1"),
        ("targets", lambda _: draw(float("nan"), 2, 3, seed=0), ValueError, "alpha=nan"),
    )
]
