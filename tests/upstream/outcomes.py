"""What becomes of Transformers' tests over patched models, beside what is expected of them.

`python -m tests.upstream.outcomes` writes the expectations for the installed Transformers.
"""

import json
import re
import unittest
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.upstream.patching import every_model_patched
from tests.upstream.testers import NAMES, make_test_class

EXPECTED = Path(__file__).with_name(f"expected-{transformers.__version__}.jsonl")
UNPATCHED = "unpatched"
UNEXPECTED = "unexpected"
SKIPPED = ["skipped"]
MAPPINGS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "r-softmax": {},
    "sparsemax": {},
    "entmax": {"learn": "alpha"},
}
FAILS_UNPATCHED = "fails unpatched"
DIFFERS = "differs from softmax, as it must"
# cause: what its traceback has
CAUSES = {
    DIFFERS: r"ValueError: mean relative difference",
    "asserts the name of the implementation": r"assertTrue\([\w.]*_attn_implementation ==",
    "values stay float32": r"sparse_attn\.\w+ was upcasted",
    "refused: weights that lack values of the mappings": r"but its weights lack",
    "refused: weights of mappings, and a plain config": r"the config describes no mapping",
    "refused: learned parameters on the meta device": r"cannot start on the meta device",
}


class Outcomes(unittest.TestResult):
    """By test: the tracebacks of its failures, or SKIPPED."""

    def __init__(self) -> None:
        super().__init__()
        self.by_test: dict[str, list[str]] = {}

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        tracebacks = [traceback for _, traceback in (*self.failures, *self.errors)]
        self.by_test[test._testMethodName] = tracebacks or SKIPPED * bool(self.skipped)
        for seen in (self.failures, self.errors, self.skipped):
            seen.clear()


def run(mapping: str, name: str, tests: Iterable[str] = ()) -> dict[str, list[str]]:
    """The outcomes of a family's tests, all or those named."""
    torch.set_num_threads(1)
    cls: Any = make_test_class(name)
    tests = tests or unittest.defaultTestLoader.getTestCaseNames(cls)
    patched: Any = nullcontext()
    if mapping != UNPATCHED:
        patched = every_model_patched(cls.all_model_classes, mapping, **MAPPINGS[mapping])
    outcomes = Outcomes()
    transformers.logging.disable_progress_bar()
    with patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unittest.TestSuite(cls(test) for test in tests).run(outcomes)
    return outcomes.by_test


def summary(
    mapping: str, outcomes: dict[str, list[str]], unpatched: dict[str, Any]
) -> dict[str, Any]:
    """How many tests passed and were skipped, and how many failed of which cause."""
    found: dict[str, Any] = {
        "passed": sum(outcome == [] for outcome in outcomes.values()),
        "skipped": sum(outcome == SKIPPED for outcome in outcomes.values()),
    }
    for test, tracebacks in outcomes.items():
        if tracebacks != SKIPPED:
            group = re.sub(r"_\d+_.*", "", test)  # of a test with parameters
            known = mapping == UNPATCHED or group in unpatched.get(FAILS_UNPATCHED, ())
            for why in {FAILS_UNPATCHED if known else cause(mapping, t) for t in tracebacks}:
                found.setdefault(why, Counter())[group] += 1
    return found


def cause(mapping: str, traceback: str) -> str:
    for name, pattern in CAUSES.items():
        if re.search(pattern, traceback) and (name != DIFFERS or mapping != "softmax"):
            return name
    return f"{UNEXPECTED}: {traceback.strip().splitlines()[-1]}"


def _row(cell: tuple[str, str]) -> dict[str, list[str]]:
    torch.set_num_threads(1)
    return run(cell[1], cell[0])


def main() -> None:
    mappings, names = zip(*product((UNPATCHED, *MAPPINGS), NAMES), strict=True)
    unpatched: dict[str, Any] = {}
    with ProcessPoolExecutor() as pool, EXPECTED.open("w") as file:
        for mapping, name, outcomes in zip(
            mappings, names, pool.map(run, mappings, names), strict=True
        ):
            found = summary(mapping, outcomes, unpatched.get(name, {}))
            unpatched.setdefault(name, found)
            file.write(json.dumps({"mapping": mapping, "family": name, **found}) + "\n")


if __name__ == "__main__":
    main()
