"""Records on disk: whole or not there, and read with what is wrong with the others."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sparse_attn.engine.sweep.records import (
    FOLDER,
    SWEEP_FILE,
    Record,
    hash_of,
    read_content,
    read_records,
    write_record,
)
from tests.engine.sweep.inline import full_disk

CONFIG = {"task": "RTE", "train": {"seed": 2}}
RECORD = Record(
    task="RTE",
    mapping="r-softmax",
    stage="final",
    index=2,
    hash=hash_of({"label": "r-softmax", **CONFIG}),
    config=CONFIG,
    status="finished",
    results={"score": 0.75, "predictions": {"dev": {"predicted": [0, 1], "labels": [1, 1]}}},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir()
    write_record(tmp_path, RECORD)
    return tmp_path


def test_round_trip(folder: Path) -> None:
    hashed = hash_of({"label": "t-softmax", **CONFIG})
    failed = replace(
        RECORD, mapping="t-softmax", hash=hashed, status="failed", error="lost", results=None
    )
    write_record(folder, failed)
    records = read_records(folder)
    assert records.by_hash == {RECORD.hash: RECORD, failed.hash: failed}
    assert records.faults == []
    assert RECORD.score == 0.75
    with pytest.raises(ValueError, match="RTE t-softmax final 2: failed"):
        _ = failed.score


def test_file_cut_short_and_other_versions(folder: Path) -> None:
    path = next((folder / FOLDER).iterdir())
    whole = path.read_text()
    for name, text, says in (
        ("short", whole[: len(whole) // 2], "truncated or corrupt"),
        ("empty", "", "truncated or corrupt"),
        ("bytes", "\xff", "truncated or corrupt .*utf-8"),
        ("list", "[]", "has format None, but this version reads format 1"),
        ("old", json.dumps({**json.loads(whole), "format": 0}), "has format 0"),
        ("key", json.dumps({**json.loads(whole), "more": 0}), "not a record of a run .*more"),
        ("bare", json.dumps({**json.loads(whole), "results": {}}), "without a score"),
        ("half", '{"format": 1}', "not a record of a run .*missing"),
        ("none", json.dumps({**json.loads(whole), "config": None}), "not a record .*config: None"),
        (
            "edited",
            whole.replace('"seed": 2', '"seed": 3'),
            "its config has hash .*, the record says",
        ),
    ):
        broken = path.with_name(f"{name}.json")
        broken.write_bytes(text.encode("latin-1"))
        records = read_records(folder)
        assert list(records.by_hash) == [RECORD.hash]
        assert len(records.faults) == 1
        assert records.faults[0].startswith(f"{name}.json: ")
        assert re.search(says, records.faults[0]), records.faults
        broken.unlink()


def test_folders_without_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: no such folder; name the output_dir of a sweep"):
        read_content(tmp_path / "nowhere", "glue")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / SWEEP_FILE).touch()
    with pytest.raises(ValueError, match=r"has no sweep\.json; .*writes; sweeps below it: one"):
        read_content(tmp_path, "glue")


def test_full_disk_loses_nothing_written_before(folder: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="too large"):
        write_record(folder, replace(RECORD, results={"score": 0.1, "text": "x" * 1000}))
    records = read_records(folder)
    assert records.by_hash == {RECORD.hash: RECORD}
    assert records.faults == []
    assert len(list((folder / FOLDER).iterdir())) == 1


def test_hash_depends_on_content_alone() -> None:
    assert hash_of({"a": 1, "b": [1.5]}) == hash_of({"b": [1.5], "a": 1})
    assert hash_of({"a": 1}) != hash_of({"a": 2})
    assert hash_of({}) == "44136fa355b3"
