"""Checkpoints stored in 16 bits are trained in float32, unless an option says otherwise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sparse_attn import load_pretrained, patch_model
from tests.glue.running import Asked, parsed, prepared, trained
from tests.marks import first

CLASS = AutoModelForSequenceClassification
HALVES = [torch.bfloat16, torch.float16]


def stored(model: Any, tokenizer_of: Path, folder: Path) -> Path:
    """The folder of a checkpoint."""
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_of).save_pretrained(folder)
    return folder


def learned(model: Any) -> dict[str, torch.Tensor]:
    """The learned parameters of the mappings."""
    return {n: p.detach() for n, p in model.named_parameters() if ".sparse_attn." in n}


@pytest.fixture(params=first(*HALVES), ids=str)
def half(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Path:
    model = CLASS.from_pretrained(tiny_model, dtype=request.param)
    return stored(model, tiny_model, tmp_path / "half")


def test_it_trains_as_the_checkpoint_cast_by_hand(half: Path, asked: Asked, tmp_path: Path) -> None:
    cast = stored(CLASS.from_pretrained(half, dtype=torch.float32), half, tmp_path / "cast")
    longer = ["--train.epochs", "4", "--model"]
    results = trained(prepared(asked(tmp_path / "run", *longer, str(half))))
    by_hand = trained(prepared(asked(tmp_path / "by-hand", *longer, str(cast))))
    assert len(results["log"]) == 1
    for key in ("log", "per_epoch", "metrics"):
        assert results[key] == by_hand[key]
    weights = load_file(tmp_path / "run/model/model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    # the checkpoint's config does not keep its 16 bits
    assert CLASS.from_pretrained(tmp_path / "run/model").dtype == torch.float32
    for name, weight in load_file(tmp_path / "by-hand/model/model.safetensors").items():
        assert torch.equal(weights[name], weight), name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
def test_learned_parameters_of_a_converted_checkpoint_keep_their_bits(
    dtype: torch.dtype, tiny_model: Path, asked: Asked, tmp_path: Path
) -> None:
    model = CLASS.from_pretrained(tiny_model)
    patch_model(model, "r-softmax", r=0.3, learn="r", per="head")
    for parameter in learned(model).values():
        parameter.add_(torch.tensor([1e-5, 3e-6]))  # lost in 16 bits
    expected = {name: value.clone() for name, value in learned(model).items()}
    half = stored(model.to(dtype), tiny_model, tmp_path / "half")
    cast = stored(load_pretrained(CLASS, half, dtype=torch.float32), half, tmp_path / "cast")
    options = ["--mapping", "saved", "--train.epochs", "4", "--model"]
    run = prepared(asked(tmp_path / "run", *options, str(half)))
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    found = learned(run.model)
    assert found.keys() == expected.keys() != set()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    by_hand = trained(prepared(asked(tmp_path / "by-hand", *options, str(cast))))
    results = trained(run)
    assert results["log"] == by_hand["log"]
    assert results["per_epoch"] == by_hand["per_epoch"]


def test_the_stored_dtype_by_option(tiny_model: Path, asked: Asked, tmp_path: Path) -> None:
    model = CLASS.from_pretrained(tiny_model, dtype=torch.bfloat16)
    half = stored(model, tiny_model, tmp_path / "half")
    options = ["--model", str(half), "--train.dtype", "auto", "--mapping", "entmax"]
    run = prepared(asked(tmp_path / "run", *options))
    assert run.model.dtype == torch.bfloat16
    trained(run)
    assert CLASS.from_pretrained(tmp_path / "run/model").dtype == torch.bfloat16


def test_training_in_float16_is_refused(tiny_model: Path, asked: Asked, tmp_path: Path) -> None:
    model = CLASS.from_pretrained(tiny_model, dtype=torch.float16)
    half = stored(model, tiny_model, tmp_path / "half")
    with pytest.raises(ValueError, match=r"train\.dtype=auto: .* float16.*leave train\.dtype at"):
        prepared(asked(tmp_path / "run", "--model", str(half), "--train.dtype", "auto"))


def test_older_records_have_no_such_key(asked: Asked, tmp_path: Path) -> None:
    config = parsed(asked(tmp_path))
    assert "dtype" not in config.comparable()["train"]
    other = parsed(asked(tmp_path, "--train.dtype", "auto"))
    assert other.comparable()["train"]["dtype"] == "auto"
