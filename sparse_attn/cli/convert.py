"""A pretrained model made sparse, and what that costs.

Run as:
    sparse-attn convert MODEL --mapping entmax --target-zeros 0.9 --texts texts.txt --out FOLDER
    accelerate launch -m convert MODEL ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sparse_attn.conversion.options import parse
from engine.command import input_errors, interruption
from sparse_attn.system.hub import settle_hub


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, check, convert, measure, print the table and write the page."""
    with interruption("the same command continues"), input_errors():
        options = parse(arguments)
        settle_hub(options)
        from sparse_attn.conversion.stages import perform

        record = perform(options)
        if record is not None:
            from sparse_attn.comparison.page import overview

            print("\n".join([*overview(record), "", f"model: {options.out / 'model'}"]))
            print(f"report: {options.out / 'report.html'}")
    if "accelerate" in sys.modules:
        from sparse_attn.system.machine import leave_at_once

        leave_at_once()


if __name__ == "__main__":
    main()
