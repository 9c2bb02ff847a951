"""`sparse-attn mappings`, and what the command line says of itself."""

import os
import re
import subprocess

import pytest

from sparse_attn import MappingSpec, functional, mapping_names, register_mapping
from sparse_attn.cli import main
from sparse_attn.mappings import get_spec, registry
from tests.commands import run


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(arguments)
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_table_has_the_whole_registry(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {line.split()[0]: line for line in printed(capsys, "mappings").splitlines() if line}
    for name in mapping_names():
        spec, line = get_spec(name), lines[name]
        assert spec.source in line
        for parameter in (*spec.parameters, *spec.options):
            assert f"{parameter.name} = {parameter.shown_default} in {parameter.range}" in line
        zeros = "depends" if spec.dense else "yes" if spec.zeros else "no"
        assert line.split()[1] == zeros
        assert (f"{name} ({spec.mass})" in lines["rows"]) == (spec.mass != "one")


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("softmax", "cpu, triton, flex"),
        ("r-softmax", "cpu, triton"),
        ("weighted-softmax", "cpu, triton, flex"),
        ("temperature-softmax", "flex"),
        ("plif", "no; the reference computes it"),
        ("mixed-entmax", "no; the reference computes it"),
        ("detached-r-softmax", "no; the reference computes it"),
        ("scaled-entmax", "cpu, triton"),
        ("clipped-softmax", "cpu, triton"),
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
    assert ("sink" in facts) == (name not in ("weighted-softmax", "sigmoid"))
    assert f'patch_model(model, "{name}"' in facts["patch"]
    for parameter in (*spec.parameters, *spec.options):
        assert f"{parameter.name} = {parameter.shown_default} in {parameter.range}" in text
    if name.startswith(("mixed-", "scaled-", "detached-")):
        assert text.splitlines()[2].startswith("p = ")
    else:
        formula = str(spec.function.__doc__).splitlines()[0]
        assert text.splitlines()[2] == formula
        public = name.replace("-", "_")
        assert public in functional.__all__
        assert facts["function"] == f"sparse_attn.functional.{public}"
        assert facts.get("losses", "") == ", ".join(spec.losses)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("softmax:sink=0", {"patch": '"softmax", sink=0)', "mass": "at most one", "fused": "cpu"}),
        ("scaled-entmax:alpha=1.2,sink=-1", {"patch": "alpha=1.2, sink=-1, delta=0, beta=0.43"}),
        ("clipped-softmax:zeta=1.2", {"fused": "no", "mass": "at most one, at the default"}),
        ("spherical-softmax:center=-1,eps=1", {"patch": "eps=1, center=-1)", "fused": "flex"}),
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
    if text == "softmax:sink=0":
        assert shown.splitlines()[2].startswith("p = map((z, sigma)) without its last entry")


def test_a_mapping_of_the_user(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    register_mapping(MappingSpec("own", lambda scores, **_: scores, lambda scores, **_: scores))
    assert "\nown " in printed(capsys, "mappings")
    assert printed(capsys, "mappings", "own").startswith("own\n")


@pytest.mark.parametrize("command", [[], ["mappings"], ["inspect"]])
def test_help_teaches(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in command or ["mappings", "inspect"])
    assert not command or f"sparse-attn {command[0]} " in text.split("examples:")[1]


@pytest.mark.slow
def test_an_unknown_name_is_one_line_and_code_2() -> None:
    done = run("-m", "sparse_attn", "mappings", "r-softmx", timeout=120)
    said = "error: mapping='r-softmx' is unknown; did you mean r-softmax, t-softmax, softmax? Or "
    said += "import the module of yours first (--import MODULE)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mapings"], "mapings: unknown; did you mean mappings?"),
        (["zzz"], "zzz: unknown; expected one of mappings, inspect, compare, convert, glue, "
         "images, multilabel, language-modeling, bottleneck, length, benchmarks"),
        (["--hlep"], "--hlep: unknown; did you mean --help?"),
        (["mappings", "--hlep"], "--hlep: unknown; did you mean --help?"),
        (["inspect", "m", "--maping=softmax"], "--maping: unknown; did you mean --mapping?"),
        (["inspect", "--zzz"], "--zzz: unknown; expected one of -h, --help, --file, --pair, "
         "--generate, --heads, --mapping, --output, --force, --max-tokens, --trust-remote-code, "
         "--import"),
        # an abbreviation may come to mean another option
        (["inspect", "m", "t", "--out", "a.html"], "--out: unknown; did you mean --output?"),
        (["inspect", "m"], "one of the arguments TEXT --file is required; see sparse-attn "
         "inspect --help"),
        # a text is no option
        (["inspect", "m", "--maping is a word", "--", "--maping"], "--maping: one too many; "
         "see sparse-attn inspect --help"),
    ],
)  # fmt: skip
def test_what_is_misspelled_is_one_line_with_the_nearest_name(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr() == ("", f"error: {said}\n")


@pytest.mark.slow
def test_a_reader_who_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"capture_output": False, "stdout": writing, "stderr": subprocess.PIPE}
    done = run("-m", "sparse_attn", "mappings", timeout=120, **streams)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
