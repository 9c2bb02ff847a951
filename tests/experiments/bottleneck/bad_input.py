"""Wrong input to the bottleneck."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.bottleneck.__main__ import main
from experiments.bottleneck.targets import draw
from tests.bad_input import Wrong
from tests.experiments.bottleneck.tiny import one, sweep


def swept(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: sweep(**changes)


NAN = float("nan")
SEVERAL = "expected one value or several different ones"
UNKNOWN = r"head='hardmax': unknown; expected one of softmax, sigsoftmax"

ROWS = [
    Wrong(f"bottleneck: {name}", call, error, says)
    for name, call, error, says in (
        ("alpha 0", swept(alphas=[0.0]), ValueError, "alpha=0.0: expected a finite number above 0"),
        ("alpha < 0", swept(alphas=[-0.1]), ValueError, "alpha=-0.1: expected"),
        ("alpha nan", swept(alphas=[NAN]), ValueError, "alpha=nan: expected"),
        ("no alpha", swept(alphas=[]), ValueError, rf"alphas=\[\]: {SEVERAL}"),
        ("dimension", swept(dimensions=[5, 0]), ValueError, "dimension=0: expected at least 1"),
        ("twice", swept(dimensions=[5, 5]), ValueError, rf"dimensions=\[5, 5\]: {SEVERAL}"),
        ("vocabulary", swept(vocabularies=[1]), ValueError, "vocabulary=1: expected at least 2"),
        ("contexts", swept(contexts=0), ValueError, "contexts=0: expected at least 1"),
        ("head", swept(heads={"hardmax": {}}), ValueError, UNKNOWN),
        ("no head", swept(heads={}), ValueError, "heads={}: expected at least one"),
        (
            "components",
            swept(heads={"mos": {"components": 0}}),
            ValueError,
            "components=0: expected at least 1",
        ),
        (
            "option",
            swept(heads={"plif": {"units": 3}}),
            TypeError,
            "units=3: unknown parameter; plif takes bound, sink, knots",
        ),
        ("rate", swept(learning_rates=[0.0]), ValueError, "learning_rate=0.0: expected a finite"),
        ("steps", swept(steps=0), ValueError, "steps=0: expected at least 1"),
        ("batch", swept(batch=0), ValueError, "batch=0: expected 1 to contexts=30"),
        ("large batch", swept(batch=31), ValueError, "batch=31: expected 1 to contexts=30"),
        ("seeds", swept(seeds=0), ValueError, r"seeds=0: expected an integer in \[1, 1000\]"),
        ("seed", lambda folder: one(seed=-1), ValueError, "seed=-1: expected an integer"),
        ("pack", lambda f: main(["pack", str(f)]), SystemExit, "holds no record of a sweep; name"),
        (
            "targets of nothing",
            lambda folder: draw(0.1, 0, 3, seed=0),
            ValueError,
            "contexts=0, vocabulary=3: expected at least 1 each",
        ),
        *(
            (
                f"targets of alpha {alpha}",
                lambda folder, alpha=alpha: draw(alpha, 2, 3, seed=0),
                ValueError,
                r"alpha=.*: expected a finite number above 0",
            )
            for alpha in (0.0, -0.1, NAN)
        ),
    )
]
