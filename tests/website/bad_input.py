"""Records that do not fit docs/differences.schema.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bad_input import Wrong
from website.differences.studies import read_entries

RESULTS = Path(__file__).parents[2] / "results"


def run(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], Any]:
    """Reads a sweep whose first record is changed."""

    def call(folder: Path) -> Any:
        theirs, ours = RESULTS / "bottleneck/small", folder / "results/bottleneck/other"
        ours.mkdir(parents=True)
        (ours / "sweep.json").write_text((theirs / "sweep.json").read_text())
        record = json.loads((theirs / "runs.jsonl").read_text().splitlines()[0])
        change(record)
        (ours / "runs.jsonl").write_text(json.dumps(record) + "\n")
        return read_entries(folder / "results")

    return call


def models(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], Any]:
    """Reads a record of single models with a change."""

    def call(folder: Path) -> Any:
        record = json.loads((RESULTS / name).read_text())
        change(record)
        (folder / "results" / name).parent.mkdir(parents=True)
        (folder / "results" / name).write_text(json.dumps(record))
        return read_entries(folder / "results")

    return call


ROWS = [
    Wrong(
        "a record without a device",
        run(lambda record: record["results"].pop("device")),
        ValueError,
        r"other/runs\.jsonl line 1: results: 'device' is a required property; "
        r"docs/contribute-results\.md",
    ),
    Wrong(
        "a record with an unknown status",
        run(lambda record: record.update(status="done")),
        ValueError,
        r"status: 'done' is not one of \['finished', 'diverged', 'failed'\]",
    ),
    Wrong(
        "a record with a negative index",
        run(lambda record: record.update(index=-1)),
        ValueError,
        r"index: -1 is less than the minimum of 0",
    ),
    Wrong(
        "a record whose config is a list",
        run(lambda record: record.update(config=[1])),
        ValueError,
        r"config: \[1\] is not of type 'object'",
    ),
    Wrong(
        "a comparison without rows",
        models("compare/minilm-sts-b.json", lambda record: record.pop("rows")),
        ValueError,
        r"minilm-sts-b\.json: \$: 'rows' is a required property",
    ),
    Wrong(
        "fine-tuned models without softmax",
        models("conversion/mrpc/converted-first.json", lambda record: record.update(runs=[])),
        ValueError,
        r"converted-first\.json: runs: \[\] does not contain items",
    ),
]
