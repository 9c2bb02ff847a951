"""The page of a long text: its numbers, and what a reader sees in a browser."""

import base64
import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from sparse_attn import patch_model
from sparse_attn.inspection import record_attention, text_page
from sparse_attn.inspection.long_text import STEP, summing
from sparse_attn.inspection.long_text.summing import AttentionSum, sum_attention
from tests.hf.families import BERT, LLAMA, tokens
from tests.watched import watched

LENGTH = 30
WORDS = [f" word{i}" if i % 7 else "\nThe </script><b>" for i in range(LENGTH)]
CHOSEN = [(0, 1), (1, -1)]


def llama(mapping: str = "sparsemax", **changes: Any) -> Any:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, **changes}, initializer_range=0.5)).eval()
    return patch_model(model, mapping)


def dense(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Weights of all layers, (layers, heads, N, N)."""
    with torch.no_grad(), record_attention(model, weights=True) as record:
        model(ids)
    return torch.cat([weights for weights in record.weights if weights is not None])


@pytest.fixture(scope="module")
def model() -> Any:
    return llama()


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    torch.manual_seed(1)
    return tokens(1, LENGTH)


@pytest.fixture(scope="module")
def found(model: Any, ids: torch.Tensor) -> AttentionSum:
    with torch.no_grad(), sum_attention(model, LENGTH, CHOSEN) as summed:
        model(ids)
    return summed


def decoded(page: str, place: int, count: int) -> np.ndarray:
    """The weights of a view, (N, N), as the script decodes them."""
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])
    packed = re.findall(rf'id="view-{place}">(.*?)</script>', page)[0]
    numbers = np.frombuffer(gzip.decompress(base64.b64decode(packed)), "<u2").astype(float)
    lengths = numbers[:count].astype(int)
    total = lengths.sum()
    differences, codes = numbers[count : count + total], numbers[count + total :]
    made, place_in = np.zeros((count, count)), 0
    for query, length in enumerate(lengths):
        own = slice(place_in, place_in + length)
        keys = differences[own].cumsum().astype(int)
        made[query, keys] = data["most"][place] * np.exp((codes[own] - 65535) * STEP)
        place_in += length
    return made


def test_the_sum_and_the_chosen_heads(model: Any, ids: torch.Tensor, found: AttentionSum) -> None:
    weights = dense(model, ids)
    torch.testing.assert_close(found.total, weights.sum((0, 1)))
    assert list(found.heads) == [(0, 1), (1, 3)]
    page = text_page(found, WORDS)
    for place, expected in enumerate([weights.sum((0, 1)), weights[0, 1], weights[1, 3]]):
        made = decoded(page, place, LENGTH)
        np.testing.assert_allclose(made, expected, rtol=1e-3)
        assert ((made > 0) == (expected > 0).numpy()).all()


@pytest.mark.parametrize("window", [None, 8])
def test_a_generated_text(window: int | None) -> None:
    """Read in steps, with a cache that grows or keeps a window."""
    torch.manual_seed(0)
    sizes = {**LLAMA, "initializer_range": 0.5}
    if window is None:
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=window))
    patch_model(model.eval(), "sparsemax")
    prompt = tokens(1, 12)
    given = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with torch.no_grad(), sum_attention(model, 18, [(0, 0)]) as found:
        written = model.generate(prompt, attention_mask=torch.ones_like(prompt), **given)
    weights = dense(model, written)
    assert found.queries == 17
    torch.testing.assert_close(found.total[:17], weights.sum((0, 1))[:17], atol=1e-5, rtol=1e-4)
    assert not found.total[17].any()
    page = text_page(found, [str(i) for i in range(18)], generated=6)
    np.testing.assert_allclose(decoded(page, 1, 18)[:17], weights[0, 0, :17], rtol=2e-3)


def test_what_is_left_out_is_told(
    model: Any, ids: torch.Tensor, found: AttentionSum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparse_attn.inspection.long_text.MOST_SUMMED", 3 * LENGTH)
    page = text_page(found, WORDS)
    made, total = decoded(page, 0, LENGTH), found.total.numpy()
    assert (made > 0).sum(1).max() == 3
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])
    assert data["leftOut"] == pytest.approx(1 - made.sum() / total.sum(), abs=1e-3)
    monkeypatch.undo()
    softmax = llama("softmax")
    with torch.no_grad(), sum_attention(softmax, LENGTH, threshold=0.2) as rest:
        softmax(ids)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text_page(rest, WORDS), re.S)[0])
    weights = dense(softmax, ids)
    few = float(weights[weights <= 0.2].sum() / weights.sum())
    assert data["leftOut"] == pytest.approx(few, abs=0.05)


def test_errors(model: Any, ids: torch.Tensor, found: AttentionSum, monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match="tokens: expected 30, as were summed, got 2"):
        text_page(found, ["a", "b"])
    with pytest.raises(ValueError, match="expected 20 tokens, got 30"), sum_attention(model, 20):
        model(ids)
    many = pytest.raises(ValueError, match="expected one text, got a batch of 2")
    with many, sum_attention(model, LENGTH):
        model(ids.expand(2, -1))
    monkeypatch.setattr("sparse_attn.inspection.long_text.MOST_EXACT", 5)
    with pytest.raises(ValueError, match=r"heads: the 2 chosen heads have .* choose fewer heads"):
        text_page(found, WORDS)


def test_tokens_from_before(model: Any, ids: torch.Tensor) -> None:
    cache = model(ids[:, :4], use_cache=True).past_key_values
    before = pytest.raises(ValueError, match="attends to tokens that were read before; start with")
    with torch.no_grad(), before, sum_attention(model, LENGTH - 4):
        model(ids[:, 4:], past_key_values=cache)


def test_layers_that_share_a_module() -> None:
    torch.manual_seed(0)
    sizes = {**BERT, "embedding_size": 8, "num_hidden_layers": 3, "initializer_range": 0.5}
    model = patch_model(AlbertModel(AlbertConfig(**sizes)).eval(), "sparsemax")
    ids = tokens(1, 9)
    with torch.no_grad(), sum_attention(model, 9) as found:
        model(ids)
    torch.testing.assert_close(found.total.sum(1), torch.full((9,), 12.0))
    shared = pytest.raises(ValueError, match="is several layers, whose heads have no numbers")
    with torch.no_grad(), shared, sum_attention(model, 9, [(0, 1)]):
        model(ids)


@pytest.mark.slow
def test_a_page_of_8192_tokens_is_below_20_mb() -> None:
    """The largest sum and the largest heads, of weights that do not compress."""
    count = 8192
    record = type("Record", (), {})()
    record.mass, record.mean, record.layers = torch.ones(1, 1), 0.0, ["layer"]
    generator = torch.Generator().manual_seed(0)
    total = torch.rand(count, count, generator=generator).tril_()
    each = 2_600_000 // count
    columns = torch.rand(count, count, generator=generator).topk(each, 1).indices.sort(1).values
    starts = torch.arange(count + 1) * each
    rows = summing.Rows(starts, columns.flatten(), torch.rand(count * each, generator=generator))
    found = AttentionSum(record, total, {(0, 0): rows}, count)
    page = text_page(found, [" antidisestablishmentarianism"] * count)
    assert 10e6 < len(page.encode()) < 20e6


@pytest.fixture(
    scope="module",
    params=[(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")],
    ids=lambda given: f"{given[0]} {given[1]}",
)
def page(request: Any, browser: Any, found: AttentionSum, tmp_path_factory: Any) -> Iterator[Any]:
    """The page in Chromium, which may report nothing and ask for no other file."""
    width, scheme = request.param
    path: Path = tmp_path_factory.mktemp("page") / "text.html"
    made = text_page(found, WORDS, title="A <title>", mapping="sparsemax", generated=3)
    path.write_text(made, encoding="utf-8")
    look = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with watched(browser, path, accept_downloads=True, **look) as opened:
        opened.wait_for_selector("#read tbody tr")
        yield opened


def choose(page: Any, token: int) -> None:
    # on a narrow screen the bar may lie over it
    page.locator("#text span").nth(token).dispatch_event("click")
    page.wait_for_function(
        f"document.getElementById('query').textContent.startsWith('Token {token}:')"
    )


def shown_rows(page: Any) -> dict[int, float]:
    """Position and weight of the table's rows."""
    cells = page.locator("#read tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return {int(position): float(weight) for _, position, weight, _ in cells}


def test_clicked_tokens(page: Any, found: AttentionSum) -> None:
    """The table and the shaded tokens are the row, in the sum and in a head."""
    for place, rows in enumerate([found.total, None]):
        page.select_option("#view", str(place))
        choose(page, 20)
        if rows is None:
            own = found.heads[0, 1]
            part = slice(int(own.starts[20]), int(own.starts[21]))
            expected = dict(
                zip(own.columns[part].tolist(), own.weights[part].tolist(), strict=True)
            )
            page.wait_for_function(
                f"document.querySelectorAll('#text span[style]').length == {len(expected)}"
            )
        else:
            expected = {key: float(w) for key, w in enumerate(rows[20]) if w > 0}
        shown = shown_rows(page)
        assert shown == pytest.approx(expected, rel=5e-3)
        shaded = page.locator("#text span[style]").evaluate_all(
            "chips => chips.map(chip => Number(chip.dataset.index))"
        )
        assert sorted(shaded) == sorted(expected)
    page.select_option("#view", "0")


def test_search_and_tokens_without_attention(page: Any, found: AttentionSum) -> None:
    page.fill("#search input", "word2")
    assert page.inner_text("#search .note").startswith(
        "9 found"
    )  # 2, and 20 to 29 without 21 and 28
    page.press("#search input", "Enter")
    page.wait_for_function("document.getElementById('query').textContent.startsWith('Token 2:')")
    page.fill("#search input", "")
    page.check("#unread")
    own = found.heads[0, 1]
    query = torch.arange(LENGTH).repeat_interleave(own.starts.diff())
    matrix = torch.zeros(LENGTH, LENGTH)
    matrix[query, own.columns] = own.weights
    for place, weights in enumerate((found.total, matrix)):
        others = weights.clone().fill_diagonal_(0).sum(0)
        none = [i for i, mass in enumerate(others.tolist()) if not mass > 0]
        page.select_option("#view", str(place))
        page.wait_for_function(
            f"document.querySelector('#unread + span').textContent == '({len(none)})'"
        )
        told = page.locator("#text.unread span.none").evaluate_all(
            "chips => chips.map(chip => Number(chip.dataset.index))"
        )
        assert told == none
    assert 0 < len(none) < LENGTH
    page.select_option("#view", "0")
    page.uncheck("#unread")


def test_keys(page: Any) -> None:
    choose(page, 10)
    page.focus("#text")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.getElementById('query').textContent.startsWith('Token 11:')")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.getElementById('query').textContent.startsWith('Token 10:')")


def test_saved_files(page: Any, found: AttentionSum, tmp_path: Path) -> None:
    page.select_option("#view", "0")
    choose(page, 25)
    with page.expect_download() as download:
        page.click("#numbers")
    text = Path(download.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = found.total[25]
    assert [int(row["position"]) for row in rows] == expected.nonzero().flatten().tolist()
    for row in rows:
        position = int(row["position"])
        assert float(row["weight"]) == pytest.approx(float(expected[position]), rel=1e-3)
        assert row["token"] == WORDS[position]
    with page.expect_download() as download:
        page.click("#figure")
    figure = Path(download.value.path()).read_text(encoding="utf-8")
    assert figure.startswith("<svg")
    assert "Token 25" in figure
    assert "<b>" not in figure


def test_layout(page: Any) -> None:
    """Nothing is wider than the window, and text is legible on what is below it."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ratio = page.evaluate(
        """() => {
          const light = (colour) => {
            const canvas = new OffscreenCanvas(1, 1).getContext("2d");
            canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
            const part = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((byte) => {
              const x = byte / 255;
              return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
          };
          const worst = [...document.querySelectorAll("#text span[style]")].map((chip) => {
            const style = getComputedStyle(chip);
            const [a, b] = [light(style.color), light(style.backgroundColor)].sort();
            return (b + 0.05) / (a + 0.05);
          });
          return Math.min(...worst);
        }"""
    )
    assert ratio > 4.5
