"""The table of mappings in docs/guide/mappings.md says what the registry and the kernels say."""

import re
from pathlib import Path

import torch

from sparse_attn import Mapping, mapping_names
from sparse_attn.kernels import flex
from sparse_attn.kernels.inputs import AttentionInputs, fold_weights
from sparse_attn.mappings import MappingSpec, get_spec

PAGE = Path(__file__).parents[1] / "docs/guide/mappings.md"
PLAIN = str.maketrans("łé", "le")


def table() -> dict[str, list[str]]:
    """The cells of each row, by the name of its mapping."""
    text = PAGE.read_text().split("## Side by side")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|(.*)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)] for name, rest in rows}


def library() -> list[MappingSpec]:
    """Without what other tests of this process have registered."""
    specs = [get_spec(name) for name in mapping_names()]
    return [spec for spec in specs if spec.function.__module__.startswith("sparse_attn")]


def learned(spec: MappingSpec) -> str:
    if spec.weights is not None:
        return "always"
    if not spec.parameters:
        return ""
    return "yes" if any(p.learnable and not p.per_entry for p in spec.parameters) else "no"


def fused(mapping: Mapping) -> str:
    row = torch.randn(1, 1, 2, 4)
    inputs = fold_weights(AttentionInputs(row, row, row, mapping))
    if inputs.mapping.spec.kernel is not None:
        return "CPU, GPU"
    return "GPU" if flex.unsupported_reason(inputs) is None else "no"


def test_table_of_mappings() -> None:
    rows = table()
    assert sorted(rows) == sorted(spec.name for spec in library())
    shifted = PAGE.read_text().split("**Shifts**")[1].split("the others")[0]
    for spec in library():
        _, zeros, parameters, learns, runs, source = rows[spec.name]
        assert (zeros == "no") == (not spec.zeros), spec.name
        assert (f"`{spec.name}`" in shifted) != spec.translation_invariant, spec.name
        takes = (*spec.options, *spec.parameters)
        given = ", ".join(f"{p.name} {p.range} ({p.shown_default})" for p in takes)
        assert parameters == given, spec.name
        assert learns == learned(spec), spec.name
        assert runs == fused(Mapping(spec.name)), spec.name
        if not source.startswith("a control"):
            assert source.translate(PLAIN) == spec.source
