"""Write the budget of the installed Triton; takes minutes.

python -m benchmarks.machine
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

from benchmarks.machine import budget


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(
            lambda case: budget.counts(budget.kernels(*case)),
            product(budget.CAPABILITIES, budget.MAPPINGS),
        )
        budget.write({line: of_line for counts in found for line, of_line in counts.items()})


if __name__ == "__main__":
    main()
