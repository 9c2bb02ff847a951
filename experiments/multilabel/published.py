"""Table 1 of Balazy et al. 2023."""

from __future__ import annotations

SOURCE = (
    "Balazy, Struski, Smieja & Tabor 2023, r-softmax: Generalized Softmax with Controllable "
    "Sparsity Rate, Table 1: best F1 on the validation set, averaging not stated"
)
COLUMNS = {"voc2007": 0, "coco2017": 1}
SOFTMAX = {
    "0.05": (75.05, 71.38),
    "0.1": (78.87, 72.29),
    "0.15": (79.43, 69.22),
    "0.2": (79.07, 64.88),
    "0.3": (75.88, 54.76),
}
METHODS = {
    "sparsemax-huber": (66.84, 52.30),
    "sparsemax-hinge": (71.91, 65.67),
    "sparsehourglass": (71.35, 64.85),
    "r-softmax": (77.90, 72.56),
}
