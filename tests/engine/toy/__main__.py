"""An experiment that trains nothing: the score of a run is its rate."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sparse_attn.engine.experiment import Experiment
from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED
from sparse_attn.engine.sweep.plan import SweepPlan, best_of


@dataclass(frozen=True)
class ToyRun:
    """One run.

    Args:
        output_dir: where results.json goes.
        mapping: `diverges` does at rate 3, `fails` while the file `broken` exists beside the sweep,
            and `sleeps` takes ten minutes.
        rate: the score.
        seed: of the run.
        resume: continue an interrupted run.
    """

    output_dir: str
    mapping: str = "plain"
    rate: float = 1.0
    seed: int = 0
    resume: bool = False

    def comparable(self) -> dict[str, Any]:
        return {"mapping": self.mapping, "rate": self.rate, "seed": self.seed}

    def perform(self, folder: Path) -> dict[str, Any]:
        from sparse_attn.evaluation.predictions import DivergedError

        (folder / "model").mkdir(exist_ok=True)
        (folder / "model/weights").write_text("heavy")
        print("one line of the run")
        if self.mapping == "diverges" and self.rate == 3:
            raise DivergedError("the loss is NaN")
        if self.mapping == "fails" and (folder.parents[2] / "broken").exists():
            raise RuntimeError("the graphics card fell out")
        if self.mapping == "sleeps":
            time.sleep(600)
        names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
        environment = {name: os.environ.get(name) for name in names}
        return {"score": self.rate, "resumed": self.resume, **environment}


@dataclass(frozen=True)
class ToySweep:
    """Two rates for each mapping, then seeds.

    Args:
        output_dir: folder of the sweep.
        mappings: what to run.
        seeds: final runs of each.
    """

    output_dir: str
    mappings: list[str] = field(default_factory=lambda: ["plain", "diverges"])
    seeds: int = 2

    def content(self) -> dict[str, Any]:
        return {"mappings": self.mappings, "seeds": self.seeds}


class Toy(Experiment[ToyRun, ToySweep]):
    """Runs that end at once."""

    name, package = "toy", "tests.engine.toy"
    description, about = "Nothing.", ("One.", "Many.", "What they show.")
    run, sweep = ToyRun, ToySweep

    def assemble(self, config: ToyRun) -> ToyRun:
        if config.mapping == "unknown":
            raise ValueError("mapping=unknown: expected another")
        return config

    def summary(self, results: dict[str, Any], config: ToyRun) -> list[str]:
        return [f"results: {asdict(config)}"]

    def plan(self, sweep: ToySweep) -> SweepPlan:
        trials = {
            ("sets", name): [ToyRun("", name, rate, FIRST_TRIAL_SEED) for rate in (1.0, 3.0)]
            for name in sweep.mappings
        }
        return best_of(trials, lambda best, seed: replace(best, seed=seed), sweep.seeds)


EXPERIMENT = Toy()
main = EXPERIMENT.main

if __name__ == "__main__":
    main()
