"""Where a benchmark writes."""

from __future__ import annotations

import argparse
from pathlib import Path

OWN, PUBLISHED = Path("runs/benchmarks"), Path("results/benchmarks")


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add --out and --publish, which both give `out`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--out", type=Path, help="folder to write into; default: %(default)s")
    group.add_argument(
        "--publish",
        dest="out",
        action="store_const",
        const=PUBLISHED,
        help=f"write into {PUBLISHED}, whose records README and docs quote",
    )
    parser.set_defaults(out=OWN)
