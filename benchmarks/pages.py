"""How much of a cache of keys a query has to read where every page of keys has bounds."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks import suite
from benchmarks.race import Contestant, Race
from benchmarks.sparsity import recorded
from benchmarks.suite import Pace, Suite
from benchmarks.tables import table
from benchmarks.timing import rounded
from sparse_attn.mappings import Mapping

ALPHAS = {"sparsemax": 2.0, "entmax-1.5": 1.5}
SIZES = (8, 16, 32, 64)
VECTORS = {"box": 2, "ball": 1, "both": 3}  # that the bounds of a page take


@dataclass(frozen=True)
class Case(suite.Case):
    """Keys in a row of MiniLM's."""

    length: int

    @property
    def title(self) -> str:
        return f"{self.name}, {self.length:,} keys"


class Pages(Suite[Case, Contestant]):
    name = "pages"
    title = "Pages of keys with bounds"
    meaning = """\
A page whose keys can have no score above the threshold of a row holds none of its support and need
not be read. Its largest score is bounded by the least and the largest entries of the keys (`box`,
two vectors a page), by their centre and radius (`ball`, one), or by the smaller of these (`both`).
The threshold is the row's own, which a search knows only in the end: no order of reading can do
with less. `pages` is the share of those whose bound lies above it, `read` adds the bounds, as a
share of all keys: below 100% saves memory traffic. `support` is the share of pages that have one.

Queries and keys are those of all layers and heads of MiniLM, recorded as in `sparsity`."""
    base = ""
    paces: ClassVar = dict.fromkeys(("cpu", "quick"), Pace(0, 1))

    def cases(self, device: str, options: argparse.Namespace) -> list[Case]:
        return [Case("pages", name, 512 if options.quick else 2048) for name in ALPHAS]

    def contestants(self, case: Case, device: torch.device) -> list[Contestant]:
        return []

    def measure(self, case: Case, race: Race[Contestant]) -> dict[str, Any]:
        query, key, _ = recorded(case.length)
        found = [shares(*layer, ALPHAS[case.name]) for layer in zip(query, key, strict=True)]
        pages = {
            str(size): {
                name: rounded(sum(layer[size][name] for layer in found) / len(found))
                for name in ("support", *VECTORS)
            }
            for size in SIZES
        }
        return {"length": case.length, "pages": pages, "rows": []}

    def section(self, case: dict[str, Any]) -> list[str]:
        lines = []
        for size, page in case["pages"].items():
            parts = [(page[name], read(page, size, name)) for name in VECTORS]
            lines.append([size, *(f"{part:.1%}" for part in [page["support"], *sum(parts, ())])])
        columns = (f"{name}, {what}" for name in VECTORS for what in ("pages", "read"))
        headings = ["keys a page", "support", *columns]
        return [f"## {case['name']}", "", f"{case['title']}.", "", *table(headings, lines)]


def read(page: dict[str, float], size: str, bound: str) -> float:
    """The pages that a bound leaves and the bounds, as a share of all keys."""
    return page[bound] + VECTORS[bound] / int(size)


def shares(query: Tensor, key: Tensor, alpha: float) -> dict[int, dict[str, float]]:
    """The share of pages with a support, and of those above each bound, by keys a page.

    Args:
        query, key: (heads, length, d).
        alpha: of entmax, above 1.
    """
    query = query * query.shape[-1] ** -0.5
    scores = query @ key.mT
    p = Mapping("entmax", alpha=alpha)(scores)
    threshold = scores.amax(-1, keepdim=True) - p.amax(-1, keepdim=True) ** (alpha - 1) / (
        alpha - 1
    )
    found = {}
    for size in SIZES:
        above = {name: bound > threshold for name, bound in bounds(query, key, size).items()}
        above["support"] = (p.unflatten(-1, (-1, size)) > 0).any(-1)
        found[size] = {name: holds.float().mean().item() for name, holds in above.items()}
    return found


def bounds(query: Tensor, key: Tensor, size: int) -> dict[str, Tensor]:
    """No less than query · key for every key of a page, (heads, queries, pages)."""
    pages = key.unflatten(1, (-1, size))
    box = query.clamp(min=0) @ pages.amax(2).mT + query.clamp(max=0) @ pages.amin(2).mT
    centre = pages.mean(2)
    radius = (pages - centre[:, :, None]).norm(dim=-1).amax(2)
    ball = query @ centre.mT + query.norm(dim=-1, keepdim=True) * radius[:, None]
    return {"box": box, "ball": ball, "both": box.minimum(ball)}
