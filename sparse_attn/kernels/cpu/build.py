"""Compile the CPU kernels once on the user's machine and load them with ctypes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import torch

LOGGER = logging.getLogger("sparse_attn")
SOURCE = Path(__file__).parent
SOURCES = (
    *("rows.cpp", "args.h", "task.h", "few.h", "lists.h", "support.h", "gemm.h", "simd.h"),
    *("maps.h", "floors.h", "shares.h", "projections.h", "truncated.h", "unnormalized.h"),
)
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
VECTOR_FLAGS = {
    "AVX512": "-mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mprefer-vector-width=512",
    "AVX2": "-mavx2 -mfma",
}
MEND = "install a C++ compiler (such as g++) or set CXX to one"

_lock = threading.Lock()
_result: ctypes.CDLL | str | None = None


def library() -> ctypes.CDLL | str:
    """The loaded library, built if necessary, or the reason for its absence; cached per process."""
    global _result
    with _lock:
        if _result is None:
            try:
                _result = _loaded(_built())
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                _result = f"the CPU kernels cannot be built: {error}"
                LOGGER.warning(
                    "%s. Attention falls back to the slower reference; %s.", _result, MEND
                )
        return _result


def _loaded(path: Path) -> ctypes.CDLL:
    """The library, rebuilt if the file is damaged."""
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(_built()))


def _built() -> Path:
    """Path of the compiled library, named by the hash of its inputs."""
    compiler = _compiler()
    version = _run([*compiler, "--version"])
    errors = []
    for flags in _flag_choices(version):
        key = hashlib.sha256(
            "\0".join([version, platform.machine(), *compiler[1:], *flags]).encode()
        )
        for name in SOURCES:
            key.update((SOURCE / name).read_bytes())
        target = _folder() / f"rows-{key.hexdigest()[:20]}.so"
        if target.exists():
            return target
        try:
            return _compile(compiler, flags, target)
        except (RuntimeError, subprocess.SubprocessError) as error:
            errors.append(str(error))
    raise RuntimeError(errors[0])


def _compiler() -> list[str]:
    """The command in CXX, possibly with arguments, or the first compiler found."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen and shutil.which(chosen[0]) is None:
        raise RuntimeError(f"CXX={os.environ['CXX']!r} was not found")
    for name in ("c++", "g++", "clang++"):
        if not chosen and shutil.which(name):
            chosen = [name]
    if not chosen:
        raise RuntimeError("no C++ compiler was found")
    return chosen


def _flag_choices(version: str) -> list[list[str]]:
    """Sets of compiler flags, best first.

    OpenMP only with GCC and torch's own libgomp: a second thread pool would compete with torch's.
    Without it the kernels use plain threads.
    """
    vectors = VECTOR_FLAGS.get(torch.backends.cpu.get_cpu_capability(), "").split()
    plain = [*FLAGS, *vectors, "-pthread"]
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")) + sorted(
        (Path(torch.__file__).parent.parent / "torch.libs").glob("libgomp*.so*")
    )
    if "clang" in version or not libraries:
        return [plain]
    # as-needed drops the compiler's own libgomp, later on the command line
    return [[*plain, "-fopenmp", "-Wl,--as-needed", str(libraries[0])], plain]


def _folder() -> Path:
    """The user's cache, if no other user can write to it."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparse_attn"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = cache.stat()
        own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
        if own and not status.st_mode & 0o022 and os.access(cache, os.W_OK):
            return cache
    except (OSError, RuntimeError):  # no home, or not a folder
        pass
    return Path(_temporary_folder().name)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A private folder of this process."""
    return tempfile.TemporaryDirectory(prefix="sparse_attn-", ignore_cleanup_errors=True)


def _compile(compiler: list[str], flags: list[str], target: Path) -> Path:
    """Compile next to the target and rename, so that other processes never see a partial file."""
    LOGGER.info("building the CPU kernels with %s: %s", shlex.join(compiler), target)
    handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        # a library among the flags must come after the source that needs it
        _run([*compiler, str(SOURCE / "rows.cpp"), *flags, "-o", name])
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {last}")
    return done.stdout
