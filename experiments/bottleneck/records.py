"""Records on disk: read, packed into one file, and gathered by what they measure."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bottleneck.config import PackConfig
from experiments.bottleneck.heads import HEADS
from pipeline.files import write_text
from pipeline.report.spread import Estimate, estimate

Record = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The records of one experiment.

    Attributes:
        records: all of them, searches of learning rates included.
    """

    records: list[Record]

    def values(self, name: str) -> list[Any]:
        """What a key of the config takes on, ascending."""
        return sorted({record["config"][name] for record in self.records})

    @property
    def heads(self) -> list[str]:
        """In the order of the figures."""
        found = {record["config"]["head"] for record in self.records}
        return [head for head in HEADS if head in found]

    def final(self, **cell: Any) -> list[Record]:
        """The runs that count, of the cell whose config agrees with `cell`."""
        return [
            record
            for record in self.records
            if record["stage"] == "final" and cell.items() <= record["config"].items()
        ]

    def spread(self, measure: str, **cell: Any) -> Estimate | None:
        """Of `measure` over the seeds; None where no run has finished.

        A floor, which all heads share, counts once a seed.
        """
        finished = [r for r in self.final(**cell) if r["status"] == "finished"]
        found = {r["config"]["seed"]: r[measure] for r in finished}
        return estimate(found.values())

    def count(self) -> Counter[str]:
        """Runs by status, searches included."""
        return Counter(record["status"] for record in self.records)


def read_records(folder: str) -> Results:
    """Every record in *.json (one each) and *.jsonl (one a line) of a folder.

    Raises:
        ValueError: no record there, one that cannot be read, or records of several budgets.
    """
    records: list[Record] = []
    for path in sorted(Path(folder).glob("*.json*")):
        text = path.read_text(encoding="utf-8")
        try:
            parts = text.splitlines() if path.suffix == ".jsonl" else [text]
            found = [json.loads(part) for part in parts]
        except ValueError as error:
            raise ValueError(f"{path} is not readable ({error}); delete it and run again") from None
        if not all("stage" in record for record in found):
            raise ValueError(f"{path} is no record of this experiment; choose another folder")
        records.extend(found)
    if not records:
        raise ValueError(
            f"records_dir={folder}: holds no record; expected the output_dir of a run or a folder "
            "with a packed .jsonl"
        )
    budgets = {tuple(r["config"][name] for name in ("contexts", "steps", "batch")) for r in records}
    if len(budgets) > 1:
        raise ValueError(
            f"records_dir={folder}: holds runs of several budgets (contexts, steps, batch): "
            f"{sorted(budgets)}; expected one experiment a folder"
        )
    return Results(records)


def pack(config: PackConfig) -> int:
    """Write the records of a folder into one file, a line each; return how many."""
    records = read_records(config.records_dir).records
    path = Path(config.file)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(r) + "\n" for r in records))
    return len(records)
