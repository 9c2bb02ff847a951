"""Wheels of a release: one of sources, and one for Linux on x86-64 with compiled C++.

`make wheels` writes them into dist/. The second needs no compiler, because it has the library of
the CPU kernels for each kind of machine of `CAPABILITIES`; auditwheel determines its tag.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from sparse_attn.kernels.cpu import build

ROOT = Path(__file__).parents[1]
CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")  # torch's names of x86-64-v2 (or v1), v3 and v4
GLIBC = 28  # torch's wheels need at most glibc 2.28


def main() -> None:
    folder = ROOT / "dist"
    pure = pure_wheel(folder)
    for wheel in (pure, platform_wheel(pure, CAPABILITIES)):
        print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1000:.0f} kB")


def pure_wheel(folder: Path) -> Path:
    """Build a wheel offline from a copy, because the build writes into the source folder."""
    with tempfile.TemporaryDirectory() as copy:
        skipped = shutil.ignore_patterns("__pycache__")
        for path in ROOT.glob("*/__init__.py"):
            shutil.copytree(path.parent, Path(copy, path.parent.name), ignore=skipped)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        _run([sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), copy])
    (wheel,) = folder.glob("*-py3-none-any.whl")
    return wheel


def platform_wheel(pure: Path, capabilities: Iterable[str]) -> Path:
    """Build a wheel next to `pure` that also has the libraries for these machines.

    Raises:
        SystemExit: the libraries need a newer Linux than torch's wheels.
    """
    with ZipFile(pure) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    for capability in capabilities:
        library = compiled(capability)
        place = build.in_wheel(capability, library).relative_to(ROOT)
        files[place.as_posix()] = library
    with tempfile.TemporaryDirectory() as folder:
        draft = _write(files, "linux_x86_64", Path(folder, pure.name))
        found = json.loads(_run([sys.executable, "-m", "auditwheel", "show", "--json", str(draft)]))
    tag = found["overall_tag"]
    version = re.fullmatch(r"manylinux_2_(\d+)_x86_64", tag)
    if version is None or int(version[1]) > GLIBC:
        raise SystemExit(
            f"error: the compiled libraries need {tag}, expected manylinux_2_{GLIBC}_x86_64 or "
            "older; compile in the image quay.io/pypa/manylinux_2_28_x86_64, or replace what is "
            "newer in release/manylinux.h"
        )
    return _write(files, tag, pure)


def compiled(capability: str) -> bytes:
    """Compile the library for these machines; it uses the OpenMP of the process that loads it.

    Every torch includes a libgomp under another name.
    """
    compiler = build._compiler()
    if "clang" in _run([*compiler, "--version"]):
        raise SystemExit("error: wheels need GCC, for torch's OpenMP is GCC's; set CXX to g++")
    flags = [flag for flag in build.flags_for(capability) if flag != "-shared"]
    flags += ["-fopenmp", "-include", str(Path(__file__).with_name("manylinux.h"))]
    source = str(build.SOURCE / "rows.cpp")
    with tempfile.TemporaryDirectory() as folder:
        unlinked, library = Path(folder, "rows.o"), Path(folder, "rows.so")
        _run([*compiler, *flags, "-c", source, "-o", str(unlinked)])
        # link without -fopenmp, which would name the compiler's libgomp
        _run([*compiler, "-shared", "-s", str(unlinked), "-o", str(library)])
        return library.read_bytes()


def _write(files: dict[str, bytes], tag: str, pure: Path) -> Path:
    """Write a wheel of these files, with `tag` for its platform."""
    wheel = pure.with_name(pure.name.replace("-any.whl", f"-{tag}.whl"))
    info = next(name for name in files if name.endswith(".dist-info/WHEEL"))
    record = info.replace("WHEEL", "RECORD")
    about = files[info].decode()
    about = about.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    about = about.replace("Tag: py3-none-any", f"Tag: py3-none-{tag}")
    files = {name: content for name, content in files.items() if name != record}
    files[info] = about.encode()
    lines = [f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    with ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            entry = ZipInfo(name)  # dated 1980: the same files give the same wheel
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content, ZIP_DEFLATED)
    return wheel


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    return f"sha256={digest.rstrip('=')}"


def _run(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
