"""The order of texts in training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from sparse_attn.engine.fitting import epoch_generator


class EpochSampler(Sampler[int]):
    """Batches of similar length in random order, which depends only on seed and epoch.

    Transformers' sampler draws from the global generator, so a resumed epoch would differ. It also
    goes from long to short inside every `POOL` batches, so the order follows the length.
    `batch_size` counts the examples of all processes, so their number does not change the steps.
    """

    POOL = 20

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        self.lengths = torch.tensor(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; Trainer calls this at the start of each."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = epoch_generator(self.seed, self.epoch)
        shuffled = torch.randperm(len(self), generator=generator)
        batches: list[Tensor] = []
        for pool in shuffled.split(self.POOL * self.batch_size):
            batches += pool[self.lengths[pool].argsort(stable=True)].split(self.batch_size)
        # a partial batch stays last, where the batch sampler expects it
        last = [batches.pop()] if len(batches[-1]) < self.batch_size else []
        order = torch.randperm(len(batches), generator=generator).tolist()
        return iter(torch.cat([*(batches[i] for i in order), *last]).tolist())
