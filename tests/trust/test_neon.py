"""The C++ of the CPU kernels for NEON, under an emulator: what `tests/kernels` asks of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sparse_attn.kernels.cpu import build
from tests.commands import ROOT, run

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
FILES = ("dropout", "gradients", "options", "precision", "rows", "statistics", "support")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def test_the_tests_of_the_kernels_pass(tmp_path: Path) -> None:
    for tool in (COMPILER, EMULATOR):
        if not shutil.which(tool):
            pytest.skip(f"needs {tool}")
    program = tmp_path / "emulated"
    flags = [*(flag for flag in build.FLAGS if flag != "-shared"), "-static", "-pthread"]
    driver = Path(__file__).with_name("emulated.cpp")
    build._run([COMPILER, str(driver), f"-I{build.SOURCE}", *flags, "-o", str(program)])
    files = [ROOT / f"tests/kernels/test_{name}.py" for name in FILES]
    chosen = ["-p", "tests.trust.emulated", "-k", "cpu or test_support", *files]
    done = run("-m", "pytest", *chosen, env={"EMULATED": f"{EMULATOR} {program}"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 2500
