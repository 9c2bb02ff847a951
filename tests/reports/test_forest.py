"""The forest plot shows each difference, its interval, and whether it is settled."""

import numpy as np

from sparse_attn.reports.forest import forest
from sparse_attn.reports.seed_statistics import Difference
from tests.figures import blank_panels


def test_marks_and_intervals() -> None:
    both = {"r-softmax": Difference(1.0, (-1.0, 3.0), 3), "entmax": Difference(-4.0, (-5, -3), 3)}
    one = {"entmax": Difference(2.0, None, 1)}
    figure = forest({"MRPC": both, "RTE": one, "QNLI": {}}, "points", [("MRPC", "entmax")])
    assert figure is not None
    left, right = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["MRPC", "RTE"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["r-softmax", "entmax"]
    zero, *lines = (np.asarray(line.get_xydata()).tolist() for line in left.lines)
    assert [x for x, _ in zero] == [0, 0]
    assert lines == [[[-1, 0], [3, 0]], [[1, 0]], [[-5, 1], [-3, 1]], [[-4, 1]]]
    fills = [line.get_markerfacecolor() for line in left.lines if len(line.get_xdata()) == 1]
    assert fills[0] == "white" != fills[1]
    assert right.lines[1].get_xydata().tolist() == [[2, 1]]
    assert left.get_xlim() == right.get_xlim()
    assert blank_panels(figure) == []


def test_nothing_to_show() -> None:
    assert forest({"RTE": {"entmax": Difference(2.0, None, 1)}}, "points") is None
    assert forest({}, "points") is None
