"""Published numbers of Balazy et al. 2023 for fine-tuned BERT."""

from __future__ import annotations

from sparse_attn.mappings.variants import MIXED

from ..sweep import CandidateConfig

SOURCE = (
    "Balazy, Struski, Smieja & Tabor 2023, r-softmax: Generalized Softmax with Controllable "
    "Sparsity Rate, Table 2: BERT, accuracy on dev, the best of its grid on that dev set"
)
_COLUMNS = ("MRPC", "RTE", "SST-2", "QNLI", "QQP")
_ACCURACY = {
    "softmax": (84.56, 68.95, 92.32, 91.76, 91.12),
    "sparsemax": (68.38, 52.71, 79.82, 55.57, 77.18),
    "sparsehourglass": (68.38, 52.71, 79.24, 70.99, 76.04),
    "r-softmax": (85.54, 71.84, 92.89, 91.73, 91.13),
}


def published(task: str, candidate: CandidateConfig) -> float | None:
    """Return the paper's accuracy in percent for the final mapping of a candidate, or None."""
    if candidate.layers is not None or candidate.learn:
        return None
    name = candidate.name.removeprefix(MIXED)
    if name == "entmax" and candidate.params.get("alpha") in (2.0, [2.0]):
        name = "sparsemax"
    if candidate.params.get("mix") not in (None, 1.0, [1.0]):
        return None
    if name not in _ACCURACY or task not in _COLUMNS:
        return None
    return _ACCURACY[name][_COLUMNS.index(task)]
