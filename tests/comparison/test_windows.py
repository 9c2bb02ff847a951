"""Long texts in windows, beside a program of its own that reads each window alone."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from sparse_attn import cli, patched
from sparse_attn.comparison import comparison
from sparse_attn.comparison.page import NOT_JUDGED, make_page, notes
from sparse_attn.comparison.windows import Window, cut_windows, hide_numbers
from sparse_attn.reports import bootstrap
from tests.commands import refusal
from tests.comparison.running import Models, compared
from tests.letters import letter_tokenizer

LETTERS = "".join(random.Random(0).choices("abcdefgh ", k=300)) + "x"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 99)


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    path = tmp_path / "long.txt"
    path.write_text(f"{LETTERS[:90]}\n\n{LETTERS[90:]}\n")
    return path


def own_perplexity(folder: Path, path: Path, length: int, stride: int, **mapping: Any) -> float:
    """Perplexity as in Transformers' guide: overlapping windows, each word scored once."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = path.read_text().rstrip("\n")
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    total, count, before = 0.0, 0, 0
    with patched(model, **mapping), torch.no_grad():
        for begin in range(0, ids.shape[1] - length + 1, stride):
            part = ids[:, begin : begin + length]
            labels = part.clone()
            labels[:, : before - begin if begin else 0] = -100
            found = int((labels[:, 1:] != -100).sum())
            total += float(model(part, labels=labels).loss) * found
            count, before = count + found, begin + length
    return float(np.exp(total / count))


@pytest.mark.parametrize("stride", [None, 5, 20])
def test_perplexity(models: Models, long_text: Path, stride: int | None) -> None:
    given = ["--max_length", 20, *(["--stride", stride] if stride else ["--windows", 99])]
    record = compared(models.causal, "--texts", long_text, *given, "--mappings", "entmax:alpha=1.5")
    (row,) = record["mappings"]
    for found, mapping in (
        (record["softmax"], {"mapping": "softmax"}),
        (row["quality"], {"mapping": "entmax", "alpha": 1.5}),
    ):
        expected = own_perplexity(models.causal, long_text, 20, stride or 20, **mapping)
        assert found == pytest.approx(expected, rel=1e-4)
    assert record["windows"] == {"tokens": 20, "stride": stride or 20, "of": 265}
    assert record["rows"] == len(range(0, 265 - 19, stride or 20))
    assert "random" in row


def test_several_values_of_a_parameter(models: Models, long_text: Path) -> None:
    record = compared(
        models.causal, "--texts", long_text, "--windows", 6, "--max_length", 30,
        "--mappings", "entmax:alpha=1.25/1.5,r-softmax:r=0.2/0.4,sparsemax",
    )  # fmt: skip
    names = [row["mapping"] for row in record["mappings"]]
    assert names == [
        *("entmax alpha=1.25", "entmax alpha=1.5", "r-softmax r=0.2", "r-softmax r=0.4"),
        "sparsemax",
    ]
    assert record["rows"] == 6
    page = make_page(record)
    assert "6 windows of" in str(page.overview[0])
    assert any("Windows: 6 of 30 tokens, of a text of 265" in note for note in notes(record))
    assert NOT_JUDGED not in notes(record)


def test_controls_of_long_windows_read_their_start(
    models: Models, long_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "LONGEST", 16)
    given = ["--texts", long_text, "--windows", 7, "--mappings", "sparsemax,softmax:sink=0"]
    record = compared(models.causal, *given, "--max_length", 40)
    sparse, dense = record["mappings"]
    assert "random" not in dense
    assert record["controlled"] == 16
    ours = sparse["random"]["ours"]
    assert sparse["random"]["zeros"] == pytest.approx(ours["zeros"], rel=0.1)
    assert sparse["zeros"] > ours["zeros"]  # longer rows have more
    difference = sparse["against_random"]["value"]
    assert difference == pytest.approx(ours["quality"] - sparse["random"]["quality"])


def test_needles(long_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was not trained finds none; with its own likeliest words for answers, all."""
    tokenizer = letter_tokenizer()
    long_text.write_text(LETTERS * 6)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 200}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).eval()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    given = ["--texts", long_text, "--max_length", 200, "--needles", 6, "--mappings", "sparsemax"]
    record = compared(tmp_path / "model", *given)
    assert (record["metric"], record["softmax"], record["rows"]) == ("numbers found", 0, 6)
    assert any("hides a number" in note for note in notes(record))
    assert NOT_JUDGED in notes(record)

    def answered(*arguments: Any) -> list[Window]:
        found = []
        for window in hide_numbers(*arguments):
            ids = list(window.ids[: -window.scored])
            for _ in range(window.scored):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            found.append(Window(tuple(ids), window.scored))
        return found

    monkeypatch.setattr(comparison, "hide_numbers", answered)
    record = compared(tmp_path / "model", *given)
    assert record["softmax"] == 1


def test_windows_score_each_token_once_and_start_alike() -> None:
    windows = cut_windows(range(20), [99], 6, 2, None)
    assert all(w.ids[0] == 99 and len(w.ids) == 6 for w in windows)
    scored = [token for w in windows for token in w.ids[-w.scored :]]
    assert scored == list(range(19))  # a last one fills no window
    first, second = cut_windows(range(8), [], 4, 4, None)
    assert (first.scored, second.scored) == (3, 3)


@pytest.mark.parametrize("count", [1, 3])
def test_numbers_are_hidden_at_all_depths(count: int) -> None:
    tokenizer = letter_tokenizer()
    windows = [Window(tuple(range(1, 9)) * 40, 319)] * 3
    hidden = hide_numbers(windows, [], tokenizer, count)
    assert {len(window.ids) for window in hidden} == {320}
    again = hide_numbers(windows, [], tokenizer, count)
    assert hidden == again
    assert len(set(hidden)) == count
    for window in hidden:
        number = tokenizer.decode(window.ids[-window.scored :]).replace(" ", "")
        assert len(number) == 7
        assert number.isdigit()
        assert tokenizer.decode(window.ids).replace(" ", "").count(number) == 2
    with pytest.raises(ValueError, match="--needles 4: the text has 3 windows;"):
        hide_numbers(windows, [], tokenizer, 4)


@pytest.mark.parametrize("count", [6, 8, 20, 50])
def test_depth_is_not_confounded_with_the_window(count: int) -> None:
    tokenizer = letter_tokenizer()
    windows = [Window((1,) * 500, 499)] * count
    hidden = hide_numbers(windows, [], tokenizer, count)
    depths = [next(i for i, token in enumerate(w.ids) if token != 1) for w in hidden]
    length = max(depths)
    assert np.diff(sorted(depths)) == pytest.approx(length / (count - 1), abs=1)
    assert abs(np.corrcoef(range(count), depths)[0, 1]) < 0.2


def test_wrong_input(models: Models, long_text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["--texts", str(long_text), "--mappings", "sparsemax"]
    causal, encoder = str(models.causal), str(models.encoder)
    rows = [
        ([causal, *texts, "--windows", "0"], "--windows 0: expected at least 1"),
        ([causal, *texts, "--max_length", "1"], "1: expected at least 2, because a single token"),
        (
            [causal, *texts, "--max_length", "20", "--stride", "21"],
            "--stride 21: a window holds 20 tokens of the text, so .* give at most 20",
        ),
        ([causal, *texts, "--windows", "2", "--needles", "3"], "--windows 2: --needles 3 reads as"),
        ([causal, "--pairs", "a", "--windows", "2"], "--windows 2: only for --texts"),
        ([causal, *texts, "--max_length", "65"], "--max_length 65: .* reads at most 64 tokens"),
        ([encoder, *texts, "--windows", "2"], "is no causal language model"),
        ([causal, *texts, "--needles", "2", "--max_length", "9"], "--max_length 9: needle and"),
    ]
    for words, says in rows:
        message = refusal(lambda w: cli.main(["compare", *w]), capsys, *words)
        assert re.search(says, message), message
    long_text.write_text("abc")
    message = refusal(lambda w: cli.main(["compare", *w]), capsys, causal, *texts, "--windows", "2")
    assert re.search("has 3 tokens, fewer than a window of 64", message), message
