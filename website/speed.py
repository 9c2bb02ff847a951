"""Tables of speed and memory, from the records of benchmarks."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import variants
from benchmarks.attention.suite import Attention
from benchmarks.heads import OURS, PLAIN
from benchmarks.tables import short
from sparse_attn.reports.table import Table, markdown
from website import ROOT

_RECORDS = ROOT / "results/benchmarks"


def _benchmark(name: str) -> list[dict[str, Any]]:
    """Return the cases of a benchmark's record."""
    cases: list[dict[str, Any]] = json.loads((_RECORDS / f"{name}.json").read_text())["cases"]
    return cases


def steps() -> list[str]:
    """Training steps with our attention and with other libraries'."""
    cases = [case for case in _benchmark("attention-cpu") if case["group"] == "step"]
    page = "\n\n".join("\n".join(Attention().section(case)) for case in cases)
    return page.replace("## ", "### ").splitlines()


_H200 = {  # heading -> case, pass and suffix of the contestant's name
    "N=128, forward": ("N=128", "forward", ""),
    "N=128": ("N=128", "forward+backward", ""),
    "N=512, forward": ("N=512", "forward", ""),
    "N=512": ("N=512", "forward+backward", ""),
    "MRPC": ("MRPC", "forward+backward", ""),
    "MRPC, key_lengths": ("MRPC", "forward+backward", " (key_lengths)"),
    "causal N=8192": ("causal N=8192", "forward+backward", ""),
    "BERT-base step": ("BERT-base", "step", ""),
}


def h200() -> list[str]:
    """Times of every mapping relative to SDPA on an H200."""
    found: dict[tuple[str, ...], dict[str, Any]] = {
        (case["name"], row["pass"], row["name"]): row
        for case in _benchmark("attention-nvidia-h200")
        for row in case["rows"]
        if row["reason"] is None
    }
    names = dict.fromkeys(
        name for *_, name in found if name.startswith("ours ") and "(" not in name
    )
    rows = []
    for name in names:
        ratios = [found.get((*case, name + end)) for *case, end in _H200.values()]
        cells = [f"{row['to']['SDPA']['median']:.2f}" if row else "" for row in ratios]
        rows.append([name.removeprefix("ours "), *cells])
    sdpa = [found[*case, "SDPA"]["ms"]["median"] for *case, _ in _H200.values()]
    rows.append(["SDPA, ms", *map(short, sdpa)])
    return markdown(Table("", ["mapping", *_H200], rows))


def h200_shapes() -> list[str]:
    """Times forward and backward for the shapes that only the first H200 run measured."""
    record = json.loads((_RECORDS / "31b9054/variants-nvidia-h200.json").read_text())
    del record["shapes"]["N=512"]
    return variants.shapes(record, "forward+backward")


def heads() -> list[str]:
    """Time and memory of our loss compared with the plain form."""
    rows = []
    for case in _benchmark("heads-cpu") + _benchmark("128k/heads-cpu"):
        by_name = {row["name"]: row for row in case["rows"]}
        ours, plain = by_name[OURS], by_name[PLAIN]
        memory = short(ours["memory_mib"] / plain["memory_mib"])
        time = short(ours["to"][PLAIN]["median"])
        rows.append([case["group"], f"{case['vocab']:,}", f"{case['tokens']:,}", time, memory])
    caption = f"{OURS} / {PLAIN}: below 1 is less."
    return markdown(Table(caption, ["head", "vocabulary", "tokens", "time", "peak memory"], rows))


def attention_cpu() -> list[str]:
    """Six mappings relative to SDPA, forward and backward, and a training step of MiniLM."""
    cases = {
        "N=128": ("attention", "N=128"),
        "N=512": ("attention", "N=512"),
        "MiniLM training step": ("step", "MiniLM MRPC"),
    }
    found = {
        (case["group"], case["name"], row["name"]): row
        for case in _benchmark("attention-cpu")
        for row in case["rows"]
        if row["pass"] != "forward"
    }
    names = ("softmax", "r-softmax", "t-softmax", "sparsemax", "entmax", "sigsoftmax")
    rows = []
    for name in names:
        ratios = [found[*case, f"ours {name}"]["to"]["SDPA"]["median"] for case in cases.values()]
        rows.append([name, *(f"{ratio:.2f}" for ratio in ratios)])
    return markdown(Table("", ["mapping", *cases], rows))


def llm_times() -> list[str]:
    """Forward passes and decoding of a language model relative to SDPA, and exact zeros."""
    cases = [case for case in _benchmark("llm-cpu") if case["group"] in ("prefill", "decoding")]
    return _ratios(sorted(cases, key=lambda case: case["tokens"]), "SDPA", "forward")


def sparsity() -> list[str]:
    """Time relative to our softmax, forward and backward on one thread, and exact zeros."""
    return _ratios(_benchmark("sparsity-cpu"), "softmax", "forward+backward, 1 thread")


def _ratios(cases: list[dict[str, Any]], base: str, which: str) -> list[str]:
    """Tabulate times of a pass relative to `base`, and zeros: a row for each contestant."""
    cells: dict[str, dict[str, str]] = {}
    headers = [f"{case['group']}, {case['name']}" for case in cases]
    for header, case in zip(headers, cases, strict=True):
        for row in case["rows"]:
            if row["pass"] == which and row["reason"] is None:
                zeros = f" ({100 * row['zeros']:.4g} %)" if row.get("zeros", 0) > 1e-3 else ""
                ratio = f"{row['to'][base]['median']:.2f}"
                cells.setdefault(row["name"].removeprefix("ours "), {})[header] = ratio + zeros
    rows = [[name, *(by.get(header, "") for header in headers)] for name, by in cells.items()]
    return markdown(Table("", ["mapping", *headers], rows))
