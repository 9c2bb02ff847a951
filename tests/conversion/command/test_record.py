"""Records beside programs of their own: each text alone, weights in full, NumPy and SciPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.spatial
import scipy.stats
import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from sparse_attn import convert, load_pretrained, patch_model
from sparse_attn.comparison import reader
from sparse_attn.comparison.data import Data
from sparse_attn.conversion import inputs
from sparse_attn.conversion.inputs import read_inputs
from sparse_attn.hf.layers import attention_layers
from tests.comparison.running import Models, pair_file, text_file, texts
from tests.conversion.command.running import SPARSE, TEXTS, converted, parse

# not among the texts to learn from
PAIRS = [(f"{a} a", f"{a} b", i % 7) for i, a in enumerate(texts(24))]


def alone(model: PreTrainedModel, folder: Path, lines: list[str]) -> tuple[Any, Any]:
    """The model's outputs for each text, and the attention weights (layers, heads, Q, K)."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        inputs = [tokenizer(line, return_tensors="pt") for line in lines]
        found = [model(**each, output_attentions=True) for each in inputs]
    outputs = [(o.logits if "logits" in o else o.last_hidden_state)[0].double() for o in found]
    return outputs, [torch.cat(o.attentions).double() for o in found]


def swapped(folder: Path, out: Path) -> PreTrainedModel:
    """The model with the alphas of the plan, untrained."""
    model = AutoModel.from_pretrained(folder).eval()
    layers = json.loads((out / "plan.json").read_text())["plan"]["layers"]
    for place, layer in enumerate(layers):
        patch_model(model, "entmax", alpha=layer["value"], layers=[place])
    return model


def test_quality_zeros_and_agreement(models: Models, tmp_path: Path) -> None:
    out, folder = tmp_path / "out", models.encoder
    record = converted(folder, out, *SPARSE, "--pairs", pair_file(tmp_path, PAIRS))
    lines = [*(a for a, _, _ in PAIRS), *(b for _, b, _ in PAIRS)]
    kinds = {
        "softmax": AutoModel.from_pretrained(folder, attn_implementation="eager").eval(),
        "before training: entmax": swapped(folder, out),
        "after training: entmax": load_pretrained(AutoModel, out / "model").eval(),
    }
    stages = {"before training: entmax": "swapped", "after training: entmax": "healed"}
    found, qualities = {}, []
    for name, model in kinds.items():
        outputs, weights = alone(model, folder, lines)
        means = [output.mean(0).numpy() for output in outputs]
        layers = [np.mean(np.concatenate([w[i].flatten() == 0 for w in weights])) for i in range(2)]
        found[name] = means, layers
    for row in record["mappings"]:
        means, zeros = found[row["mapping"]]
        cosines = [
            1 - scipy.spatial.distance.cosine(a, b)
            for a, b in zip(means, found["softmax"][0], strict=True)
        ]
        scores = [
            1 - scipy.spatial.distance.cosine(a, b)
            for a, b in zip(means[:24], means[24:], strict=True)
        ]
        quality = scipy.stats.spearmanr([s for _, _, s in PAIRS], scores).statistic
        assert row["agreement"] == pytest.approx(np.mean(cosines), abs=1e-5)
        assert row["quality"] == pytest.approx(quality, abs=2e-3)
        kind = stages[row["mapping"]]
        assert [layer[kind]["zeros"] for layer in record["layers"]] == pytest.approx(zeros)
        # both layers have two heads
        assert row["zeros"] == pytest.approx(np.mean(zeros))
        assert row["random"]["zeros"] == pytest.approx(row["zeros"], abs=0.02)
        difference = row["quality"] - record["softmax"]
        assert row["against_softmax"]["value"] == pytest.approx(difference)
        qualities.append(row["quality"])
    gain = record["mappings"][1]["against_swapped"]
    assert gain["value"] == pytest.approx(qualities[1] - qualities[0])
    assert gain["interval"][0] < gain["value"] < gain["interval"][1]
    healed = attention_layers(kinds["after training: entmax"])
    alphas = [layer["healed"]["parameters"]["alpha"] for layer in record["layers"]]
    assert alphas == [layer.module.sparse_attn.alpha for layer in healed]


@pytest.mark.slow
def test_the_saved_model_is_the_converted_one(models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    record = converted(models.encoder, out, *SPARSE, "--pairs", pair_file(tmp_path, PAIRS))
    model = AutoModel.from_pretrained(models.encoder)
    tokenizer = AutoTokenizer.from_pretrained(models.encoder)
    given: dict[str, Any] = {"steps": 8, "batch_size": 8, "learning_rate": 3e-3, "max_length": 64}
    convert(model, "entmax", tokenizer, TEXTS, output_dir=tmp_path, target_zeros=0.6, **given)
    loaded = load_pretrained(AutoModel, out / "model").eval()
    again = AutoTokenizer.from_pretrained(out / "model")
    batch = again(TEXTS[:9], padding=True, return_tensors="pt")
    with torch.no_grad():
        ours, theirs = (m(**batch).last_hidden_state for m in (loaded, model))
    assert torch.equal(ours, theirs)
    assert record["loss"] == []  # Trainer notes one every ten steps
    assert {path.name for path in out.iterdir()} >= {"model", "report.html", "record.json"}
    assert not list(out.glob("checkpoint-*"))


@pytest.mark.slow
def test_a_baseline_of_glue_is_converted(models: Models, tmp_path: Path) -> None:
    """Which was saved patched, with softmax."""
    patch_model(AutoModel.from_pretrained(models.encoder), "softmax").save_pretrained(
        tmp_path / "a"
    )
    AutoTokenizer.from_pretrained(models.encoder).save_pretrained(tmp_path / "a")
    found = []
    for folder, out in ((tmp_path / "a", "b"), (models.encoder, "c")):
        record = converted(folder, tmp_path / out, "--mapping", "entmax", "--steps", "0")
        found.append([row["agreement"] for row in record["mappings"]])
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_checkpoint_of_16_bits_is_healed_and_saved_in_float32(
    models: Models, tmp_path: Path
) -> None:
    half = tmp_path / "half"
    AutoModel.from_pretrained(models.encoder, dtype=torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(models.encoder).save_pretrained(half)
    converted(half, tmp_path / "out", *SPARSE)
    saved = load_pretrained(AutoModel, tmp_path / "out/model")
    assert {weight.dtype for weight in saved.parameters()} == {torch.float32}


@pytest.mark.parametrize("count", [90, 160])
def test_held_out_texts_are_not_learned(tmp_path: Path, count: int) -> None:
    path = text_file(tmp_path, [f"{text} {i}" for i, text in enumerate(texts(count))])
    words = ["model", "--texts", str(path), "--mapping", "entmax", "--out", "out"]
    one, other = (read_inputs(parse([*words, "--seed", str(seed)])) for seed in (0, 1))
    assert len(one.data.inputs) == count // 10
    assert len({*one.texts, *one.data.inputs}) == len(one.texts) + count // 10 == count
    assert one.data.inputs != other.data.inputs
    text_file(tmp_path, 2 * texts(count))
    twice = read_inputs(parse(words))
    assert not {*twice.texts} & {*twice.data.inputs}


def test_columns_are_those_of_the_texts_and_of_a_task(tmp_path: Path) -> None:
    """And those of pairs are not those of single texts."""
    table = tmp_path / "table.csv"
    rows = [f"{text} {n},other {n},{n % 2}" for n, text in enumerate(texts(100))]
    table.write_text("\n".join(["a,b,word", *rows]))
    words = ["model", "--mapping", "entmax", "--out", "out", "--text_columns", "a,b"]
    words += ["--label_column", "word"]
    with pytest.raises(ValueError, match="leaves 0 texts to learn from"):
        read_inputs(parse([*words, "--texts", str(table), "--task", str(table)]))
    singles = text_file(tmp_path, texts(70))
    inputs = read_inputs(parse([*words, "--texts", str(singles), "--pairs", str(table)]))
    assert inputs.data.inputs[100] == ("other 0",)
    assert len(inputs.texts) == 70


def test_texts_that_are_measured_are_not_learned(tmp_path: Path) -> None:
    pairs = [("One text.", "another text", 1.0), ("a third", "One text.", 0.0)]
    found = [text.strip() for text in texts(70)]
    path = text_file(tmp_path, [*found, "one  TEXT", "Another text!", "a third, longer"])
    words = ["model", "--texts", str(path), "--mapping", "entmax", "--out", "out"]
    inputs = read_inputs(parse([*words, "--pairs", str(pair_file(tmp_path, pairs))]))
    assert [text for (text,) in inputs.texts] == [*found, "a third, longer"]


def test_texts_are_measured_as_long_as_they_are_learned(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (inputs, reader):
        monkeypatch.setattr(module, "LONGEST", 16)
    words = [str(models.causal), *SPARSE, "--out", str(tmp_path / "out")]
    words += ["--texts", str(text_file(tmp_path, texts(80)))]
    data = Data([], "")
    for length, limit in ((8, 16), (40, 40), (64, 64)):
        options = parse([*words, "--max_length", str(length)])
        assert inputs.read_model(options, data).limit == limit
    with pytest.raises(ValueError, match=r"--max_length 65: .* reads at most 64 tokens"):
        inputs.read_model(parse([*words, "--max_length", "65"]), data)
