"""`sparse-attn inspect --file` and `--generate`: the page, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from sparse_attn import cli, patch_model
from sparse_attn.inspection import sum_attention
from tests.commands import refusal
from tests.hf.families import BERT, LLAMA
from tests.inspection.test_long_text import decoded
from tests.letters import letter_tokenizer

TEXT = "abc abd " * 5


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A language model and an encoder, with a tokenizer of letters."""
    tokenizer = letter_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "initializer_range": 0.5}
    torch.manual_seed(0)
    models = {
        "causal": LlamaForCausalLM(
            LlamaConfig(**{**LLAMA, **sizes, "eos_token_id": None, "max_position_embeddings": 64})
        ),
        "encoder": BertModel(BertConfig(**{**BERT, **sizes, "max_position_embeddings": 64})),
    }
    folders = {}
    for name, model in models.items():
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders[name] = str(folder)
    return folders


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)


def look(*arguments: Any) -> tuple[dict[str, Any], str]:
    """The page's data, and the page."""
    cli.main(["inspect", *map(str, arguments)])
    page = Path("attention.html").read_text(encoding="utf-8")
    return json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0]), page


def test_a_file(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--file", "text.txt", "--mapping", "sparsemax", "--heads", "0:1,1"]
    data, page = look(folders["encoder"], *given)
    assert "sparsemax" in capsys.readouterr().out
    count = len(data["tokens"])
    assert data["views"] == [
        "All layers and heads, summed",
        *("Layer 0, head 1", *(f"Layer 1, head {head}" for head in range(4))),
    ]
    model = patch_model(BertModel.from_pretrained(folders["encoder"]), "sparsemax")
    ids = letter_tokenizer()(TEXT, return_tensors="pt")
    with torch.no_grad(), sum_attention(model, count, [(0, 1)]) as found:
        model(**ids)
    made = torch.from_numpy(decoded(page, 0, count)).float()
    torch.testing.assert_close(made, found.total, rtol=2e-3, atol=1e-5)
    assert data["threshold"] == 0


def test_generated_text(folders: dict[str, str]) -> None:
    data, page = look(folders["causal"], TEXT, "--generate", 5, "--mapping", "entmax:alpha=1.5")
    prompt = len(letter_tokenizer()(TEXT)["input_ids"])
    assert (len(data["tokens"]), data["generated"]) == (prompt + 5, 5)
    assert data["queries"] == prompt + 4
    sums = decoded(page, 0, prompt + 5).sum(1)
    assert sums[:-1] == pytest.approx(8, rel=1e-2)  # two layers of four heads
    assert sums[-1] == 0


def test_softmax_leaves_out_small_weights(folders: dict[str, str]) -> None:
    data, _ = look(folders["causal"], "--file", "text.txt")
    assert (data["mapping"], data["threshold"]) == ("softmax", 1e-4)
    assert 0 <= data["leftOut"] < 0.01


REFUSED = [
    (["CAUSAL"], "one of the arguments TEXT --file is required"),
    (["CAUSAL", "a", "--file", "text.txt"], "not allowed with argument"),
    (["CAUSAL", "--file", "no.txt"], "--file no.txt: there is no such file"),
    (["CAUSAL", "--file", "empty.txt"], "--file empty.txt: holds no text"),
    (["CAUSAL", "--file", "latin.txt"], "--file latin.txt: is not UTF-8"),
    (["CAUSAL", "--file", "long.txt"], "long.txt has .* but the model reads at most 64; shorten"),
    (["CAUSAL", TEXT, "--generate", "60"], "TEXT with --generate 60 has .* at most 64"),
    (["CAUSAL", TEXT, "--generate", "0"], "--generate 0: expected at least 1"),
    (["ENCODER", TEXT, "--generate", "2"], "--generate: .* is no causal language model"),
    (["CAUSAL", TEXT, "--heads", "1"], "--heads 1: only for --file and --generate"),
    (["CAUSAL", "--file", "text.txt", "--heads", "a"], "--heads a: expected LAYER:HEAD"),
    (["CAUSAL", "--file", "text.txt", "--heads", "2"], "there is no layer 2; the model has 2"),
    (["CAUSAL", "--file", "text.txt", "--heads", "1:9"], "--heads 1:9: layer 1 has no head 9"),
    (["CAUSAL", "--file", "text.txt", "--pair", "b"], "--pair: not for --file and --generate"),
    (
        ["CAUSAL", "--file", "text.txt", *["--mapping", "sparsemax"] * 2],
        "--mapping is given twice: expected one",
    ),
    (["CAUSAL", "--file", "text.txt", "--max-tokens", "9999"], "a page shows at most 8192"),
    (["CAUSAL", "--file", "text.txt", "--max-tokens", "5"], "but --max-tokens allows 5; shorten"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED)
def test_wrong_input(
    words: list[str], says: str, folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.txt").write_text(" \n")
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("long.txt").write_text("abc " * 50)
    given = [folders.get(word.lower(), word) for word in words]
    message = refusal(lambda w: cli.main(["inspect", *w]), capsys, *given)
    assert re.search(says, message), message
    assert not Path("attention.html").exists()
