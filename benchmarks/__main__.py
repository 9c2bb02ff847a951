"""Run a benchmark, writing runs/benchmarks/<benchmark>-<device>.json and .md.

Run as:
    sparse-attn benchmarks attention            # calls and training steps, 13 minutes on 2 cores
    sparse-attn benchmarks attention --quick    # small shapes, one minute
    sparse-attn benchmarks heads --case 128k    # some of the cases
    sparse-attn benchmarks llm --out results/benchmarks   # into the records that the docs link to
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparse_attn.cli.errors import input_errors
from sparse_attn.cli.parser import LineParser

if TYPE_CHECKING:
    import torch

    from benchmarks.table import Benchmark, Case, Record
    from benchmarks.timing import Effort

BENCHMARKS = {  # what --help says of each
    "attention": "attention calls and training steps, every mapping beside SDPA, FlexAttention,\n"
    "entmax, AdaSplash and Liger; groups: attention, step, length, sparsity,\n"
    "decoding, and on a GPU causal and long",
    "heads": "output layers with their loss, beside PyTorch's, Liger's and Apple's; a group\n"
    "for each kind of head",
    "llm": "SmolLM2 with each mapping beside SDPA; groups: prefill, decoding, recording\n"
    "(install the extra llm)",
    "screening": "int8 screening of SmolLM2's long rows beside the product of all keys, one\n"
    "thread of a CPU (install the extra llm)",
    "tune": "tiles, warps, stages and registers of each Triton kernel on this GPU; --enter\n"
    "puts the best of a record into the kernels' table (about 20 minutes)",
}
DESCRIPTION = """Measure time and peak memory against other libraries. A contestant that is not
installed, does not support a case or runs out of memory gets a row that says so."""
NOTES = """Contestants run in interleaved, shuffled rounds. A ratio is the median over rounds, so a
shared machine that slows down changes it little. OMP_NUM_THREADS sets the number of threads.
The record is written after every case."""


def make_parser() -> LineParser:
    """Return the parser; it imports nothing heavy, so that --help is fast."""
    parser = LineParser(
        prog="sparse-attn benchmarks",
        description=DESCRIPTION,
        epilog=f"benchmarks:\n{_listed()}\n\n{NOTES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("benchmark", metavar="BENCHMARK", help="one of those below")
    out = Path("runs/benchmarks")
    add("--out", type=Path, default=out, metavar="FOLDER", help="default: %(default)s")
    add("--case", nargs="+", metavar="TEXT", help="only cases whose `group: name` has one of these")
    add("--skip", metavar="TEXT", help="leave out contestants whose name contains this")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if available")
    add("--quick", action="store_true", help="small shapes and few rounds, about one minute")
    add("--budget", type=_above_0, metavar="SECONDS", help="start no new case after this time")
    add("--enter", type=Path, metavar="RECORD", help="(tune) rewrite the table of settings")
    return parser


def _listed() -> str:
    return "\n".join(
        f"  {name:11}" + about.replace("\n", "\n" + 13 * " ") for name, about in BENCHMARKS.items()
    )


def _above_0(text: str) -> float:
    """argparse type: a positive number."""
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def main(argv: Sequence[str] | None = None) -> None:
    """Run the selected cases of a benchmark."""
    parser = make_parser()
    options = parser.parse_all(argv)
    if options.benchmark not in BENCHMARKS:
        parser.refuse(options.benchmark, BENCHMARKS)
    if options.enter is not None and options.benchmark != "tune":
        parser.error(f"--enter: only tune has it, got {options.benchmark}")

    import torch

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU; omit it to use the CPU")
    if options.benchmark == "tune" and device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
    with input_errors():
        if options.enter is not None:
            from benchmarks.tune import enter

            enter(options.enter)
            return
        benchmark: Benchmark = pkgutil.resolve_name(f"benchmarks.{options.benchmark}:BENCHMARK")
    pace = "quick" if options.quick else device.type
    if pace not in benchmark.paces:
        parser.error(f"{benchmark.name}: needs a GPU; --quick tries it in Triton's interpreter")
    cases = benchmark.cases(device.type, options.quick)
    labels = {f"{case.group}: {case.name}": case for case in cases}
    chosen = {
        label: case
        for label, case in labels.items()
        if not options.case or any(part in label for part in options.case)
    }
    if not chosen:
        parser.error(f"--case {' '.join(options.case)}: expected a part of {', '.join(labels)}")
    run(benchmark, chosen, device, options)


def run(
    benchmark: Benchmark,
    cases: dict[str, Case],
    device: torch.device,
    options: argparse.Namespace,
) -> None:
    """Measure cases until the time is used up; the record lists the rest."""
    from benchmarks.table import Record, page
    from benchmarks.timing import DeviceLostError, Effort

    pace = benchmark.paces["quick" if options.quick else device.type]
    ends = time.perf_counter() + (options.budget or pace.budget)
    effort = Effort(pace.seconds, pace.least, deadline=ends)
    record = Record(benchmark, device, options)
    for number, (label, case) in enumerate(cases.items(), 1):
        if effort.over:
            record.content["left_out"].append(label)
            continue
        print(f"[{number}/{len(cases)}] {label}", flush=True)
        try:
            measure_case(record, case, device, effort, options.skip)
        except DeviceLostError as error:
            raise SystemExit(
                f"{label}: a kernel left the GPU unusable ({error}); the cases before it are in "
                f"{record.file}. Leave the contestant out with --skip"
            ) from error
    record.write()
    print(f"{page(benchmark, record.content)}\nwrote {record.file} and .md")


def measure_case(
    record: Record, case: Case, device: torch.device, effort: Effort, skip: str | None
) -> None:
    """Measure a case with its share of the effort, and add it to the record."""
    from benchmarks.timing import Race

    begun, benchmark = time.perf_counter(), record.benchmark
    contestants = [c for c in benchmark.contestants(case, device) if not (skip and skip in c.name)]
    effort = replace(effort, seconds=case.share * effort.seconds)
    rows = benchmark.measure(case, Race(contestants, case.base, device, effort))
    record.add(case, rows, time.perf_counter() - begun)


if __name__ == "__main__":
    main()
