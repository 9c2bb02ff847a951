"""One run: train a small model on short texts, and test it on longer ones."""

from __future__ import annotations

import math
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from experiments.length.config import LengthRunConfig
from experiments.length.task import IGNORED
from sparse_attn import patch_model
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.inspection import record_attention
from sparse_attn.system.machine import choose_device, device_name, versions

TESTED = 8192  # tokens of a forward pass
TEST_SEED = 2**31  # of the texts to test on, the same for all runs


class LengthRun(NamedTuple):
    """A config, its untrained model, and the device it runs on."""

    config: LengthRunConfig
    model: SmolLM3ForCausalLM
    device: torch.device

    def perform(self, folder: Path) -> dict[str, Any]:
        """Train and test; save the model in the folder; return the content of results.json.

        Raises:
            DivergedError: the loss is NaN or infinite.
        """
        started = time.perf_counter()
        loss = train(self.model, self.config)
        seconds = time.perf_counter() - started
        self.model.save_pretrained(folder / "model")
        tested = [test(self.model, self.config, length) for length in self.config.lengths]
        accuracy, zeros = ([row[i] for row in tested] for i in range(2))
        return {
            "score": accuracy[-1],
            "accuracy": accuracy,
            "zeros": zeros,
            "loss": loss,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "seconds": round(seconds, 1),
            "device": device_name(self.device),
            "versions": versions("torch", "transformers"),
        }


def assemble(config: LengthRunConfig) -> LengthRun:
    """Return the run with its model on its device.

    Raises:
        ValueError, TypeError: invalid parameters of the mapping, or the device is unavailable.
    """
    device = choose_device(config.device)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = SmolLM3ForCausalLM(architecture(config))
        attention, values = config.attention, dict[str, Any](config.attention.params)
        patch_model(model, attention.name, learn=attention.learn, per=attention.per, **values)
    return LengthRun(config, model.to(device), device)


def architecture(config: LengthRunConfig) -> SmolLM3Config:
    """Return a config of alternating layers: with positions and a window, without positions.

    So keys are found by content at any distance, and words are joined in a window, whose positions
    are those of training.
    """
    pairs = config.layers // 2
    return SmolLM3Config(
        vocab_size=config.symbols,
        hidden_size=config.hidden_size,
        intermediate_size=4 * config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=max(config.lengths),
        use_sliding_window=True,
        sliding_window=config.window,
        no_rope_layers=[1, 0] * pairs,
        layer_types=["sliding_attention", "full_attention"] * pairs,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=True,
        use_cache=False,
    )


def train(model: SmolLM3ForCausalLM, config: LengthRunConfig) -> float:
    """Train with AdamW on fresh texts; return the mean loss of the last tenth of the steps."""
    task = config.get_task()
    steps, warmup = config.steps, math.ceil(config.steps / 20)
    optimizer = torch.optim.AdamW(model.parameters(), config.learning_rate, weight_decay=0.0)
    rate = LambdaLR(optimizer, lambda step: min((step + 1) / warmup, 1 - step / steps))
    generator, lengths = torch.Generator().manual_seed(config.seed), Random(config.seed)
    ends = task.shortest(config.train_length) // task.unit, config.train_length // task.unit
    device, losses = next(model.parameters()).device, []
    model.train()
    for _ in tqdm(range(steps), unit="step", leave=False, delay=5, disable=None):
        length = task.unit * lengths.randint(*ends)
        tokens, labels = task.draw(config.batch, length, config.symbols, generator)
        loss = model(tokens.to(device), labels=labels.to(device)).loss
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    found = torch.stack(losses[-math.ceil(steps / 10) :]).mean().item()
    if not math.isfinite(found):
        raise DivergedError(f"loss {found}: training has diverged; lower learning_rate")
    return found


@torch.no_grad()
def test(model: SmolLM3ForCausalLM, config: LengthRunConfig, length: int) -> tuple[float, float]:
    """Return the share of queried symbols that are predicted, and that of exact zeros, in %."""
    generator = torch.Generator().manual_seed(TEST_SEED + length)
    device, hits = next(model.parameters()).device, list[Tensor]()
    model.eval()
    task = config.get_task()
    tokens, labels = task.draw(config.texts, length, config.symbols, generator)
    size = max(1, TESTED // length)
    with record_attention(model) as record:
        for part, wanted in zip(tokens.split(size), labels.split(size), strict=True):
            found = model(part.to(device)).logits[:, :-1].argmax(-1).cpu()
            hits.append((found == wanted[:, 1:])[wanted[:, 1:] != IGNORED])
    return 100 * torch.cat(hits).float().mean().item(), 100 * record.mean
