"""`inspect`: what the heads of a model keep and drop in one text, under two mappings."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparse_attn.commands.errors import input_errors

if TYPE_CHECKING:
    from sparse_attn.commands.reading import Reading
    from sparse_attn.inspection import AttentionRecord
    from sparse_attn.mappings import Mapping

EXAMPLES = """\
examples:
  python -m sparse_attn inspect google-bert/bert-base-uncased "The trophy does not fit in the case."
  python -m sparse_attn inspect runs/sst2/model "A gem." --mapping entmax:alpha=1.5
  python -m sparse_attn inspect gpt2 "It was" --mapping sparsemax --mapping r-softmax:r=0.3
  python -m sparse_attn inspect runs/mrpc/model "He left." --pair "He went away." --output mrpc.html

The two sides are softmax and r-softmax; --mapping replaces the second, given twice both. Of a model
that was saved with mappings they are its own mappings and softmax. The mappings and their
parameters: python -m sparse_attn mappings.
"""
MAX_TOKENS = 128


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    parser = commands.add_parser(
        "inspect",
        help="see what each head keeps and drops in a text",
        description="Print a table of a model's attention layers and write one HTML page: point "
        "at a token and see what each head keeps and drops, two mappings side by side. The page "
        "holds everything it needs and works without a network.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, or an id on the Hugging Face hub")
    parser.add_argument("text", metavar="TEXT", help="the text to look at, in quotes")
    parser.add_argument("--pair", metavar="TEXT", help="the second text of a sentence pair")
    parser.add_argument(
        "--mapping",
        action="append",
        default=[],
        metavar="NAME[:PARAMETER=VALUE,...]",
        help="a mapping to compare, such as r-softmax:r=0.3; at most twice",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("attention.html"),
        metavar="FILE.html",
        help="where the page goes (%(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=MAX_TOKENS,
        metavar="N",
        help="refuse longer texts, which make large pages (%(default)s)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code that comes with the model; read it first",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check, read, record, and only then write."""
    with input_errors():
        _check(options)
        mappings = [mapping_of(text) for text in options.mapping]
    with _quiet_transformers():
        from sparse_attn.commands.reading import read

        with input_errors(NotImplementedError):
            reading = read(options)
            sides = _sides(reading, mappings)
            page = _page(options.model, reading, sides)
    from sparse_attn.inspection.page import write_page

    with input_errors():
        write_page(options.output, page, overwrite=options.force)
    for name, record in sides.items():
        print(f"{name}\n{record.table()}\n")
    if reading.note:
        print(reading.note)
    print(f"page: {options.output} ({len(page) / 1e3:,.0f} kB); open it in a browser")


def mapping_of(text: str) -> Mapping:
    """The mapping that `NAME` or `NAME:parameter=value,...` describes.

    Raises:
        ValueError: another form, an unknown name or parameter, a value out of range.
    """
    from sparse_attn.mappings import Mapping, get_spec

    name, _, rest = text.partition(":")
    try:
        known = [p.name for p in (*get_spec(name).parameters, *get_spec(name).options)]
        values = [_value(part, known) for part in rest.split(",")] if rest else []
        if twice := [name for name, count in Counter(n for n, _ in values).items() if count > 1]:
            raise ValueError(f"{twice[0]} is given twice")
        return Mapping(name, **dict[str, Any](values))
    except (ValueError, RuntimeError) as error:  # no memory holds 10^12 knots
        raise ValueError(f"--mapping {text}: {error}") from None


def _value(text: str, known: list[str]) -> tuple[str, float]:
    """The name and number of `parameter=value`."""
    name, _, value = (piece.strip() for piece in text.partition("="))
    if name not in known:
        takes = ", ".join(known) or "none"
        raise ValueError(f"{name!r} is no parameter of this mapping, which takes {takes}")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"expected {name}=NUMBER, got {text!r}") from None
    # knots and units are counts
    return name, int(number) if number.is_integer() else number


def _check(options: argparse.Namespace) -> None:
    """What can be found wrong before anything is loaded."""
    for name, text in (("TEXT", options.text), ("--pair", options.pair)):
        if text is not None and not text.strip():
            raise ValueError(f"{name} is empty; give the text to look at, in quotes")
        # Python turns bytes of an argument that are no UTF-8 into lone surrogates
        if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError(f"{name} holds bytes that are no UTF-8; convert it first")
    if len(options.mapping) > 2:
        raise ValueError(
            f"--mapping is given {len(options.mapping)} times: expected at most two, one a side"
        )
    if options.max_tokens < 1:
        raise ValueError(f"--max-tokens {options.max_tokens}: expected at least 1")
    output: Path = options.output
    if output.suffix not in (".html", ".htm"):
        raise ValueError(f"--output {output}: expected a name that ends in .html")
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}; make it first")
    if output.is_dir():
        raise ValueError(f"--output {output}: is a folder; name a file in it")
    if os.path.lexists(output) and not options.force:
        raise ValueError(
            f"--output {output}: exists; add --force to replace it, or name another file"
        )


def _sides(reading: Reading, mappings: list[Mapping]) -> dict[str, AttentionRecord]:
    """The records of the two sides, by name."""
    from sparse_attn.mappings import Mapping
    from sparse_attn.patching import is_patched

    own = _own_mappings(reading)
    chosen = mappings or [Mapping("r-softmax" if own == "softmax" else "softmax")]
    pair = chosen if len(chosen) == 2 else [None, *chosen]
    names = [own if mapping is None else _shown(mapping) for mapping in pair]
    if names[0] == names[1]:
        raise ValueError(f"--mapping: both sides would be {names[0]}; choose another")
    if pair[0] is None and is_patched(reading.model):
        names[0] = f"saved: {own}"
    return {name: _record(reading, mapping) for name, mapping in zip(names, pair, strict=True)}


def _own_mappings(reading: Reading) -> str:
    """The mappings that the model has; softmax where it is not patched."""
    from sparse_attn.layers import attention_layers
    from sparse_attn.patching import mappings_of

    layers = attention_layers(reading.model)
    found = (_shown(mapping) for layer in layers for mapping in mappings_of(layer))
    return ", ".join(dict.fromkeys(found)) or "softmax"


def _shown(mapping: Mapping) -> str:
    """`r-softmax r=0.15`; of a learned parameter not the value, which layers differ in."""
    texts = [mapping.name]
    for name, value in mapping.parameter_values().items():
        if name in mapping.learned:
            texts.append(f"{name} learned")
        else:
            texts.append(f"{name} per head" if isinstance(value, list) else f"{name}={value:.12g}")
    return " ".join(texts)


def _record(reading: Reading, mapping: Mapping | None) -> AttentionRecord:
    """One forward pass, with this mapping in all layers; None: with those the model has."""
    from torch import no_grad

    from sparse_attn.inspection import record_attention
    from sparse_attn.patching import patched

    special = reading.tokenizer.all_special_ids
    change: Any = nullcontext()
    if mapping is not None:
        change = patched(reading.model, mapping.name, **mapping.parameter_values())
    model = reading.model
    recording = record_attention(model, special_ids=special, weights=True)
    with change, recording as record, no_grad():
        reading.run()
    return record


def _page(model: str, reading: Reading, sides: dict[str, AttentionRecord]) -> str:
    from sparse_attn.inspection.page import attention_page

    # pages are passed on: where a model lies on this machine is nobody's business
    name = Path(model).resolve().name if Path(model).is_dir() else model
    return attention_page(
        sides,
        reading.tokens,
        title=f"Attention in {name}",
        special_mask=reading.special_mask,
    )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars and no reports of heads that are left out on purpose."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
