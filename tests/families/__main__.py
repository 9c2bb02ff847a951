"""`python -m tests.families` writes results/families/transformers-VERSION.json, and a CSV of it."""

import csv
import json
from pathlib import Path

import torch
import transformers

from sparse_attn.system.machine import device_name, versions
from tests.families.sweep import classes, isolated

FOLDER = Path(__file__).parents[2] / "results/families"


def main() -> None:
    lines, table = [], [("family", "class", "verdict", "reason")]
    for kind, names in classes().items():
        rows = {name: isolated(kind, name).record() for name in names}
        print(kind, *[f"{name}: {row['verdict']}" for name, row in rows.items()], flush=True)
        table += [(kind, name, r["verdict"], r.get("reason", "")) for name, r in rows.items()]
        lines.append(f"  {json.dumps(kind)}: {json.dumps(rows)}")
    head = {
        "device": device_name(torch.device("cpu")),
        "versions": versions("torch", "transformers"),
    }
    text = json.dumps(head)[:-1] + ', "families": {\n' + ",\n".join(lines) + "\n}}\n"
    path = FOLDER / f"transformers-{transformers.__version__}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with path.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)


if __name__ == "__main__":
    main()
