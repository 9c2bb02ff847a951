"""The training recipes of the docs give one gradient for the same rows, however batched.

Eight rows of different lengths in one batch, or one by one with accumulated gradients; in two
processes half of them in each.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands import python

SCRIPT = Path(__file__).with_name("recipe_gradients.py")
LAUNCHERS = {1: (), 2: ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2)}
WHOLE = (8, 1)
BATCHES = {1: [(1, 8)], 2: [(4, 1), (1, 4)]}
TRAINERS = {  # of a page or its section
    "docs/tutorials/training.md": 2,
    "docs/guide/schedules.md": 2,
    "docs/losses.md": 1,
    "docs/heads.md": 1,
    "docs/multilabel.md": 1,
    "docs/guide/works-with.md#TRL": 1,
}
CASES = [(page, 1) for page in TRAINERS] + [(page, 2) for page in [*TRAINERS][2:]]
CASES.append(("docs/guide/works-with.md#accelerate", 2))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What the script saves in one process and in two."""
    files = {n: tmp_path_factory.mktemp("recipes") / f"{n}.pt" for n in LAUNCHERS}
    for processes, file in files.items():
        python(*LAUNCHERS[processes], SCRIPT, file, env={"HF_HUB_OFFLINE": "1"})
    return {processes: torch.load(file) for processes, file in files.items()}


@pytest.mark.slow
@pytest.mark.timeout(900)  # all pages are run for the first case
@pytest.mark.parametrize(("page", "processes"), CASES)
def test_batches_do_not_change_a_gradient(page, processes, found):
    assert len(found[1][page][WHOLE]) == TRAINERS.get(page, 1)
    for batch in BATCHES[processes]:
        pairs = zip(found[1][page][WHOLE], found[processes][page][batch], strict=True)
        for whole, parts in pairs:
            assert whole.keys() == parts.keys()
            for name, expected in whole.items():
                off = (parts[name] - expected).norm() / max(g.norm() for g in whole.values())
                assert off < 1e-5, (batch, name)
