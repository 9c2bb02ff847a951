"""The command: its help, the folder it writes to, and Ctrl+C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from experiments.demo import __main__ as demo
from tests.commands import ROOT, python, wait_for


def test_help_imports_nothing_heavy_and_runs_nothing() -> None:
    program = """
import sys
sys.argv[1:] = ["--help"]
from experiments.demo.__main__ import main
try:
    main()
finally:
    print({"torch", "transformers", "numpy"} & set(sys.modules))
"""
    told = python("-c", program)
    assert "runs/demo/report.html" in told
    assert told.endswith("set()\n")


def test_an_earlier_demo_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "FOLDER", tmp_path / "demo")
    monkeypatch.setattr(demo, "act", lambda folder: (folder / "report.html").touch())
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        demo.main([])
    made = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html"))
    assert made == ["demo-2/report.html", "demo-3/report.html", "demo/report.html"]


@pytest.mark.slow
def test_interrupted_training_ends_in_one_line_and_leaves_no_process(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from experiments.demo import __main__ as demo
demo.FOLDER = Path({str(tmp_path)!r}, "demo")
demo.act = lambda folder: demo.train("softmax", folder / "softmax")
demo.main([])
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for((tmp_path / "demo/softmax/config.json").exists, process)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        told = process.communicate()[1]
    assert process.returncode == 130
    assert told.splitlines()[-1] == "stopped; the same command starts over"
    assert "Traceback" not in told
    assert len(started) >= 2
    assert not psutil.wait_procs(started, timeout=30)[1]
