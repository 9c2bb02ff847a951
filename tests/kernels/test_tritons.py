"""Every mapping compiles with every Triton that is supported, which needs no GPU.

`make tritons` installs others than the pinned one into folders of their own. What compiles is
recorded in results/compiles with a hash of the kernels, and not compiled again until they change.
"""

import hashlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from sparse_attn.mappings import get_spec, mapping_names

from .compiling import program
from .problems import LEARNED, SETTINGS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/triton"
RECORDS = ROOT / "results/compiles"
VERSIONS = ("3.6.0", version("triton"), "3.9.0")  # the oldest, the pinned one, a newer one


def call(name, params, keys, sink):
    """A mapping without and with a sink; with one its parameter is learned, if it can be."""
    options = "".join(f", {key}={value}" for key, value in params.items())
    if sink:
        options += ", sink=0.5"
        if (name, params) in LEARNED:
            options += f", learn={next(iter(params))!r}"
    return f"*qkv({keys}), Mapping({name!r}{options})"


# one setting for each kernel, which can be learned where any can
KINDS = [("entmax", {"alpha": 1.5})]
KINDS += {name: (name, params) for name, params in reversed([*LEARNED, *SETTINGS])}.values()
ROWS = [
    call(name, params, keys, sink)
    for name, params in KINDS
    if not name.startswith("scaled")
    for sink in (False, True)
    if not sink or get_spec(name).mass != "free"
    # of one tile and of several, so that each half of the calls has both
    for keys in ((300, 100) if sink else (100, 300))
]
WIDE = """*qkv(128, 128, torch.float16), Mapping("top-p-softmax", sink=0.5)"""
OPTIONS = [
    """*qkv(2000, 128, torch.float16), Mapping("entmax", alpha=1.25), causal=True""",
    WIDE,
    """*qkv(300, 64, torch.bfloat16, (4, 2, 2)), Mapping("sparsehourglass", learn="q"),
        mask=torch.ones(300, 300, dtype=torch.bool), bias=torch.zeros(300), softcap=20.0""",
    """*qkv(300, 64, torch.bfloat16), sink=torch.zeros(2, requires_grad=True),
        mapping=Mapping("clipped-softmax", gamma=-0.01, learn="gamma")""",
    """*qkv(4096, queries=1), Mapping("entmax", alpha=1.5)""",
    """*qkv(2000, 80, torch.float32, (1, 1, 1)), Mapping("sigsoftmax", learn="bias"),
        window=100, key_lengths=torch.tensor([1500])""",
    """*qkv(100, 8), Mapping("r-softmax"), dropout=0.1""",
]


def test_every_kernel_is_among_the_calls():
    kernels = {get_spec(name).kernel.name for name, _ in KINDS}
    assert kernels == {spec.kernel.name for spec in map(get_spec, mapping_names()) if spec.kernel}


@pytest.mark.compiles
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("number", VERSIONS)
def test_every_mapping_compiles(number, capability, half):
    calls = [*ROWS, *OPTIONS][half::2]
    record = RECORDS / f"triton-{number}-{capability}-{half}.json"
    made = {"sources": fingerprint(calls), "calls": len(calls), "torch": version("torch")}
    if record.exists() and json.loads(record.read_text()) == made:
        pytest.skip(f"compiled before, with the same kernels: {record.name}")
    folder = None if number == version("triton") else FOLDER / number
    if folder is not None:
        assert folder.is_dir(), f"Triton {number} is not in {FOLDER}: make tritons installs it"
    assert_compile(calls, capability, folder)
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(made) + "\n")


def fingerprint(calls):
    """A hash of the kernels' sources and of the calls that are compiled."""
    kernels = ROOT / "sparse_attn/kernels"
    sources = [
        *kernels.glob("*.py"),
        *kernels.glob("triton/*.py"),
        ROOT / "tests/kernels/compiling.py",
    ]
    content = b"".join(path.read_bytes() for path in sorted(sources)) + repr(calls).encode()
    return hashlib.sha256(content).hexdigest()


@pytest.mark.soak
def test_wide_rows_fit_a_gpu_with_little_shared_memory():
    assert_compile([WIDE], 86)


def assert_compile(calls, capability, folder=None):
    found = run(program(capability, calls), folder)
    wrong = {call: said for call, said in zip(calls, found, strict=True) if said not in (2, 3)}
    assert not wrong, "\n".join(f"{call}: {said}" for call, said in wrong.items())


def run(code, folder):
    paths = [str(path) for path in (folder, ROOT) if path is not None]
    own = {"PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
