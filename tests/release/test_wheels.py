"""The platform wheel, installed where there is no compiler, on every kind of machine."""

import base64
import csv
import hashlib
import json
import re
import zipfile
from pathlib import Path

import pytest
import torch

from release import wheels
from release.wheels import CAPABILITIES, platform_wheel, pure_wheel
from tests.commands import python

MACHINE = torch.backends.cpu.get_cpu_capability()
HERE = CAPABILITIES[: CAPABILITIES.index(MACHINE) + 1] if MACHINE in CAPABILITIES else ()

# outputs and gradients of the kernels, and which file they are in
PROGRAM = """\
import torch
from sparse_attn import Mapping, kernels
from sparse_attn.kernels.cpu import build

torch.manual_seed(0)
MAPPINGS = ("softmax", {}), ("r-softmax", {"r": 0.3}), ("sparsemax", {}), ("entmax", {"alpha": 1.7})
for dtype, atol in (torch.float32, 1e-5), (torch.float64, 1e-12):
    inputs = [torch.randn(2, 4, 60, 20, dtype=dtype, requires_grad=True) for _ in range(3)]
    for name, parameters in MAPPINGS:
        found = []
        for impl in "cpu", "reference":
            out = kernels.attention(*inputs, Mapping(name, **parameters), causal=True, impl=impl)
            found.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
        for ours, expected in zip(*found):
            torch.testing.assert_close(ours, expected, atol=10 * atol, rtol=10 * atol)
assert len({line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line}) == 1
print(build.library()._name)
"""


@pytest.mark.soak  # tests/test_package.py installs a wheel of sources
@pytest.mark.skipif(not HERE, reason="needs x86-64")
@pytest.mark.parametrize("wanted", [HERE[-1:], HERE])
def test_it_needs_no_compiler(wanted: tuple[str, ...], tmp_path: Path) -> None:
    pure = pure_wheel(tmp_path)
    wheel = platform_wheel(pure, wanted)
    version = re.fullmatch(r"sparse_attn-.*-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name)
    assert version
    assert int(version[1]) <= 28  # of torch's own wheels
    check_record(pure, wheel, len(wanted))

    site, nothing = tmp_path / "site", tmp_path / "nothing"
    nothing.mkdir()
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", site]
    python("-m", "pip", "install", *options, wheel)
    for capability in wanted:
        env = {
            **{"PATH": str(nothing), "CXX": "", "XDG_CACHE_HOME": str(nothing)},
            **{"PYTHONPATH": str(site), "ATEN_CPU_CAPABILITY": capability.lower()},
        }
        library = Path(python("-c", PROGRAM, cwd=nothing, env=env).strip())
        assert library.parent == site / "sparse_attn/kernels/cpu/built"
        assert library.name.startswith(f"{capability.lower()}-")
        assert not list(nothing.iterdir())


@pytest.mark.parametrize("tag", ["linux_x86_64", "manylinux_2_29_x86_64"])
def test_it_refuses_a_newer_linux(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pure = tmp_path / "sparse_attn-1-py3-none-any.whl"
    with zipfile.ZipFile(pure, "w") as archive:
        archive.writestr("sparse_attn-1.dist-info/WHEEL", "")
    monkeypatch.setattr(wheels, "_run", lambda command: json.dumps({"overall_tag": tag}))
    with pytest.raises(SystemExit, match=f"need {tag}, expected manylinux_2_28.*; compile in"):
        platform_wheel(pure, ())
    assert list(tmp_path.iterdir()) == [pure]


def check_record(pure: Path, wheel: Path, libraries: int) -> None:
    """The files of the pure wheel, these libraries, and a record of them all."""
    with zipfile.ZipFile(pure) as before, zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        new = files.keys() - set(before.namelist())
        dates = {(entry.external_attr >> 16, entry.date_time) for entry in archive.infolist()}
    assert dates == {(0o100644, (1980, 1, 1, 0, 0, 0))}
    assert len(new) == libraries
    assert all(name.endswith(".so") and files[name].startswith(b"\x7fELF") for name in new)
    (name,) = (name for name in files if name.endswith("/RECORD"))
    rows = {row[0]: row[1:] for row in csv.reader(files.pop(name).decode().splitlines())}
    assert rows.pop(name) == ["", ""]
    assert rows.keys() == files.keys()
    for name, (digest, size) in rows.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode()
        assert digest == "sha256=" + sha.rstrip("=")
        assert int(size) == len(files[name])
