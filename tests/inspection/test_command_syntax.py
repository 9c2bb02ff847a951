"""Mappings as the command line spells them."""

import pytest

from sparse_attn.mappings import Mapping, mapping_names
from sparse_attn.mappings.syntax import describe, parse_mapping, parse_mappings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("softmax:sink=0", "softmax sink=0"),
        (
            "scaled-entmax:alpha=1.5,beta=2,sink=-1",
            "scaled-entmax alpha=1.5 sink=-1 delta=0 beta=2 gamma=1",
        ),
        ("clipped-softmax:alpha=0.25", "clipped-softmax zeta=1 alpha=0.25"),
    ],
)
def test_described(text: str, shown: str) -> None:
    assert describe(parse_mapping(text, "--mapping")) == shown


@pytest.mark.parametrize("name", mapping_names())
def test_defaults_are_described(name: str) -> None:
    assert describe(Mapping(name)).split()[0] == name


def test_several() -> None:
    text = "softpick, clipped-softmax: gamma=-0.1, zeta=1.1,top-p-softmax:p=0.5"
    found = parse_mappings(text, "--mappings")
    labels = ["softpick", "clipped-softmax gamma=-0.1 zeta=1.1", "top-p-softmax p=0.5"]
    assert list(found) == labels
    _, clipped, top = found.values()
    assert (clipped.value("gamma"), clipped.value("zeta"), top.value("p")) == (-0.1, 1.1, 0.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("softmax,", "--mappings : expected NAME:parameter=value, .*, or NAME alone"),
        ("entmax, softmax: ", "--mappings softmax:: expected NAME:parameter=value"),
        ("softmax,alpha=1", "--mappings softmax,alpha=1: expected NAME:"),
        ("sigmoid:sink=0", "--mappings sigmoid:sink=0: sink: sigmoid cannot have one"),
        ("softmax:sink=0,sink=1", "sink is given twice"),
        ("softpick,relu,softpick", "--mappings .*: softpick is given twice; leave one out"),
        ("entmax,entmax:alpha=1.50", "--mappings .*: entmax alpha=1.5 is given twice; leave one"),
        ("softmax:snk=0", "--mappings softmax:snk=0: 'snk' is not a .* which takes sink"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}|{says}$"):
        parse_mappings(text, "--mappings")
