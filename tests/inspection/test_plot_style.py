"""A mapping looks the same in every figure."""

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from sparse_attn.inspection import plot_style
from sparse_attn.mappings import mapping_names
from sparse_attn.mappings.registry import LIBRARY


def colours(*labels: str) -> list[str]:
    return [look["color"] for look in plot_style.styles(labels)]


def test_every_mapping_has_a_colour_of_its_own() -> None:
    names = [name for name in mapping_names() if name in LIBRARY]
    assert set(plot_style.PALETTE) == set(names)
    assert colours(*names) == [plot_style.PALETTE[name] for name in names]
    assert len(set(colours(*names))) == len(names)


def test_labels_speak_of_a_mapping() -> None:
    labels = ("entmax-1.5", "taylor", "sparsemax-hinge", "ours r-softmax [flex]", "softmax (slow)")
    names = ("entmax", "taylor-softmax", "sparsemax", "r-softmax", "softmax")
    assert colours(*labels) == [plot_style.PALETTE[name] for name in names]
    assert colours("mixed-sparsemax") == colours("sparsemax")


def test_labels_of_one_mapping_differ_in_marker_and_line() -> None:
    one, two, other = plot_style.styles(["softmax", "softmax-fine", "r-softmax"])
    assert one["color"] == two["color"] != other["color"]
    assert one["marker"] != two["marker"]
    assert one["linestyle"] != two["linestyle"]


def test_other_labels_get_what_is_left() -> None:
    found = colours("mos", "softmax", "lms", "r-softmax")
    assert found[1::2] == colours("softmax", "r-softmax")
    assert len(set(found)) == 4
    assert set(colours(*(f"loss {i}" for i in range(40)))) == set(plot_style.PALETTE.values())


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    figure, axes = plot_style.single()
    ends = {"a": 1.0, "b": 0.99, "c": 0.5, "d": 1.0}
    plot_style.label_ends(axes, {n: axes.plot([0, 1], [0, y])[0] for n, y in ends.items()})
    FigureCanvasAgg(figure).draw()
    boxes = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}
    assert sorted(boxes, key=lambda n: boxes[n].y0) == ["c", "b", "a", "d"]
    pairs = itertools.combinations(boxes.values(), 2)
    assert not [pair for pair in pairs if pair[0].overlaps(pair[1])]
    assert min(box.x0 for box in boxes.values()) > axes.bbox.x1
