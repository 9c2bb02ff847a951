"""Each cell equals softmax on eager attention or the reference, or raises what the record says."""

import json

import pytest

from .__main__ import FILE, row
from .cells import EQUAL, cells, crossed, in_two_processes, verdict
from .subjects import SUBJECTS

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of PEFT, about Transformers
    pytest.mark.filterwarnings("ignore::UserWarning"),
    # Dynamo makes an instance of each autograd function that it traces
    pytest.mark.filterwarnings(
        "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
    ),
]


def cell_id(cell):
    return " / ".join(map(str, cell))


@pytest.fixture(scope="module")
def record():
    return json.loads(FILE.read_text())["cells"]


def places():
    """Row and subject of each cell, as in the record."""
    return [(row(cell), str(cell[0])) for cell in cells()]


def parameters():
    """A subject of each row, and the others by `make slow`."""
    rows, subjects = (list(dict.fromkeys(names)) for names in zip(*places(), strict=True))
    for cell, (name, subject) in zip(cells(), places(), strict=True):
        slow = (rows.index(name) + subjects.index(subject)) % len(subjects) != 0
        yield pytest.param(cell, id=cell_id(cell), marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize("cell", list(parameters()))
def test_cell(cell, record):
    assert verdict(*cell) == record[row(cell)][str(cell[0])]


@pytest.mark.slow
def test_two_processes():
    in_two_processes()


def test_record_has_no_other_cells(record):
    found = [*places(), *(("DDP, two processes", str(subject)) for subject in SUBJECTS)]
    assert sorted(found) == sorted((name, subject) for name in record for subject in record[name])


@pytest.mark.soak
@pytest.mark.parametrize("cell", list(crossed()), ids=cell_id)
def test_whole_cross(cell, record):
    """What a setup or an action alone raises, both together may raise."""
    subject, setup, action = cell
    alone = {record.get(str(part), {}).get(str(subject)) for part in (setup, action)}
    assert verdict(*cell) in {EQUAL, *alone}
