"""sentence-transformers: train, save, load, and what is refused."""

import json
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from sparse_attn import convert, patch_model
from tests.commands import python
from tests.comparison.running import texts
from tests.hf.helpers import jitter

package = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
from sentence_transformers import (  # noqa: E402
    CrossEncoder,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.losses import (  # noqa: E402
    MultipleNegativesRankingLoss,
)

TEXTS = texts(9)
OPEN = {"device": "cpu"}


@pytest.fixture
def plain(models):
    return SentenceTransformer(str(models.encoder), device="cpu")


@pytest.fixture
def learned(plain):
    patch_model(plain, "t-softmax", t=2.0, learn="t", per="head")
    jitter(plain)
    return plain


@pytest.mark.slow
def test_it_loads_as_it_was_saved_where_we_are_imported(learned, tmp_path):
    expected = learned.encode(TEXTS)
    learned.save_pretrained(str(tmp_path))
    assert (SentenceTransformer(str(tmp_path), **OPEN).encode(TEXTS) == expected).all()
    program = f"""
from sentence_transformers import SentenceTransformer
try:
    SentenceTransformer({str(tmp_path)!r}, device="cpu")
except ValueError as error:
    assert "sparse_attn" in str(error)
import sparse_attn
print(SentenceTransformer({str(tmp_path)!r}, device="cpu").encode({TEXTS}).tolist())
"""
    there = json.loads(python("-c", program, env={"HF_HUB_OFFLINE": "1"}))
    assert torch.equal(torch.tensor(there), torch.tensor(expected))


def test_a_folder_of_transformers_loads(plain, tmp_path):
    """Such as `sparse-attn convert` writes, whatever attention is asked for."""
    patch_model(plain[0].model, "t-softmax", t=2.0, learn="t")
    jitter(plain)
    plain[0].model.save_pretrained(str(tmp_path))
    plain.tokenizer.save_pretrained(str(tmp_path))
    for options in ({}, {"attn_implementation": "eager"}):
        loaded = SentenceTransformer(str(tmp_path), **OPEN, model_kwargs=options)
        expected = SentenceTransformer(modules=[plain[0], loaded[1]], **OPEN)
        assert (loaded.encode(TEXTS) == expected.encode(TEXTS)).all()


def test_a_converted_model_is_saved_whole(plain, tmp_path):
    given = {"output_dir": tmp_path / "run", "steps": 0, "alpha": 1.5}
    convert(plain, "entmax", plain.tokenizer, texts(64), **given)
    plain.save_pretrained(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), **OPEN)
    assert (loaded.encode(TEXTS) == plain.encode(TEXTS)).all()


def test_the_trainer_trains_it_resumes_and_loads_the_best(learned, models, tmp_path):
    data = Dataset.from_dict({"anchor": texts(16), "positive": texts(16)[::-1]})
    settings = {
        "output_dir": str(tmp_path),
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.05,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "load_best_model_at_end": True,
        "greater_is_better": True,  # of the loss: the best is not the last
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }

    def train(model, **options):
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(**settings),
            train_dataset=data,
            eval_dataset=data,
            loss=MultipleNegativesRankingLoss(model),
        )
        trainer.train(**options)
        return trainer.state.best_model_checkpoint

    raw = {n: p.detach().clone() for n, p in learned.named_parameters() if "raw_t" in n}
    best = train(learned)
    assert best == str(tmp_path / "checkpoint-2")
    assert all(not torch.equal(p, raw[n]) for n, p in learned.named_parameters() if n in raw)
    loaded = SentenceTransformer(best, **OPEN)
    assert (loaded.encode(TEXTS) == learned.encode(TEXTS)).all()

    resumed = SentenceTransformer(str(models.encoder), device="cpu")
    patch_model(resumed, "t-softmax", t=2.0, learn="t", per="head")
    assert train(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-2")) == best
    assert abs(resumed.encode(TEXTS) - learned.encode(TEXTS)).max() < 1e-6


def test_inputs_without_padding_are_understood(plain, monkeypatch):
    """As of a model that was loaded with flash attention, then patched."""
    patch_model(plain, "entmax", alpha=1.5)
    expected = plain.encode(TEXTS)
    flash = SimpleNamespace(varlen=True)
    monkeypatch.setattr(Transformer, "_is_flash_attention_requested", lambda _: True)
    monkeypatch.setattr(
        "transformers.modeling_flash_attention_utils.lazy_import_flash_attention",
        lambda *_: ((None, flash, None, None), None),
    )
    plain[0].unpad_inputs = True
    assert plain.preprocess(TEXTS)["input_ids"].shape[0] == 1
    assert abs(plain.encode(TEXTS) - expected).max() < 1e-5


def test_a_cross_encoder(models, tmp_path):
    model = CrossEncoder(str(models.regression), device="cpu")
    plain = model.predict([("abc", "bad"), ("a", "cab cab")])
    patch_model(model, "sparsemax")
    expected = model.predict([("abc", "bad"), ("a", "cab cab")])
    assert abs(expected - plain).max() > 1e-4
    model.save_pretrained(str(tmp_path))
    loaded = CrossEncoder(str(tmp_path), **OPEN)
    assert (loaded.predict([("abc", "bad"), ("a", "cab cab")]) == expected).all()
