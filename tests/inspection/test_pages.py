"""What pages hold: the numbers of the record, text that stays text, and nothing to fetch."""

import base64
import hashlib
import html
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
)

from sparse_attn import patch_model, patched
from sparse_attn.inspection import (
    attention_page,
    record_attention,
    sum_attention,
    text_page,
    write_page,
)
from sparse_attn.inspection.long_text import most_selective
from sparse_attn.inspection.long_text.summing import AttentionSum
from tests.hf.families import BERT, LLAMA, tokens
from tests.inspection.page_data import Page, Record, numbers, text_data, text_weights
from tests.inspection.tiny import bert

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</script x",
    "<!-- <script ",
    "]]>&lt;&amp;",
    "\u2028\u2029",
    "\ud800",
    '"\\',
    "$data ${title}",
]


def weights(heads: int, tokens: int, batch: int = 1) -> torch.Tensor:
    """Probabilities with exact zeros."""
    p = torch.rand(batch, heads, tokens, tokens)
    p = p.where(p > 0.4, 0.0)
    return p / p.sum(-1, keepdim=True).clamp(min=1e-9)


def test_zeros_stay_zero_and_nothing_else_becomes_zero() -> None:
    p = torch.tensor([1.0, 0.5, 0.1, 1e-7, 1e-38, 1e-45, 0.0, 1 + 1e-7]).expand(1, 2, 8, 8)
    valid = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    page = attention_page({"a": Record([p], [valid])}, list("abcdefgh"))
    found = Page(page).p(0, 0)
    expected = p[0].double().clamp(max=1).where(valid[0], math.nan)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found == 0, expected == 0)
    torch.testing.assert_close(found, expected, rtol=8e-4, atol=0, equal_nan=True)
    assert found[0, 7, 0] == 1


def test_the_text_asked_for_is_shown_and_its_padding_known() -> None:
    p, valid = weights(2, 5, batch=2), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    valid[1, ..., 3:] = False
    page = Page(attention_page({"a": Record([p], [valid])}, list("abcde"), example=1))
    found = page.p(0, 0)
    assert found[..., 3:].isnan().all()
    torch.testing.assert_close(found[..., :3], p[1, ..., :3].double(), rtol=8e-4, atol=0)
    # padded queries count no more than padded keys
    zeros = (p[1, :, :3, :3] == 0).double().mean((-2, -1))
    assert page.data["sides"][0]["layers"][0]["zeros"] == pytest.approx(zeros.tolist())


def test_numbers_are_those_of_the_record() -> None:
    model = bert()
    ids = torch.randint(5, 40, (1, 9))
    ids[0, :2] = 3
    valid = torch.arange(9)[None] < 7
    recording = record_attention(model, special_ids=[3], weights=True)
    with torch.no_grad(), patched(model, "r-softmax", r=0.4), recording as record:
        model(input_ids=ids, attention_mask=valid.long())
    special = (ids[0] == 3).int().tolist()
    data = Page(attention_page({"a": record}, [f"t{i}" for i in ids[0]], special_mask=special)).data
    assert data["layers"] == record.layers
    assert data["sides"][0]["mappings"] == ["r-softmax"] * 2
    for i, layer in enumerate(data["sides"][0]["layers"]):
        assert layer["zeros"] == pytest.approx(record.zeros[i].tolist(), abs=1e-12)
        for name, mean in (("entropy", record.entropy[i]), ("special", record.special[i])):
            rows = numbers(layer[name], "<f4").reshape(-1, 9)[:, :7]
            torch.testing.assert_close(rows.mean(-1), mean, rtol=1e-6, atol=0)


def test_rows_that_do_not_sum_to_one() -> None:
    p = torch.tensor([[0.5, 0.25], [3.0, 1e-3]]).expand(1, 1, 2, 2)
    page = Page(attention_page({"a": Record([p, p / 4], mappings=["relu", "relu"])}, ["a", "b"]))
    torch.testing.assert_close(page.p(0, 0), p[0].double(), rtol=8e-4, atol=0)
    torch.testing.assert_close(page.p(0, 1), p[0].double() / 4, rtol=8e-4, atol=0)
    big, small = page.data["sides"][0]["layers"]
    assert (big["most"], small["most"]) == (3.0, 1.0)
    # entropy does not depend on the mass
    q = p.double() / p.double().sum(-1, keepdim=True)
    entropy = torch.special.entr(q).sum(-1).flatten()
    for layer in (big, small):
        found = numbers(layer["entropy"], "<f4")
        torch.testing.assert_close(found, entropy, rtol=1e-6, atol=0)
        assert layer["mass"]
    plain = Page(attention_page({"a": Record([weights(1, 3)])}, list("abc")))
    assert not plain.data["sides"][0]["layers"][0]["mass"]


def test_causal_model_and_layers_that_did_not_run() -> None:
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(**LLAMA)).eval()
    with torch.no_grad(), record_attention(model, weights=True) as record:
        model(torch.randint(5, 40, (1, 6)))
    last = Record([None, record.weights[1]], record.valid, record.layers, record.mappings)
    page = Page(attention_page({"a": last}, list("abcdef")))
    assert page.data["layers"] == [record.layers[1]]
    assert page.data["special"] is None
    assert torch.equal(page.p(0, 0)[0].isnan(), torch.ones(6, 6).triu(1).bool())


def test_hostile_text_stays_text() -> None:
    n = len(HOSTILE)
    names = [[text] for text in HOSTILE[:2]]
    sides = {
        text: Record([weights(1, n)], layers=names[0], mappings=names[1]) for text in HOSTILE[:2]
    }
    page = attention_page(sides, HOSTILE, title=HOSTILE[0] + "$data")
    plain = attention_page({"a": Record([weights(1, 1)]), "b": Record([weights(1, 1)])}, ["a"])
    read = Page(page)
    assert [tag for tag, _ in read.tags] == [tag for tag, _ in Page(plain).tags]
    assert read.data["tokens"] == HOSTILE
    assert read.data["layers"] == [HOSTILE[0]]
    assert read.data["sides"][0]["mappings"] == [HOSTILE[1]]
    assert read.names == HOSTILE[:2]
    assert read.texts["title"] == HOSTILE[0] + "$data"
    # not even an end tag that only a browser takes for one
    assert not set(read.texts["data"]) & set("<>&\u2028\u2029\ud800")


def test_the_page_allows_its_own_script_and_no_network() -> None:
    page = Page(attention_page({"a": Record([weights(1, 2)])}, ["a", "b"]))
    (policy,) = (a["content"] for _, a in page.tags if "http-equiv" in a)
    rules = dict(rule.split(" ", 1) for rule in str(policy).split("; "))
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.texts[tag].encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == f"'sha256-{digest}'"
    nothing = dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")
    assert rules == nothing | {"img-src": "data:"}
    assert not [a for _, a in page.tags if "src" in a or a.get("href", "data:,") != "data:,"]


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    elsewhere, link = tmp_path / "elsewhere.html", tmp_path / "page.html"
    elsewhere.write_text("mine")
    link.symlink_to(elsewhere)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write_page(link, "page")
    assert write_page(link, "<é>", overwrite=True).read_text("utf-8") == "<é>"
    # the link was replaced, not followed
    assert elsewhere.read_text() == "mine"


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    page = attention_page({"a": Record([weights(2, 3)])}, ["<b>", "c", "d"])
    (frame,) = re.findall(r'^<iframe srcdoc="([^"]*)" width', page._repr_html_())
    assert html.unescape(frame) == page


# A long text

LENGTH = 30


def llama(mapping: str = "sparsemax") -> Any:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA, initializer_range=0.5)).eval()
    return patch_model(model, mapping)


def dense(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Weights of all layers, (layers, heads, N, N)."""
    with torch.no_grad(), record_attention(model, weights=True) as record:
        model(ids)
    return torch.cat([weights for weights in record.weights if weights is not None])


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    torch.manual_seed(1)
    return tokens(1, LENGTH)


@pytest.fixture(scope="module")
def summed(ids: torch.Tensor) -> AttentionSum:
    model = llama()
    with torch.no_grad(), sum_attention(model, LENGTH, [(0, 1), (1, -1)]) as found:
        model(ids)
    return found


def words(count: int) -> list[str]:
    return [f" word{i}" for i in range(count)]


def test_the_sum_and_the_chosen_heads(ids: torch.Tensor, summed: AttentionSum) -> None:
    expected = dense(llama(), ids)
    torch.testing.assert_close(summed.total, expected.sum((0, 1)))
    assert list(summed.heads) == [(0, 1), (1, 3)]
    page = text_page(summed, words(LENGTH))
    for place, p in enumerate([expected.sum((0, 1)), expected[0, 1], expected[1, 3]]):
        found = text_weights(page, place)
        torch.testing.assert_close(found, p.double(), rtol=1e-3, atol=0)
        assert torch.equal(found > 0, p > 0)


@pytest.mark.parametrize("window", [None, 8])
def test_a_generated_text(window: int | None) -> None:
    """Read in steps, with a cache that grows or keeps a window."""
    model: Any = llama()
    if window is not None:
        torch.manual_seed(0)
        config = MistralConfig(**LLAMA, initializer_range=0.5, sliding_window=window)
        model = patch_model(MistralForCausalLM(config).eval(), "sparsemax")
    prompt = tokens(1, 12)
    given = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with torch.no_grad(), sum_attention(model, 18, [(0, 0)]) as found:
        written = model.generate(prompt, attention_mask=torch.ones_like(prompt), **given)
    expected = dense(model, written)
    assert found.queries == 17
    torch.testing.assert_close(found.total[:17], expected.sum((0, 1))[:17], atol=1e-5, rtol=1e-4)
    assert not found.total[17].any()
    shown = text_weights(text_page(found, words(18), generated=6), 1)
    torch.testing.assert_close(shown[:17], expected[0, 0, :17].double(), rtol=2e-3, atol=1e-6)


def test_the_share_that_is_left_out_is_told(
    ids: torch.Tensor, summed: AttentionSum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sums that are too large for a page, and of weights below the threshold."""
    monkeypatch.setattr("sparse_attn.inspection.long_text.MOST_SUMMED", 3 * LENGTH)
    page = text_page(summed, words(LENGTH))
    shown = text_weights(page, 0)
    assert (shown > 0).sum(1).max() == 3
    share = 1 - shown.sum().item() / summed.total.sum().item()
    assert text_data(page)["leftOut"] == pytest.approx(share, abs=1e-3)
    monkeypatch.undo()
    softmax = llama("softmax")
    with torch.no_grad(), sum_attention(softmax, LENGTH, threshold=0.2) as rest:
        softmax(ids)
    p = dense(softmax, ids)
    few = float(p[p <= 0.2].sum() / p.sum())
    assert text_data(text_page(rest, words(LENGTH)))["leftOut"] == pytest.approx(few, abs=0.05)


def test_the_heads_with_the_most_zeros(ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names the rule, unless other heads were chosen."""
    monkeypatch.setattr("sparse_attn.inspection.long_text.MOST_SELECTIVE", 3)
    model, p = llama(), dense(llama(), ids)
    weights = (p > 0).sum((2, 3)).flatten()
    expected = [divmod(int(i), 4) for i in weights.argsort()[:3].sort().values]
    for heads in (expected, expected[:2]):
        with torch.no_grad(), sum_attention(model, LENGTH, heads) as found:
            model(ids)
        assert most_selective(found.record, LENGTH) == expected
        page = text_page(found, words(LENGTH))
        assert ("opens on the 3 of 8 heads with the highest share" in page) == (len(heads) == 3)
        assert text_data(page)["heads"] == [list(head) for head in heads]
        assert text_data(page)["causal"]
    room = int(weights.sort().values[:2].sum())
    monkeypatch.setattr("sparse_attn.inspection.long_text.MOST_EXACT", room)
    assert len(most_selective(found.record, LENGTH)) == 2


def test_layers_that_share_a_module() -> None:
    sizes = {**BERT, "embedding_size": 8, "num_hidden_layers": 3, "initializer_range": 0.5}
    model = patch_model(AlbertModel(AlbertConfig(**sizes)).eval(), "sparsemax")
    with torch.no_grad(), sum_attention(model, 9) as found:
        model(tokens(1, 9))
    torch.testing.assert_close(found.total.sum(1), torch.full((9,), 12.0))
    shared = pytest.raises(ValueError, match="is several layers, whose heads have no numbers")
    with torch.no_grad(), shared, sum_attention(model, 9, [(0, 1)]):
        model(tokens(1, 9))
    assert most_selective(found.record, 9) == []


def test_texts_that_cannot_be_summed(
    ids: torch.Tensor, summed: AttentionSum, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama()
    cache = model(ids[:, :4], use_cache=True).past_key_values
    calls: list[tuple[str, int, Any]] = [
        ("expected 20 tokens, got 30", 20, {"input_ids": ids}),
        ("expected one text, got a batch of 2", LENGTH, {"input_ids": ids.expand(2, -1)}),
        ("read before; start", LENGTH - 4, {"input_ids": ids[:, 4:], "past_key_values": cache}),
    ]
    for says, count, given in calls:
        with pytest.raises(ValueError, match=says), sum_attention(model, count):
            model(**given)
    with pytest.raises(ValueError, match="tokens: expected 30, as were summed, got 2"):
        text_page(summed, ["a", "b"])
    monkeypatch.setattr("sparse_attn.inspection.long_text.MOST_EXACT", 5)
    with pytest.raises(ValueError, match=r"heads: the 2 chosen heads have .* choose fewer heads"):
        text_page(summed, words(LENGTH))
