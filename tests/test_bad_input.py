"""Every row of the tables of wrong input."""

import importlib
import re
from pathlib import Path

import pytest

from tests.bad_input import Wrong

HERE = Path(__file__).parent
TABLES = sorted(path.relative_to(HERE.parent) for path in HERE.glob("*/**/bad_input.py"))
CASES: list[Wrong] = [
    row
    for table in TABLES
    for row in importlib.import_module(".".join(table.with_suffix("").parts)).ROWS
]


def test_every_case_has_a_name_of_its_own() -> None:
    """And the same one in every process, of which pytest-xdist starts several."""
    assert len({case.name for case in CASES}) == len(CASES)
    assert [case.name for case in CASES if " at 0x" in case.name] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_refused(case: Wrong, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(case.error) as raised:
        case.call(tmp_path)
    message = str(raised.value)
    if case.error is SystemExit:
        assert message == "2"
        message = capsys.readouterr().err
    assert re.search(case.says, message, re.DOTALL), message
