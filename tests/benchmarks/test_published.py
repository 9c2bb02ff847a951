"""Every published page and picture is, byte for byte, what its record gives."""

import json
from pathlib import Path

import matplotlib
import pytest

from benchmarks.measure import get_suite

PUBLISHED = Path(__file__).parents[2] / "results/benchmarks"
RECORDS = sorted(path.relative_to(PUBLISHED).as_posix() for path in PUBLISHED.rglob("*.json"))


def read(name):
    path = PUBLISHED / name
    return get_suite(path.stem.partition("-")[0]), json.loads(path.read_text())


@pytest.mark.parametrize("name", RECORDS)
def test_page(name):
    suite, record = read(name)
    assert suite.page(record) == (PUBLISHED / name).with_suffix(".md").read_text()


def test_pictures(tmp_path):
    made = {}
    for name in RECORDS:
        suite, record = read(name)
        for ending, figure in suite.pictures(record).items():
            figure.savefig(tmp_path / "made.png", dpi=120)
            picture = name.replace(".json", f"{ending}.png")
            made[picture] = (tmp_path / "made.png").read_bytes()
    published = {
        path.relative_to(PUBLISHED).as_posix(): path.read_bytes()
        for path in PUBLISHED.rglob("*.png")
    }
    assert made.keys() == published.keys()
    for name, picture in published.items():
        # other versions draw other letters; each writes its number into the file
        if f"Matplotlib version{matplotlib.__version__},".encode() in picture:
            assert made[name] == picture, name
