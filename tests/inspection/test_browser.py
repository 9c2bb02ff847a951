"""The pages in a headless Chromium, which may report no error and ask for no other file."""

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

from sparse_attn import patch_model, patched
from sparse_attn.inspection import (
    AttentionRecord,
    attention_page,
    record_attention,
    sum_attention,
    text_page,
)
from sparse_attn.inspection.long_text.summing import AttentionSum
from tests.inspection.tiny import bert
from tests.watched import watched

SIDES = ("softmax", "r-softmax r=0.5")
TOKENS = [
    *("[CLS]", "The", "</script><img src=x onerror=hacked=1>", "antidisestablishmentarianism" * 3),
    *("漢字", " the", "\n", "\u202eright to left", "[SEP]", "[PAD]", "[PAD]"),
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
    model = bert()
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


@contextmanager
def opened(browser: Any, folder: Path, html: str, **options: Any) -> Iterator[Any]:
    """A page at 1280 px, unless the options say otherwise."""
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    with watched(browser, path, **{"viewport": {"width": 1280, "height": 900}, **options}) as page:
        yield page
        assert page.evaluate("typeof hacked") == "undefined"


@pytest.fixture
def shown(browser: Any, tmp_path: Path, records: dict[str, AttentionRecord]) -> Iterator[Shown]:
    special = [token.startswith("[") for token in TOKENS]
    html = attention_page(records, TOKENS, special_mask=special)
    with opened(browser, tmp_path, html) as page:
        yield Shown(page, records)


def chips(page: Any, side: int) -> Any:
    return page.locator("#tokens > div").nth(side).locator(".token")


def choose(page: Any, layer: int, head: int | None) -> None:
    page.select_option("#layer select", str(layer))
    page.select_option("#head select", "null" if head is None else str(head))


def chosen(page: Any) -> tuple[str, str, int]:
    """Layer, head and query as the page tells them."""
    values = [page.input_value(f"#{name} select") for name in ("layer", "head")]
    return values[0], values[1], int(page.inner_text("#query").split(":")[0].split()[1])


def written(x: float) -> str:
    """A number as the page rounds it."""
    return "0" if x == 0 else "<.01" if x < 0.01 else f"{x:.2f}"


def close(text: str, x: float) -> bool:
    """Whether `text` is x as the page rounds it, or a neighbour: p is stored to 0.08 %."""
    return text in {written(x * (1 + e)) for e in (-8e-4, 0.0, 8e-4)}


def row(shown: Shown, side: int, layer: int, query: int) -> Tensor:
    """p of the keys that are no padding, (heads, keys)."""
    return shown.records[SIDES[side]].weights[layer][0, :, query, :KEPT].double()


def assert_row(shown: Shown, side: int, p: Tensor) -> None:
    """The chips of one side, and the numbers under them, show the mean of these heads' p."""
    states = chips(shown.page, side).evaluate_all(
        "all => all.map(e => [e.dataset.state, e.querySelector('.p').textContent])"
    )
    for (state, text), value in zip(states[:KEPT], p.mean(0).tolist(), strict=True):
        assert state == ("kept" if value > 0 else "dropped")
        assert close(text, value)
    assert states[KEPT:] == [["masked", "\u2013"]] * (QUERIES - KEPT)
    told = shown.page.locator("#tokens .numbers").nth(side).locator("b").all_inner_texts()
    assert all(map(close, told[2:4], numbers_of(p)))


def numbers_of(p: Tensor) -> tuple[float, float]:
    """Mean entropy and mean mass on special tokens, of rows (heads, keys)."""
    special = [i for i in range(KEPT) if TOKENS[i].startswith("[")]
    return torch.special.entr(p).sum(-1).mean().item(), p[:, special].sum(-1).mean().item()


def test_a_token_under_the_mouse_shows_what_heads_keep(shown: Shown) -> None:
    page, query = shown.page, 5
    for layer in range(LAYERS):
        choose(page, layer, 2)
        chips(page, 0).nth(query).hover()
        for side in (0, 1):
            p = row(shown, side, layer, query)
            assert_row(shown, side, p[2:3])
            lines = page.locator("#heads table").nth(side).locator("tbody tr").all()
            for head, line in enumerate(lines):
                cells = [cell.inner_text() for cell in line.locator("td").all()]
                assert cells[1] == f"{int((p[head] > 0).sum())}/{KEPT}"
                assert all(map(close, cells[2:4], numbers_of(p[head : head + 1])))
    # layer 1 has softmax on both sides, and the second side says so
    assert page.locator(".mapping").all_inner_texts() == ["", "here: softmax"]
    choose(page, 0, None)
    chips(page, 1).nth(4).hover()
    p = row(shown, 1, 0, 4)
    assert_row(shown, 1, p)
    keepers = chips(page, 1).locator(".keepers").all_inner_texts()
    assert keepers[:KEPT] == [f"{int(n)}/{HEADS}" for n in (p > 0).sum(0)]


@pytest.mark.slow
def test_ways_to_choose(shown: Shown) -> None:
    page = shown.page
    assert chosen(page) == ("0", "0", 1)  # the first token that is not special
    chips(page, 1).nth(5).click()
    page.mouse.move(5, 5)
    assert chosen(page)[2] == 5  # a click holds
    assert chips(page, 0).nth(KEPT).is_disabled()  # padding is no query
    page.click("#layer button[aria-label^=next]")
    page.click("#head button[aria-label^=next]")
    assert chosen(page) == ("1", "1", 5)
    page.locator("#zeros table").nth(1).get_by_label("layer 1, head 3").click()
    assert chosen(page)[:2] == ("1", "3")
    page.locator("#heads table").nth(0).get_by_label("head 1").click()
    assert chosen(page)[:2] == ("1", "1")
    assert page.inner_text("#module") == shown.records[SIDES[0]].layers[1]
    chips(page, 0).nth(5).focus()
    keys = {"ArrowRight": ("1", "1", 6), "Home": ("1", "1", 0), "End": ("1", "1", KEPT - 1)}
    keys |= {"ArrowUp": ("0", "1", KEPT - 1), "Shift+ArrowUp": ("0", "0", KEPT - 1)}
    for key, state in keys.items():
        page.keyboard.press(key)
        assert chosen(page) == state, key


def test_text_is_shown_as_text(shown: Shown) -> None:
    texts = chips(shown.page, 0).locator(".text").all_text_contents()
    assert texts == [token.replace(" ", "·").replace("\n", "↵") for token in TOKENS]
    assert shown.page.locator("img").count() == 0
    shown.page.set_viewport_size({"width": 390, "height": 900})
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 390


def downloaded(page: Any, button: str) -> tuple[str, str]:
    """Name and content of the file that a button saves."""
    with page.expect_download() as download:
        page.click(button)
    content = Path(download.value.path()).read_text(encoding="utf-8")
    return download.value.suggested_filename, content


@pytest.mark.slow
def test_files_of_a_head(shown: Shown) -> None:
    choose(shown.page, 0, 1)
    p = torch.stack([torch.stack([row(shown, s, 0, q)[1] for q in range(QUERIES)]) for s in (0, 1)])
    name, content = downloaded(shown.page, "#numbers")
    assert name == "layer-0-head-1.csv"
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert len(rows) == p.numel()
    for given in rows:
        side, query, key = SIDES.index(given["side"]), int(given["query"]), int(given["key"])
        assert (given["query_token"], given["key_token"]) == (TOKENS[query], TOKENS[key])
        assert float(given["p"]) == pytest.approx(p[side, query, key].item(), rel=1e-3, abs=0)
    name, content = downloaded(shown.page, "#figure")
    assert name == "layer-0-head-1.svg"
    svg = ElementTree.fromstring(content)  # tokens with tags and quotes are text
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Layer 0, head 1", *SIDES, "</script><i…"} <= {*texts}
    cells = svg.iter("{http://www.w3.org/2000/svg}rect")
    shades = [float(cell.attrib["opacity"]) for cell in cells if "opacity" in cell.attrib]
    assert shades == pytest.approx((0.2 + 0.8 * p[p > 0].sqrt()).tolist(), abs=2e-3)


# A long text

LENGTH = 30
WORDS = [f" word{i}" if i % 7 else "\nThe </script><img src=x onerror=hacked=1>" for i in range(30)]


@pytest.fixture(scope="module")
def summed() -> AttentionSum:
    model = patch_model(bert(initializer_range=0.5), "sparsemax")
    with torch.no_grad(), sum_attention(model, LENGTH, [(0, 1), (1, 2)]) as found:
        model(torch.randint(5, 40, (1, LENGTH)))
    return found


@pytest.fixture
def text(browser: Any, tmp_path: Path, summed: AttentionSum) -> Iterator[Any]:
    html = text_page(summed, WORDS, title="A <title>", mapping="sparsemax", generated=3)
    with opened(browser, tmp_path, html, viewport={"width": 400, "height": 900}) as page:
        page.wait_for_selector("#read tbody tr")
        yield page


def head_of(summed: AttentionSum, layer: int = 0, head: int = 1) -> Tensor:
    """The weights (N, N) of a chosen head."""
    own = summed.heads[layer, head]
    made = torch.zeros(LENGTH, LENGTH)
    made[torch.arange(LENGTH).repeat_interleave(own.starts.diff()), own.columns] = own.weights
    return made


def click(text: Any, query: int) -> None:
    # on a narrow screen the bar may lie over it
    text.locator("#text span").nth(query).dispatch_event("click")
    text.locator("#query", has_text=f"Token {query}:").wait_for()


def table(text: Any) -> list[list[str]]:
    found: list[list[str]] = text.locator("#read tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return found


def test_heads_together_and_links_to_a_view(text: Any, summed: AttentionSum) -> None:
    """A page opens on all of its heads, and a link on the token and the head that it names."""
    click(text, 20)
    readers = sum((head_of(summed, *head)[20] > 0).int() for head in summed.heads)
    expected = {key: n for key, n in enumerate(torch.as_tensor(readers).tolist()) if n > 0}
    assert {int(position): int(n) for _, position, n, *_ in table(text)} == expected
    shades = text.locator("#text span[style]").evaluate_all(
        """chips => chips.map(chip => [chip.dataset.index,
          2 * Number(chip.style.getPropertyValue("--shade")) ** 2])"""
    )
    assert {int(key): round(n) for key, n in shades} == expected
    told = text.inner_text("#share")
    assert f"The 2 heads read {len(expected)} of the 30 tokens." in told
    assert f"None of them reads the other {30 - len(expected)}." in told
    assert text.url.endswith("#token=20")

    text.check("#first")
    text.locator("#share", has_text="29 tokens, not counting the first").wait_for()
    assert {int(position) for _, position, *_ in table(text)} == set(expected) - {0}
    text.select_option("#view", "2")
    text.wait_for_url("**#token=20&layer=1&head=2&first=ignored")
    text.evaluate("location.hash = 'token=4&layer=0&head=1'")
    text.locator("#query", has_text="Token 4:").wait_for()
    assert (text.input_value("#view"), text.is_checked("#first")) == ("1", False)
    text.evaluate("location.hash = 'token=5&layer=all'")
    text.locator("#query", has_text="Token 5:").wait_for()
    assert text.input_value("#view") == "0"


@pytest.mark.slow
def test_a_token_of_a_long_text(text: Any, summed: AttentionSum) -> None:
    """The table, the shaded tokens and the file are its row, in the sum and in a head."""
    for place, weights in enumerate([summed.total, head_of(summed)]):
        query = 20 + place
        text.select_option("#view", str(place))
        click(text, query)
        expected = {key: w for key, w in enumerate(weights[query].tolist()) if w > 0}
        found = {int(position): float(weight) for _, position, _, weight, _ in table(text)}
        assert found == pytest.approx(expected, rel=5e-3)
        shaded = text.locator("#text span").evaluate_all(
            """chips => chips.filter(chip => chip.style.getPropertyValue("--shade"))
              .map(chip => Number(chip.dataset.index))"""
        )
        assert sorted(shaded) == sorted(expected)
        _, content = downloaded(text, "#numbers")
        rows = list(csv.DictReader(io.StringIO(content)))
        assert [r["token"] for r in rows] == [WORDS[key] for key in expected]
        saved = [float(r["weight"]) for r in rows]
        assert saved == pytest.approx(list(expected.values()), rel=1e-3)
    _, figure = downloaded(text, "#figure")
    assert "</script>" in "".join(ElementTree.fromstring(figure).itertext())  # of token 21
    assert text.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert text.locator("img").count() == 0


@pytest.mark.slow
def test_search_and_tokens_without_attention(text: Any, summed: AttentionSum) -> None:
    text.fill("#search input", "word2")
    told = text.inner_text("#search .note")
    assert told.startswith("9 found")  # 2, and 20 to 29 without 21 and 28
    text.press("#search input", "Enter")
    text.locator("#query", has_text="Token 2:").wait_for()
    text.fill("#search input", "")
    text.check("#unread")
    for place, weights in enumerate((summed.total, head_of(summed))):
        others = weights.clone().fill_diagonal_(0).sum(0)
        none = (others == 0).nonzero().flatten().tolist()
        text.select_option("#view", str(place))
        text.locator("#unread + span", has_text=f"({len(none)})").wait_for()
        marked = text.locator("#text.unread span.none").evaluate_all(
            "chips => chips.map(chip => Number(chip.dataset.index))"
        )
        assert marked == none
    assert none
