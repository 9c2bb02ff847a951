"""The whole grid, one record a run; what has a record is not run again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from pathlib import Path

import torch
from tqdm import tqdm

from experiments.bottleneck.config import SEARCH_SEED, BottleneckConfig, Cell
from experiments.bottleneck.fit import fit, measure
from experiments.bottleneck.records import Record
from experiments.bottleneck.targets import Targets, draw
from pipeline.files import differences, write_json
from pipeline.machine import device_name, versions

PACKAGES = ("torch", "numpy")


def run(config: BottleneckConfig) -> list[Record]:
    """Every run of the grid that has no record yet, then all records.

    Killed at any moment, the same call goes on after the last record. A run that diverges is
    recorded as such, and counts.

    Raises:
        ValueError: output_dir holds a record of the same name but another config.
    """
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    grids = list(product(config.alphas, config.vocabularies))
    shapes = list(product(config.dimensions, config.heads))
    total = len(grids) * len(shapes) * (len(config.learning_rates) + config.seeds)
    device = torch.device(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    records = []
    with tqdm(total=total, unit="run", smoothing=0) as bar:

        def run_all(cells: Iterable[Cell]) -> list[Record]:
            found = []
            for cell in cells:
                bar.set_description(cell.name.removesuffix(".json"))
                found.append(_recorded(cell, folder, device))
                bar.update()
            records.extend(found)
            return found

        for grid in grids:
            rates = {}
            for shape in shapes:
                search = [
                    config.cell(*grid, *shape, rate, SEARCH_SEED) for rate in config.learning_rates
                ]
                rates[shape] = best_rate(run_all(search))
            for seed in range(config.seeds):
                run_all(config.cell(*grid, *shape, rates[shape], seed) for shape in shapes)
    return records


def best_rate(records: list[Record]) -> float:
    """The learning rate of the lowest mean KL; a run that diverged loses to all others."""
    best = min(records, key=lambda r: math.inf if r["kl"] is None else r["kl"])
    return best["config"]["learning_rate"]


def _recorded(cell: Cell, folder: Path, device: torch.device) -> Record:
    """The record of a run, from disk if it is there."""
    path = folder / cell.name
    if not path.exists():
        write_json(path, run_cell(cell, device))
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    different = differences(cell.to_dict(), record["config"])
    if different:
        raise ValueError(
            f"output_dir={folder}: {path.name} is of another config ({'; '.join(different)}); "
            "choose another output_dir or delete this one"
        )
    return record


def run_cell(cell: Cell, device: torch.device) -> Record:
    """Draw, fit, measure."""
    targets = _targets(cell.alpha, cell.contexts, cell.vocabulary, cell.seed, device)
    started = time.perf_counter()
    head, contexts = fit(cell, targets.log_p, device)
    measured: dict[str, float | None] = dict(measure(head, contexts, targets.log_p, cell.batch))
    seconds = time.perf_counter() - started
    diverged = not all(math.isfinite(value) for value in measured.values() if value is not None)
    if diverged:
        measured = dict.fromkeys(measured)
    floors = targets.floors
    return {
        "config": cell.to_dict(),
        "stage": "search" if cell.seed == SEARCH_SEED else "final",
        "status": "diverged" if diverged else "finished",
        **measured,
        # D >= min(N, M) - 1 reaches every matrix
        "floor": floors[cell.dimension].item() if cell.dimension < len(floors) else 0.0,
        "parameters": sum(p.numel() for p in head.parameters()) + contexts.numel(),
        "seconds": round(seconds, 2),
        "device": device_name(device),
        "versions": versions(*PACKAGES),
    }


@lru_cache(maxsize=1)
def _targets(
    alpha: float, contexts: int, vocabulary: int, seed: int, device: torch.device
) -> Targets:
    """The targets that consecutive runs share."""
    return Targets(draw(alpha, contexts, vocabulary, seed).log_p.to(device))
