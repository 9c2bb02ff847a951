"""The C++ of the CPU kernels under sanitizers, driven by random calls: `make sanitize`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch

from sparse_attn.kernels.cpu import build
from tests.commands import run

CALLS = 1000
VECTORS = {"512": "AVX512", "256": "AVX2", "128": ""}
WATCH = [
    "-O1",
    "-g",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
]
# without exceptions, whose branches no call takes
COUNT = ["-O0", "-g", "--coverage", "-fprofile-update=atomic", "-fno-exceptions"]
# of what a mapping without a kernel would get, which `refusal` keeps away
NEVER = {"return nullptr;"}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _gcc() -> None:
    try:
        version = build._run([*build._compiler(), "--version"])
    except (OSError, RuntimeError):
        version = ""
    if "Free Software Foundation" not in version or not Path(_runtime()).is_absolute():
        pytest.skip("needs GCC with its libasan")


def _runtime() -> str:
    return build._run([*build._compiler(), "-print-file-name=libasan.so"]).strip()


def flags_of(width: str) -> list[str]:
    """Of a library with plain threads whose vectors have so many bits."""
    vectors = VECTORS[width]
    widest = torch.backends.cpu.get_cpu_capability()
    if vectors and vectors != widest and widest != "AVX512":
        pytest.skip(f"this machine has no {vectors}")
    return [*build.FLAGS, *build.VECTOR_FLAGS.get(vectors, "").split(), "-pthread"]


def compiled(folder: Path, flags: list[str], source: Path = build.SOURCE) -> Path:
    library = folder / "rows.so"
    build._run([*build._compiler(), str(source / "rows.cpp"), *flags, "-o", str(library)])
    return library


def drive(library: Path, calls: int, *, seed: int = 1, watched: bool = True) -> tuple[bool, str]:
    """Whether so many calls came to their end, and what was said."""
    environment = {"LD_PRELOAD": _runtime(), "ASAN_OPTIONS": "detect_leaks=0"} if watched else {}
    done = run("-m", "tests.trust.drive_kernels", library, calls, seed, env=environment)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("width", [*VECTORS, "OpenMP"])
def test_no_sanitizer_says_anything(width: str, tmp_path: Path) -> None:
    if width == "OpenMP":
        flags = build._flag_choices("")[0]
        if "-fopenmp" not in flags:
            pytest.skip("torch has no libgomp here")
    else:
        flags = flags_of(width)
    whole, said = drive(compiled(tmp_path, [*flags, *WATCH]), CALLS)
    assert whole, said[:4000]


FAULTS = {
    "signed integer overflow": (
        "simd.h",
        "(BitsF)(e.less_one + 1.0f) + e.n",
        "(IntF)(e.less_one + 1.0f) + (IntF)e.n",
    ),
    "heap-buffer-overflow": ("gemm.h", "to[i * stride + k] =", "to[i * stride + k + 1] ="),
    "use-after-poison": ("task.h", "{&keep, stride}", "{&keep, stride / 2}"),
    "reads what another left": (
        "task.h",
        "std::fill(sum_keys,",
        "if (!a.causal) std::fill(sum_keys,",
    ),
}


@pytest.mark.parametrize("report", FAULTS)
def test_a_fault_is_reported(report: str, tmp_path: Path) -> None:
    """Each of the watchers sees what it is there for."""
    file, sound, faulty = FAULTS[report]
    source = tmp_path / "source"
    shutil.copytree(build.SOURCE, source)
    text = (source / file).read_text()
    assert text.count(sound) == 1
    (source / file).write_text(text.replace(sound, faulty))
    flags = [*flags_of("128"), *WATCH]
    whole, said = drive(compiled(tmp_path, flags, source), CALLS)
    assert not whole
    assert report in said, said[:4000]


def test_every_line_is_reached(tmp_path: Path) -> None:
    # the machine's own vectors: a panel of narrow ones holds fewer, and leaves instances idle
    library = compiled(tmp_path, [*build._flag_choices("")[-1], *COUNT])
    whole, said = drive(library, 2 * CALLS, watched=False)
    assert whole, said[:4000]
    unreached = set()
    for file in counted(library):
        path = Path(file["file"])
        if path.name not in build.sources():
            continue
        lines: Counter[int] = Counter()
        for line in file["lines"]:
            lines[line["line_number"]] += line["count"]
        taken = [bool(branch["count"]) for line in file["lines"] for branch in line["branches"]]
        reached = [number for number, count in lines.items() if count]
        print(
            f"{path.name:15} lines {len(reached):4} of {len(lines):4}   "
            f"branches of all instances {sum(taken):4} of {len(taken):4}"
        )
        text = (build.SOURCE / path.name).read_text().splitlines()
        unreached |= {text[number - 1].strip() for number in lines.keys() - set(reached)}
    assert unreached == NEVER


def counted(library: Path) -> list[dict]:
    """What gcov knows of every file that the library is made of."""
    options = ["--json-format", "--stdout", "--branch-probabilities"]
    command = ["gcov", *options, f"{library.name}-rows.gcda"]
    done = subprocess.run(command, cwd=library.parent, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["files"]
