"""The best measured settings of the Triton kernels by GPU, as `settings` looks them up.

By device name: its compute capability, the record of the measurements, and settings by kernel,
mapping or family, bytes of a row of keys, and kind of row. What is not listed runs with the
defaults of `plan`. `python -m benchmarks.gpu.tune RECORD` adds a GPU from a record of `make gpu`.
"""

from __future__ import annotations

Row = tuple[int, int, int, int, int | None]  # tile, warps, stages, registers
Measured = tuple[tuple[int, int], str, dict[tuple[str, str, int, str], Row]]

TABLES: dict[str, Measured] = {
    "NVIDIA H200": (
        (9, 0),
        "results/benchmarks/variants-nvidia-h200.json",
        {
            ("inference", "entmax-1.5", 128, "long"): (64, 64, 4, 3, 168),
            ("inference", "entmax-1.5", 128, "medium"): (64, 32, 4, 3, None),
            ("inference", "projection", 128, "long"): (64, 64, 4, 3, None),
            ("inference", "r-softmax", 128, "long"): (64, 64, 4, 3, 168),
            ("inference", "r-softmax", 128, "medium"): (64, 64, 4, 2, 168),
            ("inference", "softmax", 128, "long"): (64, 64, 4, 3, None),
            ("inference", "softmax", 128, "medium"): (64, 64, 4, 3, None),
            ("inference", "sparsemax", 128, "long"): (64, 64, 4, 3, 168),
            ("inference", "sparsemax", 128, "medium"): (64, 32, 4, 3, None),
            ("keys", "entmax-1.5", 128, "medium"): (64, 64, 4, 2, 168),
            ("keys", "free", 128, "long"): (64, 64, 4, 2, None),
            ("keys", "free", 128, "medium"): (64, 64, 4, 2, None),
            ("keys", "pointwise", 128, "long"): (64, 64, 4, 2, None),
            ("keys", "pointwise", 128, "medium"): (64, 64, 4, 2, None),
            ("keys", "sparsemax", 128, "medium"): (64, 64, 4, 2, 168),
        },
    ),
}
