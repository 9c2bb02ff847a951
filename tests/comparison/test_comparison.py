"""Records beside programs of their own: each text alone, weights in full, NumPy and SciPy."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

from sparse_attn import patch_model, patched
from sparse_attn.comparison.comparison import compare
from sparse_attn.evaluation.data import read_split
from sparse_attn.evaluation.tasks import TASKS
from sparse_attn.reports import bootstrap
from tests.comparison.running import Models, compared, pair_file, parse, text_file, texts
from tests.glue.make_glue import write_task

TEXTS = texts(40)
CUT: dict[str, Any] = {"truncation": True, "max_length": 64, "return_tensors": "pt"}
ENTMAX = ("--mappings", "entmax:alpha=1.5")


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 999)


def alone(cls: Any, folder: Path, mapping: str, lines: list[str], **values: Any) -> tuple[Any, Any]:
    """The model's outputs for each text, and the attention weights (layers, heads, Q, K)."""
    model = cls.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    with patched(model, mapping, **values), torch.no_grad():
        for line in lines:
            inputs = tokenizer(line, return_tensors="pt")
            found.append(model(**inputs, output_attentions=True))
    outputs = [(o.logits if "logits" in o else o.last_hidden_state)[0].double() for o in found]
    return outputs, [torch.cat(o.attentions).double() for o in found]


def share_of_zeros(weights: list[torch.Tensor], causal: bool = False) -> float:
    zeros = pairs = 0
    for each in weights:
        valid = torch.ones_like(each, dtype=torch.bool)
        valid = valid.tril() if causal else valid
        zeros += int(((each == 0) & valid).sum())
        pairs += int(valid.sum())
    return zeros / pairs


def test_embeddings(models: Models, tmp_path: Path) -> None:
    record = compared(models.encoder, "--texts", text_file(tmp_path, TEXTS), *ENTMAX)
    (row,) = record["mappings"]
    ours, weights = alone(AutoModel, models.encoder, "entmax", TEXTS, alpha=1.5)
    base, _ = alone(AutoModel, models.encoder, "softmax", TEXTS)
    cosines = [
        float(scipy.spatial.distance.cosine(a.mean(0), b.mean(0)))
        for a, b in zip(ours, base, strict=True)
    ]
    assert row["mapping"] == "entmax alpha=1.5"
    assert row["zeros"] == pytest.approx(share_of_zeros(weights), abs=1e-6)
    assert 0.1 < row["zeros"] < 0.95
    assert row["agreement"] == pytest.approx(1 - np.mean(cosines), abs=1e-5)
    assert record["agreement"] == "cosine"
    assert (record["rows"], record["cut"], record["metric"]) == (40, 0, None)
    assert record["softmax"] == pytest.approx(1)
    found = row["against_softmax"]
    assert found["value"] == pytest.approx(-np.mean(cosines), abs=1e-5)
    resampled = scipy.stats.bootstrap((-np.array(cosines),), np.mean, method="percentile", rng=0)
    assert found["interval"] == pytest.approx(resampled.confidence_interval, abs=0.01)


def test_next_words(models: Models, tmp_path: Path) -> None:
    record = compared(models.causal, "--texts", text_file(tmp_path, TEXTS), *ENTMAX)
    (row,) = record["mappings"]
    ours, weights = alone(AutoModelForCausalLM, models.causal, "entmax", TEXTS, alpha=1.5)
    base, _ = alone(AutoModelForCausalLM, models.causal, "softmax", TEXTS)
    divergences = []
    for a, b in zip(base, ours, strict=True):
        p, q = (scipy.special.softmax(side.numpy(), -1) for side in (a, b))
        divergences.append(scipy.special.rel_entr(p, q).sum(-1).mean())
    assert record["agreement"] == "KL, nats"
    assert row["agreement"] == pytest.approx(np.mean(divergences), rel=1e-4)
    assert row["agreement"] > 0.01
    assert row["zeros"] == pytest.approx(share_of_zeros(weights, causal=True), abs=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(models.causal)
    words = [tokenizer(text)["input_ids"][1:] for text in TEXTS]
    nll = np.array(
        [
            [
                -x.log_softmax(-1)[range(len(ids)), ids].sum()
                for x, ids in zip(s, words, strict=True)
            ]
            for s in (base, ours)
        ]
    )
    counts = np.array(list(map(len, words)))
    expected = np.exp(nll.sum(1) / counts.sum())
    assert record["metric"] == "perplexity"
    assert [record["softmax"], row["quality"]] == pytest.approx(expected, rel=1e-4)
    draws = np.random.default_rng(0).integers(0, 40, (999, 40))
    drawn = np.exp(nll[:, draws].sum(-1) / counts[draws].sum(-1))
    low, high = np.percentile(drawn[1] - drawn[0], [2.5, 97.5])
    found = row["against_softmax"]
    assert found["value"] == pytest.approx(expected[1] - expected[0], rel=1e-3)
    assert found["interval"] == pytest.approx([low, high], abs=0.12 * (high - low))


@pytest.mark.parametrize("mapping", ["entmax:alpha=1.5", "top-k-softmax:k=3", "sparsemax"])
@pytest.mark.parametrize("model", ["encoder", "causal"])
def test_controls_have_as_many_zeros(
    models: Models, model: str, mapping: str, tmp_path: Path
) -> None:
    lines = text_file(tmp_path, texts(100))
    record = compared(getattr(models, model), "--texts", lines, "--mappings", mapping)
    (row,) = record["mappings"]
    assert row["random"]["zeros"] == pytest.approx(row["zeros"], abs=0.02)
    difference = row["against_random"]
    judged = "agreement" if model == "encoder" else "quality"  # perplexity
    assert difference["value"] == pytest.approx(row[judged] - row["random"][judged])
    low, high = difference["interval"]
    assert low < difference["value"] < high


def test_a_mapping_without_zeros_has_no_control(models: Models, tmp_path: Path) -> None:
    lines = text_file(tmp_path, TEXTS)
    record = compared(models.encoder, "--texts", lines, "--mappings", "softmax:sink=0,sparsemax")
    dense, sparse = record["mappings"]
    assert dense["mapping"] == "softmax sink=0"
    assert dense["zeros"] == 0
    assert "random" not in dense
    assert sparse["random"]["zeros"] > 0.3


def test_a_control_with_more_zeros_is_none(models: Models, tmp_path: Path) -> None:
    """It drops a key of every row at least."""
    lines = text_file(tmp_path, TEXTS)
    record = compared(models.encoder, "--texts", lines, "--mappings", "threshold-softmax:lam=1e-12")
    (row,) = record["mappings"]
    assert 0 < row["zeros"] < 0.05
    assert "random" not in row


@pytest.mark.parametrize("count", [1, 5, 6])
def test_few_texts_have_no_interval(models: Models, count: int, tmp_path: Path) -> None:
    """Of five, chance gives all differences one sign in 2 / 2^5 = 6 % of cases."""
    (row,) = compared(models.encoder, "--texts", text_file(tmp_path, TEXTS[:count]), *ENTMAX)[
        "mappings"
    ]
    assert (row["against_random"]["interval"] is None) == (count < 6)


def test_predictions_that_do_not_differ_have_no_interval(models: Models, tmp_path: Path) -> None:
    write_task(tmp_path, "MRPC", train=4, dev=30)
    given = ("--task", "MRPC", "--data_dir", tmp_path, "--mappings", "softmax:sink=-30")
    (row,) = compared(models.classifier, *given)["mappings"]
    assert row["against_softmax"] == {"value": 0, "interval": None}


@pytest.mark.parametrize("data", ["texts", "pairs", "task"])
def test_the_command_gives_the_record_again(
    models: Models, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models.classifier if data == "task" else models.encoder, "my model")
    text_file(tmp_path, TEXTS[:8])
    pair_file(tmp_path, [(text, text[::-1], number) for number, text in enumerate(TEXTS[:8])])
    write_task(tmp_path / "glue", "MRPC", train=4, dev=8)
    given = {
        "texts": ["--texts", tmp_path / "texts.txt"],
        "pairs": ["--pairs", "./pairs.tsv"],
        "task": ["--task", "MRPC", "--data_dir", tmp_path / "glue"],
    }[data]
    record = compared(tmp_path / "my model", *given, *ENTMAX)
    program, command, *words = shlex.split(record["command"])
    assert (program, command) == ("sparse-attn", "compare")
    again = compare(parse(words))
    assert again | {"seconds": 0} == record | {"seconds": 0}


def test_the_command_tells_no_folder_of_this_machine(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text_file(tmp_path, TEXTS[:3])
    record = compared(models.encoder, "--texts", "../texts.txt", "--trust_remote_code", *ENTMAX)
    end = "/".join(models.encoder.parts[-2:])
    assert record["command"] == (
        f"sparse-attn compare FOLDER/{end} --texts FOLDER/{tmp_path.name}/texts.txt "
        "--trust_remote_code --mappings entmax:alpha=1.5"
    )


def test_pairs(models: Models, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 20, 60) / 4
    rows = list(zip(texts(60), texts(120)[60:], scores, strict=True))
    record = compared(models.encoder, "--pairs", pair_file(tmp_path, rows), *ENTMAX)
    (row,) = record["mappings"]
    predicted = {}
    for name, values in (("softmax", {}), ("entmax", {"alpha": 1.5})):
        first, second = (
            [h.mean(0).numpy() for h in alone(AutoModel, models.encoder, name, side, **values)[0]]
            for side in ([r[0] for r in rows], [r[1] for r in rows])
        )
        predicted[name] = np.array(
            [1 - scipy.spatial.distance.cosine(a, b) for a, b in zip(first, second, strict=True)]
        )

    def rho(name: str, places: Any = slice(None)) -> float:
        return float(scipy.stats.spearmanr(scores[places], predicted[name][places]).statistic)

    assert record["softmax"] == pytest.approx(rho("softmax"), abs=2e-3)
    assert row["quality"] == pytest.approx(rho("entmax"), abs=2e-3)
    found = row["against_softmax"]
    assert found["value"] == pytest.approx(row["quality"] - record["softmax"])
    draws = rng.integers(0, 60, (999, 60))
    low, high = np.percentile([rho("entmax", d) - rho("softmax", d) for d in draws], [2.5, 97.5])
    assert found["interval"] == pytest.approx([low, high], abs=0.12 * (high - low))


@pytest.mark.parametrize(
    ("task", "model", "metric"),
    [("MRPC", "classifier", "accuracy"), ("STS-B", "regression", "pearson")],
)
def test_tasks(models: Models, task: str, model: str, metric: str, tmp_path: Path) -> None:
    write_task(tmp_path, task, train=4, dev=30)
    folder = getattr(models, model)
    record = compared(folder, "--task", task, "--data_dir", tmp_path, *ENTMAX)
    (row,) = record["mappings"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = list(read_split(TASKS[task], tmp_path, "dev"))
    labels = [r["label"] for r in rows]
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    logits = {}
    for name, values in (("softmax", {}), ("entmax", {"alpha": 1.5})):
        with patched(classifier, name, **values), torch.no_grad():
            pairs = [tokenizer(r["text_a"], r["text_b"], **CUT) for r in rows]
            logits[name] = np.concatenate([classifier(**pair).logits for pair in pairs])
    if task == "MRPC":
        p, q = (scipy.special.softmax(logits[name], -1) for name in ("softmax", "entmax"))
        agreement = scipy.special.rel_entr(p, q).sum(-1).mean()
        quality = (logits["entmax"].argmax(-1) == labels).mean()
    else:
        agreement = np.abs(logits["softmax"] - logits["entmax"]).mean()
        quality = np.corrcoef(logits["entmax"][:, 0], labels)[0, 1]
    assert record["metric"] == metric
    assert row["agreement"] == pytest.approx(agreement, rel=1e-3)
    assert row["quality"] == pytest.approx(quality, abs=1e-4)


def test_labels_in_another_order_are_matched_by_name(models: Models, tmp_path: Path) -> None:
    write_task(tmp_path, "MRPC", train=4, dev=30)
    model = AutoModelForSequenceClassification.from_pretrained(models.classifier)
    for parameter in model.classifier.parameters():
        parameter.data = parameter.data.flip(0)
    model.config.id2label, model.config.label2id = {0: "1", 1: "0"}, {"1": 0, "0": 1}
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(models.classifier).save_pretrained(tmp_path / "model")
    given = ("--task", "MRPC", "--data_dir", tmp_path, *ENTMAX)
    ours, theirs = (compared(m, *given) for m in (tmp_path / "model", models.classifier))
    assert ours["softmax"] == theirs["softmax"]
    assert ours["mappings"][0]["quality"] == theirs["mappings"][0]["quality"]


def test_a_model_saved_with_a_mapping(models: Models, tmp_path: Path) -> None:
    """It is compared with softmax like any other."""
    folder = tmp_path / "model"
    model = AutoModel.from_pretrained(models.encoder)
    patch_model(model, "t-softmax", t=2.0, learn="t").save_pretrained(folder)
    AutoTokenizer.from_pretrained(models.encoder).save_pretrained(folder)
    lines = text_file(tmp_path, TEXTS)
    ours, theirs = (compared(m, "--texts", lines, *ENTMAX) for m in (folder, models.encoder))
    assert ours["mappings"] == theirs["mappings"]


def test_an_encoder_and_decoder(models: Models, tmp_path: Path) -> None:
    """The encoder is compared."""
    folder = tmp_path / "model"
    tokenizer = AutoTokenizer.from_pretrained(models.encoder)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(vocab_size=99, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = compared(
        folder, "--texts", text_file(tmp_path, TEXTS), "--mappings", "r-softmax:r=0.5"
    )
    (row,) = record["mappings"]
    assert record["agreement"] == "cosine"
    assert 0.5 <= row["zeros"] < 0.6


def test_long_texts_are_cut_and_counted(models: Models, tmp_path: Path) -> None:
    lines = text_file(tmp_path, ["abc", "a" * 100, "b" * 63])
    record = compared(models.encoder, "--texts", lines, *ENTMAX)
    assert (record["limit"], record["cut"]) == (64, 2)


def test_a_tokenizer_without_padding(models: Models, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models.causal)
    tokenizer.pad_token = None
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(models.causal).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    lines = text_file(tmp_path, TEXTS)
    ours, theirs = (compared(m, "--texts", lines, *ENTMAX) for m in (folder, models.causal))
    ours, theirs = (made["mappings"][0]["agreement"] for made in (ours, theirs))
    assert ours == pytest.approx(theirs, rel=1e-5)  # batches of other lengths are rounded otherwise
