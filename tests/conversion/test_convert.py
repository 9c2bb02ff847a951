"""`convert`: from a softmax model to a sparse one that loads again."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BatchEncoding,
    BertConfig,
    PreTrainedModel,
    RobertaConfig,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers import AutoModelForSequenceClassification as Classifier

from sparse_attn import convert, load_pretrained, patch_model
from sparse_attn.conversion import plan
from sparse_attn.conversion.converting import sample_of, tokenized
from sparse_attn.conversion.healing import InOrder
from sparse_attn.conversion.states import distances, states_of, zeros_of
from sparse_attn.hf.layers import attention_layers
from sparse_attn.inspection.tokens import longest
from tests.comparison.running import Models, texts
from tests.marks import slow, soak

TEXTS = texts(80)
STEPS = {"steps": 8, "batch_size": 8, "learning_rate": 3e-3}


def converted(folder: Path, out: Path, cls: Any = AutoModel, **given: Any) -> PreTrainedModel:
    model = cls.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    mapping = given.pop("mapping", "entmax")
    convert(model, mapping, tokenizer, TEXTS, output_dir=out, **{**STEPS, **given})
    return model


def batches_of(folder: Path) -> list[dict[str, Any]]:
    from transformers import DataCollatorWithPadding

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenized(tokenizer, TEXTS, 128)
    return sample_of(tokens, DataCollatorWithPadding(tokenizer), 8, "cpu")


@pytest.mark.parametrize(
    ("length", "most", "sizes"),
    [(1024, None, [8] * 8), (10, 4096, [8] * 8), (900, 4096, [4]), (8192, 4096, [1])],
)
def test_long_texts_of_a_language_model_are_sampled_by_their_tokens(
    length: int, most: int | None, sizes: list[int]
) -> None:
    texts = [{"input_ids": [0] * (length + place)} for place in range(70)]

    def collate(group: list[dict[str, Any]]) -> BatchEncoding:
        return BatchEncoding({"lengths": torch.tensor([len(text["input_ids"]) for text in group])})

    batches = [batch["lengths"] - length for batch in sample_of(texts, collate, 8, "cpu", most)]
    assert [len(batch) for batch in batches] == sizes
    # spread over all lengths
    places = torch.cat(batches).double()
    assert places.mean().item() == pytest.approx(34.5, abs=1)
    assert places.diff().unique().numel() <= 2


@torch.no_grad()
def distance(model: PreTrainedModel, folder: Path, cls: Any = AutoModel) -> float:
    softmax = cls.from_pretrained(folder).eval()
    far = [
        distances(states_of(model.eval(), b), states_of(softmax, b), b["attention_mask"])
        for b in batches_of(folder)
    ]
    return torch.cat(far).mean().item()


@pytest.mark.parametrize("kind", ["encoder", *slow("causal"), *soak("classifier", "regression")])
def test_healing_brings_the_model_back(models: Models, tmp_path: Path, kind: str) -> None:
    folder = getattr(models, kind)
    cls = {"encoder": AutoModel, "causal": AutoModelForCausalLM}.get(kind, Classifier)
    swapped = converted(folder, tmp_path / "a", cls, target_zeros=0.6, steps=0)
    healed = converted(folder, tmp_path / "b", cls, target_zeros=0.6, steps=60, learning_rate=3e-4)
    assert distance(healed, folder, cls) < 0.8 * distance(swapped, folder, cls)


def test_zeros_are_kept_and_the_model_loads(models: Models, tmp_path: Path) -> None:
    model = converted(models.encoder, tmp_path / "out", target_zeros=0.6)
    batches = batches_of(models.encoder)
    zeros = zeros_of(model, batches)
    assert sum(zeros) / len(zeros) == pytest.approx(0.6, abs=0.04)
    model.save_pretrained(tmp_path / "saved")
    loaded = load_pretrained(AutoModel, tmp_path / "saved").eval()
    with torch.no_grad():
        for batch in batches:
            expected = model(**batch).last_hidden_state
            assert torch.equal(loaded(**batch).last_hidden_state, expected)


@pytest.mark.slow
def test_zeros_that_stay_below_the_target_are_told(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "ROUNDS", 1)
    found = iter([[0.1, 0.1], [0.4, 0.6]])  # before and after the turn
    monkeypatch.setattr(plan, "zeros_of", lambda model, batches: next(found))
    with pytest.warns(UserWarning, match=r"target_zeros=0.6: entmax has 0.500 on"):
        converted(models.encoder, tmp_path, target_zeros=0.6, steps=0)


def test_generation_keeps_its_cache(models: Models, tmp_path: Path) -> None:
    model = converted(models.causal, tmp_path, AutoModelForCausalLM)
    assert model.config.use_cache is True


def test_given_parameters_end_as_given(models: Models, tmp_path: Path) -> None:
    model = converted(models.encoder, tmp_path, mapping="r-softmax", r=0.3)
    assert [layer.module.sparse_attn.r for layer in attention_layers(model)] == [0.3, 0.3]


def test_batches_of_similar_length_in_a_known_order() -> None:
    tokens = [{"input_ids": [0] * (1 + i % 13)} for i in range(50)]
    ordered = InOrder(tokens, steps=20, batch_size=10, seed=1)
    assert len(ordered) == 200
    assert ordered.order == InOrder(tokens, steps=20, batch_size=10, seed=1).order
    assert ordered.order != InOrder(tokens, steps=20, batch_size=10, seed=2).order
    assert sorted(ordered.order) == sorted([*range(50)] * 4)
    spreads = [
        len({len(ordered[i + j]["input_ids"]) for j in range(10)}) for i in range(0, 200, 10)
    ]
    assert max(spreads) <= 3


@pytest.mark.parametrize(("cls", "limit"), [(RobertaConfig, 30), (BertConfig, 32)])
def test_tokens_that_a_model_reads(cls: Any, limit: int) -> None:
    """RoBERTa's first position is the one after its padding's, 1."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = cls(vocab_size=9, max_position_embeddings=32, intermediate_size=8, **sizes)
    model = AutoModel.from_config(config).eval()
    assert longest(config, SimpleNamespace(model_max_length=1e30), model) == limit
    model(torch.full((1, limit), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, limit + 1), 5))


def test_a_training_that_diverges_says_so(models: Models, tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match="diverged; lower learning_rate"):
        converted(models.encoder, tmp_path, target_zeros=0.6, learning_rate=1e30)


def test_what_cannot_be_converted(models: Models, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(models.encoder)
    tokenizer = AutoTokenizer.from_pretrained(models.encoder)
    (tmp_path / "file").touch()
    frozen = AutoModel.from_pretrained(models.encoder).requires_grad_(False)
    config = T5Config(vocab_size=60, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    rows: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"mapping": "sparsemax", "target_zeros": 0.5}, ValueError, "sparsemax has no parameter"),
        ({"target_zeros": 0.99}, ValueError, "reaches 0"),
        ({"target_zeros": 90}, ValueError, r"target_zeros=90: .*in \(0, 1\)"),
        ({"target_zeros": 0.5, "alpha": 1.5}, ValueError, "alpha=1.5: .*leave one"),
        ({"choose_layers": True}, ValueError, "needs target_zeros"),
        ({"steps": -1}, ValueError, "steps=-1"),
        ({"ramp": 2}, ValueError, "ramp=2"),
        ({"max_length": 2}, ValueError, "max_length=2: expected at least 3 tokens"),
        ({"output_dir": tmp_path / "file"}, NotADirectoryError, "is a file; name a folder"),
        ({"texts": TEXTS[:3]}, ValueError, "texts: expected at least 64, got 3"),
        ({"texts": " ".join(TEXTS)}, TypeError, "got one; split it"),
        ({"texts": [*TEXTS, ("a", "b")]}, TypeError, r"texts\[80\]: expected a text as before it"),
        ({"texts": [("a", "b"), *TEXTS]}, TypeError, r"texts\[1\]: expected 2 texts as before it"),
        ({"model": T5ForConditionalGeneration(config)}, ValueError, "get_encoder"),
        ({"model": deepcopy(model).half()}, ValueError, "torch.float16; call model.float"),
        ({"model": frozen}, ValueError, "no weight requires a gradient"),
        ({"model": patch_model(deepcopy(model), "entmax")}, ValueError, "unpatch_model first"),
    ]
    good = {"model": model, "mapping": "entmax", "tokenizer": tokenizer, "texts": TEXTS}
    for wrong, error, says in rows:
        with pytest.raises(error, match=says):
            convert(**{**good, "output_dir": tmp_path / "out", **wrong})
    assert not (tmp_path / "out").exists()


def test_a_model_patched_with_softmax_is_a_softmax_model(models: Models, tmp_path: Path) -> None:
    model = patch_model(AutoModel.from_pretrained(models.encoder), "softmax")
    tokenizer = AutoTokenizer.from_pretrained(models.encoder)
    convert(model, "entmax", tokenizer, TEXTS, output_dir=tmp_path / "a", steps=0)
    plain = converted(models.encoder, tmp_path / "b", steps=0)
    for batch in batches_of(models.encoder):
        with torch.no_grad():
            one, other = (m(**batch).last_hidden_state for m in (model, plain))
        assert torch.equal(one, other)
    patch_model(sunk := AutoModel.from_pretrained(models.encoder), "softmax", sink=0.0)
    with pytest.raises(ValueError, match="unpatch_model first"):
        convert(sunk, "entmax", tokenizer, TEXTS, output_dir=tmp_path / "c", steps=0)


@pytest.mark.slow
def test_another_conversion_in_the_folder_is_refused(models: Models, tmp_path: Path) -> None:
    converted(models.encoder, tmp_path, target_zeros=0.6, steps=0)
    with pytest.raises(ValueError, match=r"target_zeros=0.7: output_dir=.* target_zeros=0.6"):
        converted(models.encoder, tmp_path, target_zeros=0.7, steps=0)
    with pytest.raises(ValueError, match="max_length=16: output_dir"):
        converted(models.encoder, tmp_path, target_zeros=0.6, steps=0, max_length=16)


def test_other_weights_are_not_replaced_by_those_in_the_folder(
    models: Models, tmp_path: Path
) -> None:
    converted(models.encoder, tmp_path)
    model = AutoModel.from_pretrained(models.encoder)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    tokenizer = AutoTokenizer.from_pretrained(models.encoder)
    with pytest.raises(ValueError, match=r"weights=.*: output_dir"):
        convert(model, "entmax", tokenizer, TEXTS, output_dir=tmp_path, **STEPS)
