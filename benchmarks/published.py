"""Pages and pictures of the records in results/benchmarks, made from their JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import variants
from benchmarks.command import PUBLISHED
from benchmarks.gpu.page import page as gpu
from benchmarks.measure import get_suite
from sparse_attn.system.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1] / PUBLISHED
# pages of records that are not of a suite
OTHERS = {"variants": variants.page, "gpu": gpu}
# records of finished studies: their code is removed, their pages are no longer generated
STUDIES = ("pages-", "peak-")


def records() -> list[Path]:
    """Return every record with a generated page, named by its suite and device."""
    return sorted(path for path in FOLDER.rglob("*.json") if not path.name.startswith(STUDIES))


def made(path: Path) -> tuple[str, dict[Path, Figure]]:
    """Return the page of a record, and its pictures by file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    name = path.stem.partition("-")[0]
    if name in OTHERS:
        return OTHERS[name](record), {}
    suite = get_suite(name)
    figures = suite.pictures(record)
    return suite.page(record), {
        path.with_name(f"{path.stem}{ending}.png"): figure for ending, figure in figures.items()
    }


def write(path: Path) -> None:
    """Write page and pictures next to a record."""
    page, pictures = made(path)
    write_text(path.with_suffix(".md"), page)
    for picture, figure in pictures.items():
        figure.savefig(picture, dpi=120)
