"""`sparse-attn inspect`: what it shows of a sentence and of a long text, and what it refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import (
    AutoModel,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
    CLIPModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5Model,
)

from sparse_attn import patch_model
from sparse_attn.cli import main
from sparse_attn.inspection import sum_attention
from tests.commands import refusal
from tests.hf.families import BERT, BY_NAME, LLAMA
from tests.inspection.page_data import Page, text_data, text_weights

TEXT = "the cat sat"
LONG = "the cat sat on a mat " * 4
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", "a", "mat"]
IDS = {word: number for number, word in enumerate(WORDS)}
MANY = {"max_position_embeddings": 64, "initializer_range": 0.5}

Save = Callable[..., str]
Look = Callable[..., tuple[Page, str]]


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Save a model with a tokenizer of a few words, and name the folder."""

    def saved(model: Any) -> str:
        folder = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder)
        BertTokenizerFast(vocab=IDS).save_pretrained(folder)
        return str(folder)

    return saved


@pytest.fixture(scope="module")
def bert(save: Save) -> str:
    torch.manual_seed(0)
    return save(BertModel(BertConfig(**{**BERT, **MANY})))


@pytest.fixture(scope="module")
def llama(save: Save) -> str:
    torch.manual_seed(0)
    return save(LlamaForCausalLM(LlamaConfig(**{**LLAMA, **MANY, "eos_token_id": None})))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def inspect(*arguments: Any) -> None:
    main(["inspect", *map(str, arguments)])


def inspected(*arguments: Any, output: str = "attention.html") -> str:
    """The page that the command writes."""
    inspect(*arguments)
    return Path(output).read_text(encoding="utf-8")


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """The one line with which the command ends."""
    capsys.readouterr()
    return refusal(lambda words: inspect(*words), capsys, *arguments)


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str]) -> Look:
    """The page of a sentence, and what the command prints."""

    def looked(*arguments: Any, output: str = "attention.html") -> tuple[Page, str]:
        capsys.readouterr()
        page = inspected(*arguments, output=output)
        printed = capsys.readouterr()
        assert printed.err == ""
        return Page(page), printed.out

    return looked


def shares(page: Page, side: int) -> Tensor:
    """Share of exact zeros among allowed pairs, by layer."""
    p = [page.p(side, layer) for layer in range(len(page.data["layers"]))]
    return torch.stack([(x == 0).sum() / (~x.isnan()).sum() for x in p])


def test_softmax_beside_r_softmax(bert: str, look: Look) -> None:
    page, out = look(bert, "the cats sat")
    data = page.data
    assert page.names == ["softmax", "r-softmax r=0.15"]
    assert data["tokens"] == ["[CLS]", "the", "cat", "##s", "sat", "[SEP]"]
    assert data["special"] == [1, 0, 0, 0, 0, 1]
    # Transformers' own softmax, on the same ids
    ids = torch.tensor([[IDS[token] for token in data["tokens"]]])
    model = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    with torch.no_grad():
        own = model(ids, output_attentions=True).attentions
    for layer, p in enumerate(own):
        torch.testing.assert_close(page.p(0, layer), p[0].double(), rtol=1e-3, atol=1e-6)
    # floor(r (n - 1)) + 1 of n = 6 keys
    assert shares(page, 1) == pytest.approx([1 / 6, 1 / 6])
    for part in ("encoder.layer.1.attention.self", "16.7%", "attention.html"):
        assert part in out
    # the page does not say where the model lies
    assert page.texts["title"] == f"Attention in BertModel ({Path(bert).name})"
    assert Path(bert).parent.name not in Path("attention.html").read_text(encoding="utf-8")


def test_two_mappings_a_pair_and_a_name(bert: str, look: Look) -> None:
    chosen = ["--mapping", "entmax:alpha=1.25", "--mapping", "relu"]
    command = [bert, "the cat", "--pair", "on a mat", *chosen, "--output", "pair.html"]
    page, out = look(*command, output="pair.html")
    assert page.names == ["entmax alpha=1.25", "relu"]
    assert " ".join(page.data["tokens"]) == "[CLS] the cat [SEP] on a mat [SEP]"
    assert ["mass" in side for side in out.split("\n\n")[:2]] == [False, True]


def test_a_saved_model_beside_softmax(save: Save, look: Look) -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**BERT, initializer_range=0.5))
    patch_model(model, "r-softmax", r=0.6, layers=[0])
    patch_model(model, "t-softmax", t=0.01, layers=[1], learn="t")
    page, _ = look(save(model), TEXT)
    assert page.names == ["saved: r-softmax r=0.6, t-softmax t learned", "softmax"]
    assert page.data["sides"][0]["mappings"] == ["r-softmax", "t-softmax"]
    assert shares(page, 0)[0] == pytest.approx(3 / 5)
    # the learned t is the one that was saved: only ties with the top survive
    assert shares(page, 0)[1] > 0.5
    assert shares(page, 1).tolist() == [0, 0]


def test_the_saved_mapping_is_not_shown_twice(
    save: Save, look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(patch_model(BertModel(BertConfig(**BERT)), "entmax", alpha=1.25))
    told = refused(capsys, folder, TEXT, "--mapping", "entmax:alpha=1.25")
    assert "both sides would be entmax alpha=1.25" in told
    folder = save(patch_model(BertModel(BertConfig(**BERT)), "softmax"))
    assert look(folder, TEXT)[0].names == ["saved: softmax", "r-softmax r=0.15"]


def test_encoder_of_an_encoder_decoder(save: Save, look: Look) -> None:
    page, out = look(save(T5Model(T5Config(**BY_NAME["t5"].config))), TEXT)
    assert all(layer.startswith("encoder.") for layer in page.data["layers"])
    assert "T5Model: its encoder reads the text; the decoder does not run" in out


def test_bytes_of_a_character_are_shown_apart(tmp_path: Path, look: Look) -> None:
    letters = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteDecoder()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    LlamaModel(LlamaConfig(**{**LLAMA, "vocab_size": len(letters)})).save_pretrained(tmp_path)
    page, _ = look(tmp_path, "a \u00e9")
    # the two bytes of the last character are no text of their own
    assert page.data["tokens"] == ["a", " ", "\u00c3", "\u00a9"]
    # nor is the last newline of a file
    Path("text.txt").write_text("a \u00e9\n", encoding="utf-8")
    data = text_data(inspected(tmp_path, "--file", "text.txt", "--mapping", "sparsemax", "--force"))
    assert data["tokens"] == ["a", " ", "\u00c3", "\u00a9"]
    assert len(data["heads"]) == 8  # all of a small model


def test_a_file(bert: str) -> None:
    Path("text.txt").write_text(LONG)
    options = ["--mapping", "sparsemax", "--heads", "0:1,1"]
    page = inspected(bert, "--file", "text.txt", *options)
    data = text_data(page)
    assert data["views"] == [
        *("All layers and heads, summed", "Layer 0, head 1"),
        *(f"Layer 1, head {head}" for head in range(4)),
        "The 5 chosen heads",
    ]
    model = patch_model(BertModel.from_pretrained(bert), "sparsemax").eval()
    ids = BertTokenizerFast(vocab=IDS)(LONG, return_tensors="pt")
    with torch.no_grad(), sum_attention(model, len(data["tokens"]), [(0, 1)]) as found:
        model(**ids)
    shown = text_weights(page, 0).float()
    torch.testing.assert_close(shown, found.total, rtol=2e-3, atol=1e-5)
    assert data["threshold"] == 0


def test_generated_text(llama: str) -> None:
    page = inspected(llama, LONG, "--generate", 5, "--mapping", "entmax:alpha=1.5")
    data, prompt = text_data(page), len(BertTokenizerFast(vocab=IDS)(LONG)["input_ids"])
    assert (len(data["tokens"]), data["generated"]) == (prompt + 5, 5)
    assert data["queries"] == prompt + 4
    sums = text_weights(page, 0).sum(1)
    assert sums[:-1].tolist() == pytest.approx([8] * (prompt + 4), rel=1e-2)  # 2 layers, 4 heads
    assert sums[-1] == 0


def test_softmax_of_a_long_text_leaves_out_small_weights(llama: str) -> None:
    Path("text.txt").write_text(LONG)
    data = text_data(inspected(llama, "--file", "text.txt"))
    assert (data["mapping"], data["threshold"]) == ("softmax", 1e-4)
    assert 0 <= data["leftOut"] < 0.01


REFUSED = {
    "no model": (["."], "MODEL='.': "),
    "no package": (["pkg://nothing/model"], "MODEL='pkg://nothing/model': the package 'nothing'"),
    "no text": (["BERT"], "one of the arguments TEXT --file is required"),
    "empty text": (["BERT", " \n"], "TEXT is empty"),
    "unknown": (["BERT", "\u20ac"], "TEXT has no token that the model's tokenizer knows"),
    "bytes": (["BERT", "caf\udce9"], "TEXT contains bytes that are not UTF-8"),
    "pair": (["BERT", TEXT, "--pair", ""], "--pair is empty"),
    "mapping": (["BERT", TEXT, "--mapping", "sparsmax"], "'sparsmax' is unknown; did you mean"),
    "three": (["BERT", TEXT, *["--mapping", "softmax"] * 3], "--mapping is given 3 times"),
    "same": (["BERT", TEXT, "--mapping", "softmax"], "both sides would be softmax"),
    "max_tokens": (["BERT", "the " * 200], "TEXT has 202 tokens, but --max_tokens allows 128"),
    "positions": (["BERT", "the " * 70], "the model reads at most 64"),
    "suffix": (["BERT", TEXT, "--output", "page.pdf"], "expected a file name ending in .html"),
    "folder": (["BERT", TEXT, "--output", "no/page.html"], "there is no folder no"),
    "file": (["BERT", "--file", "no.txt"], "--file no.txt: there is no such file"),
    "file not UTF-8": (["BERT", "--file", "latin.txt"], "--file latin.txt: is not UTF-8"),
    "generate": (["BERT", TEXT, "--generate", "2"], "is no causal language model"),
    "generate too long": (["LLAMA", TEXT, "--generate", "62"], "at most 64"),
    "heads": (["BERT", "--file", "the.txt", "--heads", "2"], "there is no layer 2"),
    "head": (["BERT", "--file", "the.txt", "--heads", "1:9"], "layer 1 has no head 9"),
    "heads alone": (["BERT", TEXT, "--heads", "1"], "--heads 1: only for --file and --generate"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input(
    case: str, bert: str, llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "the.txt").write_text(TEXT)
    given, message = REFUSED[case]
    given = [{"BERT": bert, "LLAMA": llama}.get(word, word) for word in given]
    if len(given) == 1 and case != "no text":
        given += [TEXT]
    assert message in refused(capsys, *given)
    assert not list(tmp_path.glob("*.html"))


def test_models_that_cannot_be_shown(
    save: Save, bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = shutil.copytree(bert, tmp_path / "cut")
    config = json.loads((cut / "config.json").read_text())

    def changed(**changes: Any) -> str:
        (cut / "config.json").write_text(json.dumps({**config, **changes}))
        return refused(capsys, cut, TEXT)

    clip = save(CLIPModel(BY_NAME["clip"].make_config()))
    assert "CLIPModel reads image and text" in refused(capsys, clip, TEXT)
    assert "lacks attention weights" in changed(num_hidden_layers=3)
    assert "its tokenizer belongs to another model" in changed(vocab_size=6)
    # Transformers would make a tokenizer without words
    for path in cut.glob("tokenizer*"):
        path.unlink()
    assert "there is no tokenizer beside the model" in changed()


def test_a_page_is_replaced_only_by_force(
    bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, link = tmp_path / "mine.txt", tmp_path / "attention.html"
    mine.write_text("mine")
    link.symlink_to(mine)
    given = (bert, TEXT, "--output", link.name)
    assert "exists; add --force" in refused(capsys, *given)
    inspect(bert, TEXT)
    assert (tmp_path / "attention-2.html").exists()
    assert link.is_symlink()
    inspect(*given, "--force")
    assert not link.is_symlink()
    # what the link pointed to is as it was
    assert mine.read_text() == "mine"
