"""Trainings that are killed go on to the weights, numbers and files of undisturbed ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sparse_attn.hf.checkpoints import last_complete_checkpoint
from tests.marks import slow, soak
from tests.trust.killing import Cut
from tests.trust.trainings import Undisturbed, check_files, check_words

KILLS, SEED = 20, 7


@pytest.mark.soak
def test_killed_at_random_moments(undisturbed: Undisturbed, tmp_path: Path) -> None:
    training, draws = undisturbed.training, random.Random(SEED)
    history: list[str] = []
    reached = 0.0
    for run in range(KILLS):
        folder = tmp_path / f"run{run}"
        while len(history) < KILLS and not training.finished(folder):
            # the machine may have become slower since: later, until a checkpoint was reached
            moment = draws.uniform(0, undisturbed.end.seconds * (1 if reached else 2))
            end = training.start(folder, often=True).end(kill_after=moment)
            check_files(folder)
            assert end.killed or end.said == "", (end.said, history)
            if end.killed:
                reached = max(reached, training.standing(folder))
                history.append(f"run {run} after {moment:.3f} s")
        if not training.finished(folder):
            training.go_on(folder)
        undisturbed.compare(folder, history)
        if len(history) == KILLS:
            assert reached > 0, "no kill left a checkpoint to go on from"
            return
    pytest.fail(f"most runs were too quick to be killed: {history}")


@pytest.mark.parametrize(
    ("full", "steps"),
    [*slow((False, (2, 6)), (True, (2, 6))), *soak((False, (1, 1)))],
    ids=["killed", "full disk", "killed at every one"],
)
def test_cut_at_file_operations(
    full: bool, steps: tuple[int, int], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Before each and within the bytes of each that writes, or some of them, drawn."""
    training, folder, draws = undisturbed.training, tmp_path / "run", random.Random(SEED)
    history: list[str] = []
    at = 1
    while True:
        before = training.standing(folder)
        for share in (draws.random(),) if full else (None, draws.random()):
            end = training.start(folder, Cut(at, share, undisturbed.sizes, full)).end()
            check_files(folder)
            if training.finished(folder):
                undisturbed.compare(folder, history)
                return
            history += [f"{name}, {share} of it" for name in end.operations[at - 1 : at]]
            assert training.standing(folder) >= before, history
            if full:
                check_words(end, folder, history)
            else:
                assert end.killed, (end.said, history)
        # a process that goes on from a later checkpoint begins with other operations
        at = draws.randint(*steps) + (at if training.standing(folder) == before else 0)


def empty(content: bytes) -> bytes:
    return b""


def cut(content: bytes) -> bytes:
    return content[:-2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    bits = bytes(255 - byte for byte in content[middle : middle + 8])
    return content[:middle] + bits + content[middle + 8 :]


@pytest.mark.slow
@pytest.mark.parametrize("undisturbed", ["finetuning"], indirect=True)
def test_a_checkpoint_that_lacks_anything_is_passed_over(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    older, newer = (tmp_path / f"checkpoint-{steps}" for steps in (6, 9))
    damages: list[tuple[str, list[Callable[[bytes], bytes]]]] = [
        ("model.safetensors", [empty, cut]),
        ("optimizer.pt", [empty, cut, flipped]),
        ("scheduler.pt", [empty, cut]),
        ("rng_state.pth", [empty, cut, flipped]),
        ("trainer_state.json", [empty, cut, flipped]),
    ]
    done = undisturbed.end.operations
    last = next(at for at, name in enumerate(done, 1) if "results.json" in name)
    undisturbed.training.start(tmp_path, Cut(last, None, {})).end()
    assert last_complete_checkpoint(tmp_path) == newer
    for name, kinds in damages:
        content = (newer / name).read_bytes()
        for kind in kinds:
            (newer / name).write_bytes(kind(content))
            assert last_complete_checkpoint(tmp_path) == older, (name, kind.__name__)
        (newer / name).unlink()
        assert last_complete_checkpoint(tmp_path) == older, name
        (newer / name).write_bytes(content)
    # as save_total_limit takes it away
    for path in list(older.iterdir()):
        path.unlink()
        assert last_complete_checkpoint(tmp_path) == newer
