"""Published numbers of de Brebisson & Vincent 2016."""

from __future__ import annotations

from typing import NamedTuple

from experiments.images.config import ImageSweepConfig

SOURCE = (
    "de Brebisson & Vincent 2016, An Exploration of Softmax Alternatives Belonging to the "
    "Spherical Loss Family"
)


class Published(NamedTuple):
    """Means over runs, standard deviations in brackets, as printed; empty if not given."""

    criterion: str
    error: str
    epochs: str = ""


# keys: data set and split, then loss; the paper does not say how CIFAR was split
_TABLES: dict[tuple[str, str], tuple[str, dict[str, Published]]] = {
    ("mnist", "random"): (
        "table 1, 100 runs on 70,000 images",
        {
            "mse": Published("mse 0.0035 (0.00036)", "0.889 (0.100)", "60 (17)"),
            "softmax": Published("negll 0.0433 (0.0080)", "0.812 (0.104)", "26 (7)"),
            "softmax-abs": Published("negll 0.0437 (0.0097)", "0.813 (0.095)", "25 (8)"),
            "spherical-softmax": Published("negll 0.0311 (0.0031)", "0.828 (0.094)", "27 (9)"),
            "taylor-softmax": Published("negll 0.0292 (0.0034)", "0.785 (0.097)", "22 (7)"),
        },
    ),
    ("mnist", "official"): (
        "table 2, 100 runs",
        {
            "softmax": Published("negll 0.0335 (0.0052)", "0.716 (0.084)", "26 (7)"),
            "taylor-softmax": Published("negll 0.0247 (0.0020)", "0.688 (0.061)", "22 (8)"),
        },
    ),
    ("cifar10", "random"): (
        "table 3, 10 runs of softmax and Taylor softmax, 1 of the others",
        {
            "mse": Published("mse 0.0251", "9.00"),
            "softmax": Published("negll 0.411 (0.032)", "8.52 (0.20)"),
            "spherical-softmax": Published("negll 0.410", "8.37"),
            "taylor-softmax": Published("negll 0.403 (0.034)", "8.07 (0.12)"),
        },
    ),
    ("cifar100", "official"): (
        "table 4, 5 runs",
        {
            "mse": Published("", "99"),
            "softmax": Published("negll 1.69 (0.091)", "32.4 (0.85)"),
            "spherical-softmax": Published("negll 1.90 (0.053)", "33.1 (0.97)"),
            "taylor-softmax": Published("negll 1.88 (0.047)", "33.1 (0.85)"),
        },
    ),
}


def published(sweep: ImageSweepConfig) -> tuple[str, dict[str, Published]]:
    """The published table to compare a sweep with, its rows by loss label."""
    title, rows = _TABLES.get((sweep.data.name, sweep.data.split), ("no table", {}))
    return title, {
        label: rows[loss.name] for label, loss in sweep.losses.items() if loss.name in rows
    }
