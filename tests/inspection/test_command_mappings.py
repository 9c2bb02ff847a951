"""`sparse-attn mappings`, how the command line spells mappings, and what it says of itself."""

import os
import re
import subprocess

import pytest

from sparse_attn import Mapping, MappingSpec, functional, mapping_names, register_mapping
from sparse_attn.cli import main
from sparse_attn.mappings import get_spec, registry
from sparse_attn.mappings.syntax import describe, parse_mapping, parse_mappings
from tests.commands import refusal, run


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(arguments)
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_table_has_the_whole_registry(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    register_mapping(MappingSpec("own", lambda scores, **_: scores, lambda scores, **_: scores))
    lines = {line.split()[0]: line for line in printed(capsys, "mappings").splitlines() if line}
    for name in mapping_names():
        spec, line = get_spec(name), lines[name]
        assert spec.source in line
        for parameter in (*spec.parameters, *spec.options):
            assert f"{parameter.name} = {parameter.shown_default} in {parameter.range}" in line
        zeros = "depends" if spec.dense else "yes" if spec.zeros else "no"
        assert line.split()[1] == zeros
        assert (f"{name} ({spec.mass})" in lines["rows"]) == (spec.mass != "one")
    assert printed(capsys, "mappings", "own").startswith("own\n")


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("softmax", "cpu, triton, flex"),
        ("temperature-softmax", "flex"),
        ("plif", "no; the reference computes it"),
        ("mixed-entmax", "no; the reference computes it"),
        ("scaled-entmax", "cpu, triton"),
        ("sigmoid", "cpu, triton"),
    ],
)
def test_one_in_full(name: str, fused: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "mappings", name)
    spec = get_spec(name)
    facts = dict(re.findall(r"^(\w+(?: form)?) {2,}(.*)$", text, re.MULTILINE))
    assert facts["fused"] == fused
    assert facts["source"] == spec.source
    assert facts.get("mass", "one").split(",")[0] == spec.mass
    assert ("sink" in facts) == (name != "sigmoid")
    assert f'patch_model(model, "{name}"' in facts["patch"]
    for parameter in (*spec.parameters, *spec.options):
        assert f"{parameter.name} = {parameter.shown_default} in {parameter.range}" in text
    if not name.startswith(("mixed-", "scaled-")):
        assert text.splitlines()[2] == str(spec.function.__doc__).splitlines()[0]
        public = name.replace("-", "_")
        assert public in functional.__all__
        assert facts["function"] == f"sparse_attn.functional.{public}"
        assert facts.get("losses", "") == ", ".join(spec.losses)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("softmax:sink=0", {"patch": '"softmax", sink=0)', "mass": "at most one", "fused": "cpu"}),
        ("clipped-softmax:zeta=1.2", {"fused": "no", "mass": "at most one, at the default"}),
        ("plif:knots=8", {"patch": "bound=20, knots=8", "sink": "sink=SCORE"}),
    ],
)
def test_one_with_its_parameters(
    text: str, facts: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As `inspect` and `compare` spell them."""
    shown = printed(capsys, "mappings", text)
    for name, value in facts.items():
        assert re.search(rf"^{name} +.*{re.escape(value)}", shown, re.MULTILINE), shown


def test_labels() -> None:
    for name in mapping_names():
        assert describe(Mapping(name)).split()[0] == name
    text = "scaled-entmax:alpha=1.5,beta=2,sink=-1"
    label = "scaled-entmax alpha=1.5 sink=-1 delta=0 beta=2 gamma=1"
    assert describe(parse_mapping(text, "--mapping")) == label
    text = "softpick, clipped-softmax: gamma=-0.1, zeta=1.1,top-p-softmax:p=0.5"
    found = parse_mappings(text, "--mappings")
    labels = ["softpick", "clipped-softmax gamma=-0.1 zeta=1.1", "top-p-softmax p=0.5"]
    assert list(found) == labels
    _, clipped, top = found.values()
    assert (clipped.value("gamma"), clipped.value("zeta"), top.value("p")) == (-0.1, 1.1, 0.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("softmax,alpha=1", "softmax,alpha=1: expected NAME:"),
        ("entmax:alpha", "expected alpha=NUMBER, got 'alpha'"),
        ("softmax:snk=0", "softmax:snk=0: 'snk' is not a .* which takes sink"),
        ("sigmoid:sink=0", "sigmoid:sink=0: sink: sigmoid cannot have one"),
        ("softmax:sink=0,sink=1", "sink is given twice"),
        ("entmax,entmax:alpha=1.50", "entmax alpha=1.5 is given twice"),
        ("r-softmax:r=2", r"expected a number in \[0, 1\]"),
    ],
)
def test_what_is_no_mapping(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"--mappings.*{says}"):
        parse_mappings(text, "--mappings")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mapings"], "mapings: unknown; did you mean mappings?"),
        (["zzz"], "zzz: unknown; expected one of mappings, inspect, compare, "),
        (["mappings", "r-softmx"], "'r-softmx' is unknown; did you mean r-softmax"),
        (["mappings", "--hlep"], "--hlep: unknown; did you mean --help?"),
        (["inspect", "m", "--maping=softmax"], "--maping: unknown; did you mean --mapping?"),
        (["inspect", "--zzz"], "--zzz: unknown; expected one of -h, --help, --"),
        # an abbreviation may come to mean another option
        (["inspect", "m", "t", "--out", "a.html"], "--out: unknown; did you mean --output?"),
        # a text is no option
        (["inspect", "m", "--maping is a word", "--", "--maping"], "--maping: one too many"),
    ],
)
def test_what_is_misspelled_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(main, capsys, *arguments)


@pytest.mark.slow
def test_a_reader_who_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"capture_output": False, "stdout": writing, "stderr": subprocess.PIPE}
    done = run("-m", "sparse_attn", "mappings", timeout=120, **streams)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
