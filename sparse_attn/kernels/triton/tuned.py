"""Best measured settings of the Triton kernels by GPU, for `settings`.

For each device name: the compute capability, and for each record its settings by kernel, mapping or
family, bytes per row of keys, and kind of row. `settings` has the defaults for the others.
`python -m benchmarks tune` measures a GPU, and `python -m benchmarks tune --enter RECORD` enters
the settings of its record and keeps the rest.
"""

from __future__ import annotations

Row = tuple[int, int, int, int, int | None]  # tile, warps, stages, registers
Rows = dict[tuple[str, str, int, str], Row]
Tables = dict[str, tuple[tuple[int, int], dict[str, Rows]]]

TABLES: Tables = {
    "NVIDIA H200": (
        (9, 0),
        {
            "results/benchmarks/31b9054/variants-nvidia-h200.json": {
                ("inference", "projection", 128, "long"): (64, 64, 4, 3, None),
                ("inference", "r-softmax", 128, "long"): (64, 64, 4, 3, 168),
                ("keys", "free", 128, "long"): (64, 64, 4, 2, None),
                ("keys", "pointwise", 128, "long"): (64, 64, 4, 2, None),
            },
            "results/benchmarks/gpu-nvidia-h200.json": {
                ("forward", "entmax-1.5", 128, "long"): (64, 64, 4, 3, 168),
                ("forward", "entmax-1.5", 128, "medium"): (64, 64, 4, 3, 168),
                ("forward", "free", 128, "medium"): (64, 64, 4, 2, None),
                ("forward", "pointwise", 128, "medium"): (64, 64, 4, 3, 128),
                ("forward", "projection", 128, "medium"): (64, 64, 4, 2, 168),
                ("forward", "r-softmax", 128, "medium"): (64, 64, 4, 2, None),
                ("forward", "softmax", 128, "long"): (64, 64, 4, 3, None),
                ("forward", "softmax", 128, "medium"): (64, 64, 4, 3, 128),
                ("forward", "sparsemax", 128, "medium"): (64, 64, 4, 3, 128),
                ("forward", "threshold", 128, "medium"): (64, 64, 4, 3, 168),
                ("forward", "truncated", 128, "medium"): (64, 64, 4, 2, 168),
                ("inference", "entmax-1.5", 128, "long"): (64, 64, 4, 3, 128),
                ("inference", "entmax-1.5", 128, "medium"): (64, 64, 4, 3, 128),
                ("inference", "free", 128, "medium"): (64, 32, 4, 3, None),
                ("inference", "pointwise", 128, "medium"): (64, 64, 4, 3, 128),
                ("inference", "projection", 128, "medium"): (64, 64, 4, 2, 168),
                ("inference", "r-softmax", 128, "medium"): (64, 32, 4, 3, None),
                ("inference", "softmax", 128, "long"): (64, 64, 4, 3, 128),
                ("inference", "softmax", 128, "medium"): (64, 64, 4, 2, None),
                ("inference", "sparsemax", 128, "long"): (64, 64, 4, 3, 128),
                ("inference", "sparsemax", 128, "medium"): (64, 64, 4, 3, 168),
                ("inference", "threshold", 128, "medium"): (64, 32, 4, 3, None),
                ("inference", "truncated", 128, "medium"): (64, 64, 4, 2, 168),
                ("keys", "entmax-1.5", 128, "long"): (64, 64, 4, 3, 168),
                ("keys", "entmax-1.5", 128, "medium"): (64, 64, 4, 3, 168),
                ("keys", "free", 128, "medium"): (64, 64, 4, 3, 168),
                ("keys", "pointwise", 128, "medium"): (64, 64, 4, 3, 168),
                ("keys", "projection", 128, "medium"): (64, 64, 4, 3, 168),
                ("keys", "r-softmax", 128, "medium"): (64, 64, 4, 3, None),
                ("keys", "softmax", 128, "long"): (64, 64, 4, 3, 168),
                ("keys", "softmax", 128, "medium"): (64, 64, 4, 3, 168),
                ("keys", "sparsemax", 128, "medium"): (64, 64, 4, 3, 168),
                ("keys", "threshold", 128, "medium"): (64, 64, 4, 2, 168),
                ("keys", "truncated", 128, "medium"): (64, 64, 4, 3, 168),
                ("queries", "entmax-1.5", 128, "long"): (64, 64, 4, 3, None),
                ("queries", "entmax-1.5", 128, "medium"): (64, 64, 4, 3, None),
                ("queries", "free", 128, "medium"): (64, 64, 4, 2, None),
                ("queries", "pointwise", 128, "medium"): (64, 64, 4, 2, None),
                ("queries", "projection", 128, "medium"): (64, 64, 4, 2, None),
                ("queries", "r-softmax", 128, "medium"): (64, 64, 4, 2, None),
                ("queries", "softmax", 128, "long"): (64, 64, 4, 3, None),
                ("queries", "softmax", 128, "medium"): (64, 64, 4, 2, 128),
                ("queries", "sparsemax", 128, "medium"): (64, 64, 4, 2, 128),
                ("queries", "threshold", 128, "medium"): (64, 64, 4, 3, None),
                ("queries", "truncated", 128, "medium"): (64, 64, 4, 2, None),
            },
        },
    ),
}
