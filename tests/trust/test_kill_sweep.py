"""sweep.json and the records of a sweep are whole wherever it is killed or its disk is full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.sweep.records import SWEEP_FILE, read_records
from engine.sweep.run import check_folder
from tests.trust.killing import Command, Cut
from tests.trust.recording import CONTENT, RECORDS

SIZES = {"sweep": 40, "RTE": 200}


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True], ids=["killed", "full disk"])
def test_records_are_whole(full: bool, tmp_path: Path) -> None:
    folder, at = tmp_path / "sweep", 0
    before: set[str] = set()
    while True:
        at += 1
        for share in (None, 0.5):
            end = Command(
                "tests.trust.recording", [str(folder)], folder, Cut(at, share, SIZES, full)
            ).end()
            found = read_records(folder)
            assert found.faults == []
            assert found.by_hash.keys() >= before
            before = set(found.by_hash)
            # the same command goes on
            check_folder(folder, CONTENT)
            if (folder / SWEEP_FILE).exists():
                assert json.loads((folder / SWEEP_FILE).read_text())["seeds"] == 3
            if not end.killed and end.said == "":
                assert found.by_hash == {record.hash: record for record in RECORDS}
                assert not list(folder.rglob("*.tmp"))
                return
            assert end.killed or "could not be written" in end.said, end.said
