"""The tables of mappings in docs/ say what the registry and the kernels say."""

import math
import re
from pathlib import Path

import torch

from sparse_attn import Mapping, mapping_names
from sparse_attn.kernels import flex
from sparse_attn.kernels.inputs import AttentionInputs, fold_weights
from sparse_attn.mappings import MappingSpec, get_spec
from sparse_attn.mappings.derived import BETA, DELTA, GAMMA
from sparse_attn.mappings.syntax import parse_mapping

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "guide/mappings.md"
FUNCTIONS = DOCS / "attention-functions.md"
INF = math.inf
FORMS = {  # how a parameter of this range is stored
    (0.0, INF): "softplus(raw)", (0.0, 1.0): "sigmoid(raw)", (1.0, 2.0): "1 + sigmoid(raw)",
    (1.0, INF): "1 + softplus(raw)", (-INF, INF): "raw", (-INF, 1.0): "1 - softplus(raw)",
    (-INF, 0.0): "-softplus(raw)", (0.001, INF): "0.001 + softplus(raw)",
}  # fmt: skip
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


def test_what_can_be_learned() -> None:
    """Each learnable parameter is there, with the map of its range."""
    text = (DOCS / "guide/learning.md").read_text().replace("\N{MINUS SIGN}", "-")
    rows = re.findall(r"^\| (.*`[\w-]+`.*|any.*) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    said = {name: row[1:] for row in rows for name in re.findall(r"`([\w-]+)`", row[0]) or ["any"]}
    for spec in library():
        learns = [p for p in spec.parameters if p.learnable and not p.per_entry]
        if not learns or spec.weights is not None:
            continue
        what, stored = said[spec.name]
        assert set(re.findall(r"\w+", what)) >= {p.name for p in learns}, spec.name
        for p in learns:
            assert FORMS[p.low, p.high] in stored, p
    assert set(re.findall(r"\w+", said["scaled-NAME"][0])) > {p.name for p in (DELTA, BETA, GAMMA)}
    assert said["any"] == ("sink", "raw")


def test_every_mapping_has_a_section() -> None:
    sections = re.findall(r"^## ([a-z-]+(?:NAME)?)$", PAGE.read_text(), re.MULTILINE)
    assert sections == [*table(), "mixed-NAME", "scaled-NAME"]


def test_number_of_mappings() -> None:
    assert f"lists all {len(library())};" in PAGE.read_text()
    assert f"All {len(library())} are in" in (DOCS.parent / "README.md").read_text()


def test_attention_functions() -> None:
    """Every mapping has a row, whose examples are mappings and whose cost is what runs."""
    rows = re.findall(r"^\|[^|]*\| ([^|]*`[^|]*)\|(.*)\|$", FUNCTIONS.read_text(), re.MULTILINE)
    seen = []
    for here, rest in rows:
        given = [name for name in re.findall(r"`([a-z0-9:=.,-]+)`", here) if name != "sink"]
        cost = re.split(r"(?<!\\)\|", rest)[-2].strip()
        for text in given:
            mapping = parse_mapping(text, FUNCTIONS.name)
            assert (cost == "all weights") == (fused(mapping) == "no"), text
            seen.append(text)
    assert set(seen) >= {spec.name for spec in library()}


def test_mass_of_rows() -> None:
    said = PAGE.read_text().split("- **Mass**")[1].split("\n- ")[0]
    least, free = said.split("(at most one)")
    for spec in library():
        assert (f"`{spec.name}`" in least) == (spec.mass == "at most one"), spec.name
        assert (f"`{spec.name}`" in free) == (spec.mass == "free"), spec.name
