"""A benchmark as the command runs it; the tiny model and GLUE folder of the pipeline's tests."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.measure import get_suite
from benchmarks.suite import Pace
from tests.glue.conftest import glue_folder, tiny_model

__all__ = ["glue_folder", "tiny_model"]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs a suite, small and for two rounds, into tmp_path; its record, which the page shows."""

    def run(suite, *arguments):
        kind = type(get_suite(suite))
        monkeypatch.setattr(kind, "paces", {**kind.paces, "quick": Pace(0, 2, 60)})
        given = [suite, "--quick", "--device", "cpu", "--out", tmp_path, *arguments]
        main([str(argument) for argument in given])
        record = json.loads((tmp_path / f"{suite}-cpu.json").read_text())
        page = (tmp_path / f"{suite}-cpu.md").read_text()
        assert page == get_suite(suite).page(record)
        return record

    return run
