"""The page in a headless Chromium: what a reader sees, with mouse, keyboard and finger."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from sparse_attn import patch_model, patched
from sparse_attn.inspection import AttentionRecord, record_attention
from sparse_attn.inspection.page import attention_page
from tests.hf.families import BERT
from tests.inspection.page_data import Record
from tests.watched import watched

SIDES = ("softmax", "r-softmax r=0.5")
TOKENS = [
    "[CLS]",
    "The",
    "</script><img src=x onerror=hacked=1>",
    "antidisestablishmentarianism" * 3,
    "漢字",
    " the",
    "\n",
    "\u202eright to left",
    "[SEP]",
    "[PAD]",
    "[PAD]",
]
KEPT, QUERIES, LAYERS, HEADS = 9, 11, 2, 4  # two tokens are padding


@dataclass
class Shown:
    """A page in the browser, and the records it was made of."""

    page: Any
    records: dict[str, AttentionRecord]


@pytest.fixture(scope="module")
def records() -> dict[str, AttentionRecord]:
    """A model whose second layer stays with softmax on the second side, too."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(**BERT)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(5)
    ids = torch.randint(5, 40, (1, QUERIES))
    inputs = {"input_ids": ids, "attention_mask": (torch.arange(QUERIES)[None] < KEPT).long()}
    made = {}
    for side, layers in zip(SIDES, ([], [0]), strict=True):
        with torch.no_grad(), patched(model, "softmax"):
            if layers:
                patch_model(model, "r-softmax", r=0.5, layers=layers)
            with record_attention(model, weights=True) as made[side]:
                model(**inputs)
    return made


@pytest.fixture(scope="module")
def html(records: dict[str, AttentionRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "attention.html"
    special = [token.startswith("[") for token in TOKENS]
    path.write_text(attention_page(records, TOKENS, special_mask=special), encoding="utf-8")
    return path


@contextmanager
def opened(browser: Any, html: Path, records: Any, **options: Any) -> Iterator[Shown]:
    """A page at 1280 px, unless the options say otherwise; the browser may report nothing."""
    with watched(browser, html, **{"viewport": {"width": 1280, "height": 900}, **options}) as page:
        yield Shown(page, records)
        assert page.evaluate("typeof hacked") == "undefined"


@pytest.fixture
def shown(
    browser: Any, html: Path, records: dict[str, AttentionRecord], request: Any
) -> Iterator[Shown]:
    with opened(browser, html, records, **getattr(request, "param", {})) as page:
        yield page


def chips(shown: Shown, side: int) -> Any:
    return shown.page.locator("#tokens > div").nth(side).locator(".token")


def choose(shown: Shown, layer: int, head: int | None) -> None:
    shown.page.select_option("#layer select", str(layer))
    shown.page.select_option("#head select", "null" if head is None else str(head))


def chosen(shown: Shown) -> tuple[str, str, int]:
    """Layer, head and query as the page tells them."""
    values = [shown.page.input_value(f"#{name} select") for name in ("layer", "head")]
    return values[0], values[1], int(shown.page.inner_text("#query").split(":")[0].split()[1])


def written(x: float) -> str:
    """A number as the page rounds it."""
    return "0" if x == 0 else "<.01" if x < 0.01 else f"{x:.2f}"


def close(text: str, x: float) -> bool:
    """Whether `text` is x as the page rounds it, or a neighbour: p is stored to 0.08 %."""
    return text in {written(x * (1 + e)) for e in (-8e-4, 0.0, 8e-4)}


def row(shown: Shown, side: int, layer: int, query: int) -> Tensor:
    """p of the keys that are no padding, (heads, keys)."""
    weights = shown.records[SIDES[side]].weights[layer]
    assert weights is not None
    return weights[0, :, query, :KEPT].double()


def assert_row(shown: Shown, side: int, p: Tensor, entropy: float, special: float) -> None:
    """The chips of one side and the numbers under them show this p of the keys."""
    states = chips(shown, side).evaluate_all(
        "all => all.map(e => [e.dataset.state, e.querySelector('.p').textContent])"
    )
    for (state, text), value in zip(states[:KEPT], p.tolist(), strict=True):
        assert state == ("kept" if value > 0 else "dropped")
        assert close(text, value)
    assert states[KEPT:] == [["masked", "\u2013"]] * (QUERIES - KEPT)
    numbers = shown.page.locator("#tokens .numbers").nth(side).locator("b").all_inner_texts()
    assert close(numbers[2], entropy)
    assert close(numbers[3], special)


def numbers_of(p: Tensor) -> tuple[float, float]:
    """Mean entropy and mean mass on special tokens, of rows (heads, keys)."""
    special = [i for i in range(KEPT) if TOKENS[i].startswith("[")]
    return torch.special.entr(p).sum(-1).mean().item(), p[:, special].sum(-1).mean().item()


def test_hover_shows_what_each_head_keeps(shown: Shown) -> None:
    query = 5
    for layer in range(LAYERS):
        choose(shown, layer, 2)
        chips(shown, 0).nth(query).hover()
        for side in (0, 1):
            p = row(shown, side, layer, query)
            assert_row(shown, side, p[2], *numbers_of(p[2:3]))
            kept = int((p[2] > 0).sum())
            text = shown.page.locator("#tokens .numbers").nth(side).inner_text()
            assert f"keeps {kept} of {KEPT}" in text
            assert f"drops {KEPT - kept}" in text
            lines = shown.page.locator("#heads table").nth(side).locator("tbody tr").all()
            for head, line in enumerate(lines):
                cells = [cell.inner_text() for cell in line.locator("td").all()]
                assert cells[1] == f"{int((p[head] > 0).sum())}/{KEPT}"
                entropy, special = numbers_of(p[head : head + 1])
                assert close(cells[2], entropy)
                assert close(cells[3], special)
    # layer 1 has softmax on both sides, and the second side says so
    assert shown.page.locator(".mapping").all_inner_texts() == ["", "here: softmax"]


@pytest.mark.slow
def test_all_heads_show_their_mean_and_who_keeps(shown: Shown) -> None:
    choose(shown, 0, None)
    chips(shown, 1).nth(4).hover()
    p = row(shown, 1, 0, 4)
    assert_row(shown, 1, p.mean(0), *numbers_of(p))
    keepers = chips(shown, 1).locator(".keepers").all_inner_texts()
    assert keepers[:KEPT] == [f"{int(n)}/{HEADS}" for n in (p > 0).sum(0)]


@pytest.mark.slow
def test_a_click_holds_and_the_mouse_only_points(shown: Shown) -> None:
    assert chosen(shown) == ("0", "0", 1)  # the first token that is not special
    chips(shown, 0).nth(4).hover()
    assert chosen(shown)[2] == 4
    shown.page.mouse.move(5, 5)
    assert chosen(shown)[2] == 1
    chips(shown, 1).nth(5).click()
    shown.page.mouse.move(5, 5)
    assert chosen(shown)[2] == 5
    pressed = [chips(shown, side).nth(5).get_attribute("aria-pressed") for side in (0, 1)]
    assert pressed == ["true", "true"]
    assert chips(shown, 0).nth(KEPT).is_disabled()  # padding is no query


@pytest.mark.slow
def test_layer_and_head_by_mouse(shown: Shown) -> None:
    page = shown.page
    page.click("#layer button[aria-label^=next]")
    page.click("#head button[aria-label^=next]")
    assert chosen(shown)[:2] == ("1", "1")
    assert page.is_disabled("#layer button[aria-label^=next]")
    page.click("#layer button[aria-label^=prev]")
    for _ in range(2):
        page.click("#head button[aria-label^=prev]")
    assert chosen(shown)[:2] == ("0", "null")
    page.locator("#zeros table").nth(1).get_by_label("layer 1, head 3").click()
    assert chosen(shown)[:2] == ("1", "3")
    page.locator("#heads table").nth(0).get_by_label("head 1").click()
    assert chosen(shown)[:2] == ("1", "1")
    assert page.inner_text("#module") == shown.records[SIDES[0]].layers[1]


@pytest.mark.slow
def test_everything_by_keyboard(shown: Shown) -> None:
    page = shown.page
    for _ in range(20):
        if page.evaluate("document.activeElement.className").startswith("token"):
            break
        page.keyboard.press("Tab")
    expected = {
        "ArrowRight": ("0", "0", 2),
        "End": ("0", "0", KEPT - 1),
        "ArrowLeft": ("0", "0", KEPT - 2),
        "Home": ("0", "0", 0),
        "ArrowDown": ("1", "0", 0),
        "Shift+ArrowDown": ("1", "1", 0),
        "ArrowUp": ("0", "1", 0),
        "Shift+ArrowUp": ("0", "0", 0),
    }
    for key, state in expected.items():
        page.keyboard.press(key)
        assert chosen(shown) == state, key
    page.locator("#zeros .chosen").first.focus()
    for key, state in {"ArrowDown": ("1", "0"), "ArrowRight": ("1", "1")}.items():
        page.keyboard.press(key)
        assert chosen(shown)[:2] == state, key
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == "layer 1, head 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "shown", [{"viewport": {"width": 390, "height": 844}, "has_touch": True}], indirect=True
)
def test_a_finger_chooses(shown: Shown) -> None:
    chips(shown, 1).nth(2).tap()
    assert chosen(shown)[2] == 2
    p = row(shown, 0, 0, 2)[:1]
    assert_row(shown, 0, p[0], *numbers_of(p))


@pytest.mark.slow
def test_columns_of_the_heads_have_their_tokens(shown: Shown) -> None:
    """Where there is room for them, each above its column."""
    words = shown.page.locator("#heads .words").first
    texts = words.locator("bdi").all_text_contents()
    assert texts[:2] == TOKENS[:2]
    assert texts[3] == "antidisesta…"
    strip = shown.page.locator("#heads canvas").first.bounding_box()
    for index, word in enumerate(words.locator("bdi").all()):
        box = word.bounding_box()
        middle = strip["x"] + (index + 0.5) * strip["width"] / QUERIES
        assert abs(box["x"] + box["width"] / 2 - middle) < 2
    shown.page.set_viewport_size({"width": 300, "height": 900})
    words.wait_for(state="hidden", timeout=10_000)  # a ResizeObserver hides them a frame later


def test_text_is_shown_as_text(shown: Shown) -> None:
    texts = chips(shown, 0).locator(".text").all_text_contents()
    assert texts == [token.replace(" ", "·").replace("\n", "↵") for token in TOKENS]
    assert shown.page.locator("img").count() == 0


# every element that holds text of its own: its font size, whether it is cut off, where it ends
TEXTS = """() => [...document.body.querySelectorAll("*")].filter((e) =>
  !e.closest("script, noscript, [hidden]") &&
  [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
  .map((e) => ({
    text: e.textContent.slice(0, 40),
    size: parseFloat(getComputedStyle(e).fontSize),
    cut: e.tagName !== "OPTION" && getComputedStyle(e).display !== "inline" &&
      (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1),
    right: e.tagName === "OPTION" ? 0 : e.getBoundingClientRect().right,
  }))"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "shown", [{"viewport": {"width": width, "height": 900}} for width in (1280, 390)], indirect=True
)
def test_readable(shown: Shown) -> None:
    page = shown.page
    width = page.viewport_size["width"]
    choose(shown, 0, 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    texts = page.evaluate(TEXTS)
    assert len(texts) > 100
    for entry in texts:
        assert entry["size"] >= 12, entry
        assert not entry["cut"], entry
        assert entry["right"] <= width, entry
    for part in ("tokens", "heads", "zeros"):
        boxes = [element.bounding_box() for element in page.locator(f"#{part} > div").all()]
        assert len(boxes) == 2
        assert all(box["width"] > 300 and box["height"] > 60 for box in boxes)
        beside = boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
        assert beside == (width == 1280)


# contrast of each chip's text with its background (W3C, WCAG 2.2, contrast ratio), by its state
CONTRAST = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const linear = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((byte) =>
      byte / 255 <= 0.04045 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const page = getComputedStyle(document.body);
  return [...document.querySelectorAll(".token, .zeros button, .note, p, th")].map((e) => {
    const style = getComputedStyle(e);
    const clear = style.backgroundColor === "rgba(0, 0, 0, 0)";
    const two = [style.color, clear ? page.backgroundColor : style.backgroundColor].map(luminance);
    return [(Math.max(...two) + 0.05) / (Math.min(...two) + 0.05), e.outerHTML.slice(0, 90)];
  });
}"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "shown", [{"color_scheme": scheme} for scheme in ("light", "dark")], indirect=True
)
def test_contrast_and_dropped_beside_small(shown: Shown) -> None:
    page = shown.page
    choose(shown, 0, 1)
    for ratio, element in page.evaluate(CONTRAST):
        assert ratio >= 4.5, element
    looks = """e => [getComputedStyle(e).backgroundColor,
      getComputedStyle(e.querySelector('.text')).textDecorationLine]"""
    page.evaluate(
        "document.querySelectorAll('.token').forEach(e => e.style.setProperty('--shade', 0))"
    )
    kept, dropped = (
        page.locator(f"#tokens .token[data-state={state}]").first.evaluate(looks)
        for state in ("kept", "dropped")
    )
    blank = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dropped == [blank, "line-through"]
    assert kept[0] != blank
    assert kept[1] == "none"


@pytest.mark.slow
def test_a_strip_is_blank_where_p_is_zero(browser: Any, tmp_path: Path) -> None:
    p = torch.tensor([0.0, 1e-30, 1 - 1e-7]).expand(1, 1, 3, 3)
    html = tmp_path / "page.html"
    html.write_text(attention_page({"one side": Record([p])}, ["a", "b", "c"]), encoding="utf-8")
    with opened(browser, html, {}) as shown:
        strip = shown.page.locator("#heads canvas")
        opacity = strip.evaluate(
            """c => { const line = c.getContext("2d").getImageData(0, 2, c.width, 1).data;
              const middle = (key) => Math.round((key + 0.5) * c.width / 3);
              return [0, 1, 2].map((key) => line[4 * middle(key) + 3] / 255) }"""
        )
        assert opacity == [0, pytest.approx(0.2, abs=0.01), pytest.approx(1, abs=0.01)]
        assert chips(shown, 0).locator(".p").all_inner_texts() == ["0", "<.01", "1.00"]
        strip.hover(position={"x": 2, "y": 5})
        assert shown.page.inner_text("#heads .under") == "head 0, a: dropped, p = 0"


def downloaded(shown: Shown, button: str) -> tuple[str, str]:
    """Name and content of the file that a button saves."""
    with shown.page.expect_download() as download:
        shown.page.click(button)
    content = Path(download.value.path()).read_text(encoding="utf-8")
    return download.value.suggested_filename, content


@pytest.mark.slow
@pytest.mark.parametrize("head", [2, None])
def test_numbers_of_a_head_as_csv(shown: Shown, head: int | None) -> None:
    choose(shown, 0, head)
    name, content = downloaded(shown, "#numbers")
    assert name == ("layer-0-all-heads.csv" if head is None else "layer-0-head-2.csv")
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    places = {(row["side"], int(row["query"]), int(row["key"])) for row in rows}
    # padding is left out as a key; its own rows, which the model computes too, are there
    assert places == {(s, q, k) for s in SIDES for q in range(QUERIES) for k in range(KEPT)}
    assert len(rows) == len(places)
    for given in rows:
        side, query, key = SIDES.index(given["side"]), int(given["query"]), int(given["key"])
        assert (given["query_token"], given["key_token"]) == (TOKENS[query], TOKENS[key])
        p = row(shown, side, 0, query)[:, key]
        expected = (p.mean() if head is None else p[head]).item()
        assert float(given["p"]) == pytest.approx(expected, rel=1e-3, abs=0)


@pytest.mark.slow
def test_figure_of_a_head_as_svg(shown: Shown) -> None:
    choose(shown, 0, 1)
    name, content = downloaded(shown, "#figure")
    assert name == "layer-0-head-1.svg"
    svg = ElementTree.fromstring(content)  # tokens with tags and quotes are text
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "Layer 0, head 1"
    for side in SIDES:
        assert side in texts
    assert texts.count("</script><i…") == 4  # of queries and keys, on both sides
    cells = [
        r.attrib for r in svg.iter("{http://www.w3.org/2000/svg}rect") if "opacity" in r.attrib
    ]
    p = torch.stack([row(shown, side, 0, query)[1] for side in (0, 1) for query in range(QUERIES)])
    shades = 0.2 + 0.8 * p[p > 0].sqrt()  # in the same order
    assert [float(cell["opacity"]) for cell in cells] == pytest.approx(shades.tolist(), abs=2e-3)
    width = float(svg.attrib["width"])
    assert all(float(cell["x"]) + 16 < width for cell in cells)


@pytest.mark.slow
def test_layers_with_different_heads(browser: Any, tmp_path: Path) -> None:
    record = Record([torch.full((1, heads, 2, 2), 0.5) for heads in (3, 2)])
    html = tmp_path / "page.html"
    html.write_text(attention_page({"a": record, "b": record}, ["a", "b"]), encoding="utf-8")
    with opened(browser, html, {}) as shown:
        choose(shown, 0, 2)
        shown.page.click("#layer button[aria-label^=next]")
        assert chosen(shown)[:2] == ("1", "1")
        assert shown.page.locator("#heads tbody tr").count() == 4
        assert chips(shown, 1).nth(1).locator(".p").inner_text() == "0.50"
        assert "special" not in shown.page.inner_text("main")


@pytest.mark.slow
def test_mass_where_rows_do_not_sum_to_one(browser: Any, tmp_path: Path) -> None:
    p = torch.tensor([[0.5, 0.0], [2.0, 0.25]]).expand(1, 2, 2, 2)
    html = tmp_path / "page.html"
    page = attention_page({"a": Record([p], mappings=["relu"])}, ["a", "b"], special_mask=[0, 1])
    html.write_text(page, encoding="utf-8")
    with opened(browser, html, {}) as shown:
        for query, cells in enumerate((["1/2", "0", "0.50", "0"], ["2/2", "0.35", "2.25", "0.25"])):
            chips(shown, 0).nth(query).click()
            assert f"mass {cells[2]}" in shown.page.inner_text("#tokens .numbers")
            line = shown.page.locator("#heads tbody tr").first
            assert line.locator("td").all_inner_texts()[1:] == cells
        headings = shown.page.locator("#heads thead th").all_inner_texts()
        assert headings[2:] == ["kept", "entropy", "mass", "special"]
