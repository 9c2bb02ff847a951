"""Writer of differences.json and differences.png from every study in results/."""

from __future__ import annotations

import json
from pathlib import Path

from sparse_attn.reports import canvas
from sparse_attn.system.files import write_text
from website.differences.figure import draw
from website.differences.studies import read_entries, without_entries


def write(results: Path, folder: Path) -> str:
    """Write both files; return a summary with the records that give no entry.

    Raises:
        ValueError: a record does not fit; nothing is written.
        KeyError: a record of the figure is missing; nothing is written.
    """
    entries = read_entries(results)
    canvas.save(draw(entries), folder / "differences.png")
    lines = ",\n".join(json.dumps(vars(entry)) for entry in entries)
    write_text(folder / "differences.json", f"[\n{lines}\n]\n")
    silent = ", ".join(without_entries(results, entries)) or "none"
    return f"Differences from softmax: {len(entries):,}. Records that give none: {silent}"
