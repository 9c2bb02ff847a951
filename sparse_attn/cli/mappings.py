"""`mappings`: list the registered mappings, or describe one."""

from __future__ import annotations

import argparse
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from sparse_attn.cli.errors import input_errors

if TYPE_CHECKING:
    from sparse_attn.mappings import Mapping, MappingSpec, ParameterSpec

EXAMPLES = """\
examples:
  sparse-attn mappings              all of them, one line each
  sparse-attn mappings r-softmax    one in full: formula, parameters, kernels, source
  sparse-attn mappings entmax:alpha=1.2,sink=0    the same with these parameters
"""

NOTES = """
zeros: whether exact zeros can occur at valid positions; "depends" on the parameters
rows sum to one at the default parameters, except {masses}
mixed-NAME is (1 - mix) softmax + mix NAME, with mix = 1 in [0, 1]
scaled-NAME is NAME((delta + beta (log n)^gamma) z), n the number of valid positions
detached-r-softmax is r-softmax with the gradient of its authors' code, which holds t constant
sink, which most take as well, is the score of a virtual key of value 0: rows sum to at most one"""


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    parser = commands.add_parser(
        "mappings",
        help="list the probability mappings",
        description="List the probability mappings: parameters with default and range, whether "
        "they give exact zeros, and where they come from.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME[:PARAMETER=VALUE,...]",
        help="show this mapping in full",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the table, or one mapping in full."""
    from sparse_attn.mappings import get_spec, mapping_names

    if options.name is None:
        specs = [get_spec(name) for name in mapping_names()]
        print(table(specs))
        print(NOTES.format(masses=", ".join(f"{s.name} ({s.mass})" for s in specs if _mass(s))))
        return
    from sparse_attn.mappings.syntax import read_mapping

    with input_errors():
        mapping = read_mapping(options.name)
    print(in_full(mapping))


def table(specs: list[MappingSpec]) -> str:
    """Tabulate the mappings, one per line."""
    rows = [("name", "zeros", "parameters", "source")]
    rows += [
        (spec.name, _zeros(spec), "; ".join(map(_parameter, _takes(spec))) or "none", spec.source)
        for spec in specs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def in_full(mapping: Mapping) -> str:
    """Describe one mapping in full, starting with the docstring of its function."""
    import sparse_attn.losses  # noqa: F401 - which the record then lists
    from sparse_attn.mappings.registry import parameters_of

    spec = mapping.spec
    may_have_sink = parameters_of(spec) != spec.parameters
    facts = {
        "zeros": _zeros(spec),
        "mass": _mass(spec) + ", at the default parameters" * (spec.mass == "at most one"),
        "parameters": "\n".join(_parameter(p) + _use(p) for p in spec.parameters) or "none",
        "options": "\n".join(map(_parameter, spec.options)),
        "sink": "sink=SCORE, fixed or learned, if given" if may_have_sink else "",
        "fused": ", ".join(_fused(mapping)) or "no; the reference computes it",
        "patch": _patch(mapping),
        "losses": ", ".join(spec.losses),
        "function": _import_path(spec),
        "source": spec.source,
    }
    width = max(map(len, facts)) + 2
    lines = [
        f"{name:{width}}{value}".replace("\n", "\n" + " " * width)
        for name, value in facts.items()
        if value
    ]
    return "\n".join([spec.name, "", _explained(spec), "", *lines])


def _explained(spec: MappingSpec) -> str:
    from sparse_attn.mappings.variants import PREFIXES, SINK, with_sink

    made = (make for prefix, make in PREFIXES.items() if spec.name.startswith(prefix))
    documented: Any = next(made, spec.function)
    if SINK in spec.parameters and documented is spec.function:
        documented = with_sink
    if isinstance(documented, partial) and "__doc__" not in vars(documented):  # that of Python's
        documented = spec.log_g
    return inspect.getdoc(documented) or ""


def _takes(spec: MappingSpec) -> tuple[ParameterSpec, ...]:
    return (*spec.parameters, *spec.options)


def _parameter(parameter: ParameterSpec) -> str:
    return f"{parameter.name} = {parameter.shown_default} in {parameter.range}"


def _use(parameter: ParameterSpec) -> str:
    if parameter.per_entry:
        return ", a number or one for each score"
    return ", fixed or learned" if parameter.learnable else ", fixed"


def _zeros(spec: MappingSpec) -> str:
    if spec.zeros and spec.dense is not None:
        return "depends"
    return "yes" if spec.zeros else "no"


def _mass(spec: MappingSpec) -> str:
    """Describe the sum of a row, empty if it is one."""
    return "" if spec.mass == "one" else spec.mass


def _fused(mapping: Mapping) -> list[str]:
    """Name the fused implementations of this mapping, available on this machine or not."""
    import torch

    from sparse_attn.kernels import flex
    from sparse_attn.kernels.inputs import AttentionInputs, fold_weights

    one = torch.ones(1, 1, 1, 1)
    with torch.no_grad():
        inputs = fold_weights(AttentionInputs(one, one, one, mapping))
        names = ["cpu", "triton"] if inputs.kernel_reason is None else []
        return names + (["flex"] if flex.unsupported_reason(inputs) is None else [])


def _import_path(spec: MappingSpec) -> str:
    """Return the import path of its function; empty if unnamed."""
    from sparse_attn import functional

    name = getattr(spec.function, "__name__", "")
    if name in functional.__all__:
        return f"{functional.__name__}.{name}"
    return f"{spec.function.__module__}.{name}" if name else ""


def _patch(mapping: Mapping) -> str:
    values = {n: v if v is None else f"{v:.12g}" for n, v in mapping.parameter_values().items()}
    shown = "".join(f", {name}={value}" for name, value in values.items())
    return f'sparse_attn.patch_model(model, "{mapping.name}"{shown})'
