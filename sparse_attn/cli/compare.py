"""What a pretrained model does under other mappings than softmax, nothing trained.

Run as:
    sparse-attn compare MODEL --texts texts.txt
    sparse-attn compare MODEL --pairs pairs.tsv --mappings sparsemax,entmax:alpha=1.5 --out DIR
    sparse-attn compare MODEL --task MRPC --data_dir FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence

from sparse_attn.comparison.options import parse
from engine.command import input_errors, interruption
from sparse_attn.system.hub import settle_hub


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, check, compare, print the table and write the page."""
    with interruption("the same command starts over"), input_errors():
        options = parse(arguments)
        settle_hub(options)
        from sparse_attn.comparison.comparison import compare
        from sparse_attn.comparison.page import make_page, overview

        if options.out is not None:  # what cannot be written to fails before minutes of measuring
            options.out.mkdir(parents=True, exist_ok=True)
        record = compare(options)
        print("\n".join(overview(record)))
        if options.out is not None:
            from sparse_attn.system.files import write_json

            report = make_page(record).write(options.out)
            write_json(options.out / "record.json", record)
            print(f"report: {report.path}")


if __name__ == "__main__":
    main()
