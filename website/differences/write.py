"""Writer of differences.json, differences.png and does-it-help.md from every study in results/."""

from __future__ import annotations

import json
from pathlib import Path

from sparse_attn.reports import canvas
from sparse_attn.reports.page import Plot
from sparse_attn.system.files import write_text
from website.differences.page import make_page
from website.differences.studies import read_entries, without_entries

LINKS = """
The entries as JSON: [differences.json](differences.json), by
[differences.schema.json](differences.schema.json). All is made by `python -m website.records`;
[add your runs](contribute-results.md). Not here:
[ways to convert](conversion-ways/report.md), which compare ways and not mappings;
[the demo's task](results.md#the-demo), where every untrained swap is worse than softmax; and
[speed](results.md#speed).
"""


def write(results: Path, folder: Path) -> str:
    """Write the three files; return a summary with the records that give no entry.

    Raises:
        ValueError: a record does not fit; nothing is written.
    """
    entries = read_entries(results)
    if not entries:
        raise ValueError(f"{results}: no study there compares a mapping with softmax")
    page = make_page(entries)
    for plot in page.blocks:
        if isinstance(plot, Plot):
            canvas.save(plot.figure, folder / f"{plot.name}.png")
    lines = ",\n".join(json.dumps(vars(entry)) for entry in entries)
    write_text(folder / "differences.json", f"[\n{lines}\n]\n")
    shown = page.markdown()
    write_text(folder / "does-it-help.md", shown + LINKS)
    silent = without_entries(results, entries)
    note = f"\n\nNot among them: {', '.join(silent)}" if silent else ""
    return shown.partition("\n## ")[0] + note
