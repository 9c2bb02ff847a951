"""Pictures draw what they were given, and a mapping looks the same in all of them."""

import importlib
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sparse_attn import Mapping, mapping_names, patch_model
from sparse_attn.inspection import pictures, record_attention
from tests.figures import blank_panels
from tests.hf.families import BY_NAME
from tests.inspection.tiny import IDS, TOKENS, recorded, sharp_bert
from tests.marks import first

SVG = "http://www.w3.org/2000/svg"


def rendered(figure: Figure) -> np.ndarray:
    """Its pixels (height, width, 3) in [0, 1]."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3] / 255


def cells(figure: Figure, *places: tuple[int, int]) -> list[np.ndarray]:
    """The pixels (n, 3) of the middles of these cells (row, column) of the first panel."""
    pixels, place = rendered(figure), figure.axes[0].transData
    found = []
    for row, column in places:
        (left, low), (right, high) = place.transform(
            [(column - 0.3, row + 0.3), (column + 0.3, row - 0.3)]
        )
        rows = slice(int(len(pixels) - high), int(len(pixels) - low))
        found.append(pixels[rows, int(left) : int(right)].reshape(-1, 3))
    return found


def ydata(figure: Figure, panel: int = 0) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata(), dtype=float) for line in figure.axes[panel].lines]


def test_curves_of_every_mapping() -> None:
    names = mapping_names()
    figure = pictures.draw_curves(names)
    bars = figure.axes[1].lines[::2]  # between them stand the samples beside the names
    for row, (name, curve, bar) in enumerate(zip(names, ydata(figure), bars, strict=True)):
        z = torch.from_numpy(bar.get_xdata())
        assert (z - torch.linspace(-5, 5, 2001)).abs().max() < 1e-6
        p = Mapping(name)(torch.stack([z, torch.zeros_like(z)], -1)).detach().numpy()
        # NaN breaks the line where it jumps
        np.testing.assert_array_equal(curve[~np.isnan(curve)], p[:, 0], err_msg=name)
        np.testing.assert_array_equal(bar.get_ydata() == row, (p == 0).any(-1), err_msg=name)
    assert np.isnan(ydata(pictures.draw_curves(["r-softmax"]))[0]).sum() == 2  # around z = 0
    dense = pictures.draw_curves(["softmax", "taylor-softmax"])
    assert len(dense.axes) == 1
    assert [text.get_text() for text in dense.legends[0].texts] == ["softmax", "taylor-softmax"]
    assert blank_panels(dense) == []
    assert rendered(figure).min() < 0.1


@pytest.mark.slow
def test_simplex_of_every_mapping() -> None:
    steps = [(i, j, -i - j) for i in range(-24, 25) for j in range(-24, 25)]
    scores = torch.tensor([z for z in steps if max(z) - min(z) <= 24]).double() * (1 / 6)
    corners = torch.tensor([[0, 1], [-(0.75**0.5), -0.5], [0.75**0.5, -0.5]]).double()
    for name in mapping_names():
        p = Mapping(name)(scores).detach()
        figure = pictures.draw_simplex(name)
        for panel, points in zip(figure.axes, (scores, p), strict=True):
            for line, support in zip(panel.lines, (3, 2, 1), strict=False):
                expected = points[(p > 0).sum(-1) == support] @ corners
                np.testing.assert_allclose(line.get_xydata(), expected, atol=1e-12, err_msg=name)
    shares = [text.get_text() for text in pictures.draw_simplex("sparsemax").legends[0].texts]
    assert shares == ["no zero (2 %)", "one zero: an edge (41 %)", "two zeros: a corner (57 %)"]
    assert rendered(figure).min() < 0.1


def test_zeros_are_blank_and_the_smallest_weight_is_not() -> None:
    weights = torch.full((7, 7), 1 / 7).tril()
    weights[5, 2], weights[6, 3] = 0.0, 1e-38
    valid = torch.ones(7, 7, dtype=torch.bool).tril()
    figure = pictures.draw_weights(weights, TOKENS, valid=valid)
    (image,) = figure.axes[0].images
    np.testing.assert_array_equal(image.get_array().mask, weights == 0)
    np.testing.assert_array_equal(image.get_array().filled(0), weights.double())
    zero, small, even, masked = cells(figure, (5, 2), (6, 3), (5, 3), (2, 5))
    assert (zero == 1).all()
    assert small.min(-1).max() < 0.8
    assert even.mean() < small.mean() - 0.2
    assert masked.max() < 0.95
    assert np.ptp(masked, axis=-1).max() < 0.02  # grey
    assert masked.std() > 0.02  # hatched
    # 1 of 7 + 6 + ... + 1 pairs
    assert figure.get_suptitle() == "attention: 4 % exact zeros"


def test_attention_of_a_padded_example() -> None:
    record = recorded(sharp_bert("sparsemax"), weights=True)
    figure = pictures.draw_attention(record, TOKENS, layer=1, head=2, example=1)
    p = record.weights[1][1, 2].double().numpy()
    shown = figure.axes[0].images[0].get_array()
    hidden = p == 0
    hidden[4:] = hidden[:, 4:] = True
    assert 0 < hidden[:4, :4].sum() < 16
    np.testing.assert_array_equal(shown.mask, hidden)
    np.testing.assert_array_equal(shown.filled(0), np.where(hidden, 0, p))
    (grey,) = figure.axes[0].collections
    expected = np.zeros((7, 7), dtype=bool)
    expected[4:] = expected[:, 4:] = True
    np.testing.assert_array_equal(~grey.get_array().mask.reshape(7, 7), expected)
    assert figure.get_suptitle().startswith("sparsemax, layer 1, head 2: ")


def shown_weights(axes: Axes) -> np.ndarray:
    return axes.images[0].get_array().filled(0)


@pytest.mark.slow
def test_heads_of_two_mappings_side_by_side() -> None:
    records = {name: recorded(sharp_bert(name), weights=True) for name in ("softmax", "entmax")}
    layer = records["softmax"].layers[1]
    figure = pictures.draw_attention(records, TOKENS, layer=layer, head=[0, 3, 2])
    *panels, _ = figure.axes
    assert len(panels) == 6
    for place, axes in enumerate(panels):
        name, head = ("softmax", "entmax")[place % 2], (0, 3, 2)[place // 2]
        p = records[name].weights[1][0, head].double()
        np.testing.assert_array_equal(shown_weights(axes), p)
        share = 100 * (p == 0).double().mean().item()
        assert axes.get_title() == f"{name}, head {head}: {share:.0f} % exact zeros"
        assert axes.images[0].norm(0.25) == 0.5
        assert axes.images[0].cmap == panels[0].images[0].cmap
    assert figure.get_suptitle() == "layer 1"
    rendered(figure)  # places the panels
    places = [axes.get_position() for axes in panels]
    assert places[0].y0 == places[1].y0 > places[2].y0
    assert places[0].x1 < places[1].x0


def test_pictures_in_axes_of_a_caller() -> None:
    record = recorded(sharp_bert("entmax"), weights=True)
    figure = Figure(layout="constrained")
    # a style such as seaborn's
    left, middle, right = figure.subplots(1, 3, subplot_kw={"facecolor": "#EAEAF2"})
    drawn = pictures.draw_attention(
        record, TOKENS, layer=0, head=1, ax=left, cmap="magma", title="(a)"
    )
    assert drawn is figure
    assert (left.get_title(), left.images[0].cmap.name) == ("(a)", "magma")
    np.testing.assert_array_equal(shown_weights(left), record.weights[0][0, 1].double())
    zero = tuple((record.weights[0][0, 1] == 0).nonzero()[0].tolist())
    assert (cells(figure, zero)[0] == 1).all()
    assert pictures.draw_sparsity(record, ax=middle, title="(b)") is figure
    assert len(middle.images) == 1
    assert pictures.draw_support(record, ax=right) is figure
    assert right.get_title() == "entmax: support by position"
    assert figure.get_suptitle() == ""


FIGURES: list[tuple[Callable[[], Figure], set[str]]] = [
    (
        lambda: pictures.draw_weights(torch.eye(2), ["über", "$x$"], title=r"a $\frac$"),
        {"über", "$x$", "query", r"a $\frac$"},
    ),
    (lambda: pictures.draw_sparsity(recorded(sharp_bert("sparsemax"))), {"head", "layer"}),
    (lambda: pictures.draw_support(recorded(sharp_bert("sparsemax"))), {"layer"}),
    (lambda: pictures.draw_parameters(recorded(sharp_bert("entmax"))), {"alpha"}),
    (lambda: pictures.draw_curves(["softmax", "sparsemax"]), {"softmax", "sparsemax"}),
    (lambda: pictures.draw_simplex("sparsemax"), {"sparsemax"}),
]


@pytest.mark.parametrize(("draw", "words"), first(*FIGURES))
def test_files_for_publishers(draw: Callable[[], Figure], words: set[str], tmp_path: Path) -> None:
    """Text is text in SVG and Type 42 in PDF, and the caller's settings stay as they are."""
    figure, settings = draw(), dict(rcParams)
    figure.savefig(tmp_path / "figure.svg")
    figure.savefig(content := BytesIO(), format="pdf")
    assert dict(rcParams) == settings
    texts = ElementTree.parse(tmp_path / "figure.svg").iter(f"{{{SVG}}}text")
    assert words <= {"".join(element.itertext()) for element in texts}
    assert b"/Type3" not in content.getvalue()
    assert b"/CIDFontType2" in content.getvalue()


def test_sparsity_with_layers_that_did_not_run() -> None:
    family = BY_NAME["t5"]
    model = patch_model(family.build(), "sparsemax")
    with record_attention(model) as record, torch.no_grad():
        model.encoder(family.inputs()["input_ids"])
    figure = pictures.draw_sparsity(record)
    shown = figure.axes[0].images[0].get_array()
    ran = [name.startswith("encoder") for name in record.layers]
    assert (~shown.mask.all(-1)).tolist() == ran
    np.testing.assert_array_equal(shown[ran], 100 * record.zeros[ran])
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts == [f"{100 * share:.0f}" for share in record.zeros[ran].flatten().tolist()]
    assert cells(figure, (ran.index(False), 1))[0].max() < 0.95  # hatched
    drawn = ydata(pictures.draw_support(record))
    assert [not np.isnan(line).all() for line in drawn] == ran


def test_parameters_by_head() -> None:
    model = sharp_bert("t-softmax", t=[1.0, 2.0, 3.0, 4.0], per="head", learn="t", layers=[0])
    patch_model(model, "t-softmax", t=5.0, layers=[2])
    with record_attention(model) as record, torch.no_grad():
        for _ in range(2):
            model(IDS)
            for parameter in model.parameters():
                parameter.add_(0.1)
    figure = pictures.draw_parameters(record, "t")
    heads = record.parameters["t"][:, 0]
    assert heads[0].tolist() == pytest.approx([1, 2, 3, 4])
    *single, first, second, third = ydata(figure)
    np.testing.assert_allclose(single, heads.T)
    np.testing.assert_allclose(first, heads.mean(-1))
    assert np.isnan(second).all()
    assert third.tolist() == [5, 5]
    figure = pictures.draw_parameters(record)
    assert [axes.get_ylabel() for axes in figure.axes] == ["t", "layer"]


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "sparse_attn.inspection.plot_style")
    with pytest.raises(ImportError, match=r"pip install 'sparse-attn\[plots\]'"):
        importlib.import_module("sparse_attn.inspection.plot_style")


# Colours, markers and labels
