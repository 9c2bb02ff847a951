"""Write the sentences of MRPC's and SST-2's training sets, to convert a sentence encoder with.

Run as: python -m experiments.conversion.sentences GLUE_FOLDER texts.txt

Each is written once. Phrases of SST-2 are left out, which unlike sentences end without a mark, and
so are sentences of the dev set of STS-B, on which the conversion is measured.
"""

from __future__ import annotations

from pathlib import Path

from sparse_attn.cli.errors import input_errors
from sparse_attn.cli.parser import LineParser
from sparse_attn.conversion.inputs import unmeasured
from sparse_attn.evaluation.data import read_split
from sparse_attn.evaluation.tasks import get_task
from sparse_attn.system.files import write_text

MARKS = (".", "?", "!")


def sentences(folder: Path) -> list[str]:
    """Return the sentences of the GLUE download in this folder."""
    found = _texts(folder, "MRPC", "train")
    found += [text for text in _texts(folder, "SST-2", "train") if text.endswith(MARKS)]
    measured = _texts(folder, "STS-B", "dev")
    kept = unmeasured([(text,) for text in dict.fromkeys(found)], [(text,) for text in measured])
    return [text for (text,) in kept]


def _texts(folder: Path, name: str, split: str) -> list[str]:
    task = get_task(name)
    rows = read_split(task, folder, split)
    columns = ("text_a", "text_b")[: len(task.text)]
    return [text.strip() for column in columns for text in rows[column]]


def main() -> None:
    """Write the file of the command line."""
    parser = LineParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="GLUE_FOLDER", help="the GLUE download")
    parser.add_argument("file", type=Path, metavar="FILE", help="for the sentences, one a line")
    options = parser.parse_all()
    with input_errors():
        write_text(options.file, "\n".join(sentences(options.folder)) + "\n")


if __name__ == "__main__":
    main()
