"""Checkpoints stored in 16 bits are trained in float32, unless an option says otherwise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sparse_attn import patch_model
from tests.glue.running import Asked, prepared, trained
from tests.marks import first

CLASS = AutoModelForSequenceClassification


def stored(model: Any, tokenizer_of: Path, folder: Path) -> Path:
    """The folder of a checkpoint."""
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_of).save_pretrained(folder)
    return folder


def learned(model: Any) -> dict[str, torch.Tensor]:
    """The learned parameters of the mappings."""
    return {n: p.detach() for n, p in model.named_parameters() if ".sparse_attn." in n}


@pytest.mark.parametrize("dtype", first(torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("converted", [False, True])
def test_it_trains_as_the_checkpoint_cast_by_hand(
    converted: bool, dtype: torch.dtype, tiny_model: Path, asked: Asked, tmp_path: Path
) -> None:
    """What a converted model has learned keeps its bits."""
    model = CLASS.from_pretrained(tiny_model)
    if converted:
        patch_model(model, "r-softmax", r=0.3, learn="r", per="head")
    for parameter in learned(model).values():
        parameter.add_(torch.tensor([1e-5, 3e-6]))  # lost in 16 bits
    expected = {name: value.clone() for name, value in learned(model).items()}
    half = stored(model.to(dtype), tiny_model, tmp_path / "half")
    cast = stored(CLASS.from_pretrained(half, dtype=torch.float32), half, tmp_path / "cast")
    options = ["--train.epochs", "4", "--mapping", "saved" if converted else "softmax", "--model"]
    run = prepared(asked(tmp_path / "run", *options, str(half)))
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    torch.testing.assert_close(learned(run.model), expected, rtol=0, atol=0)
    results = trained(run)
    by_hand = trained(prepared(asked(tmp_path / "by-hand", *options, str(cast))))
    assert len(results["log"]) == 1
    for key in ("log", "per_epoch", "metrics"):
        assert results[key] == by_hand[key]
    # the checkpoint's config does not keep its 16 bits
    assert CLASS.from_pretrained(tmp_path / "run/model").dtype == torch.float32


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
