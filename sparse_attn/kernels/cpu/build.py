"""Load the CPU kernels with ctypes: those in a platform wheel, or compiled once on this machine."""

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
                _result = _from_wheel() or _loaded(_built())
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                _result = f"the CPU kernels cannot be built: {error}"
                LOGGER.warning(
                    "%s. Attention falls back to the slower reference; %s.", _result, MEND
                )
        return _result


def in_wheel(capability: str) -> Path:
    """Where a platform wheel has the library for machines of this capability.

    The name is a hash of sources and flags, so that others never use it.
    """
    return SOURCE / "built" / f"{capability.lower()}-{_hash(flags_for(capability))}.so"


def flags_for(capability: str) -> list[str]:
    """Compiler flags for machines with what torch calls this CPU capability."""
    return [*FLAGS, *VECTOR_FLAGS.get(capability, "").split(), "-pthread"]


def _from_wheel() -> ctypes.CDLL | None:
    """The platform wheel's library, if it fits and no compiler is asked for by CXX."""
    path = in_wheel(torch.backends.cpu.get_cpu_capability())
    if os.environ.get("CXX") or not path.exists():
        return None
    try:
        for openmp in _openmp():
            ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)  # its symbols are the library's
        return ctypes.CDLL(str(path))
    except OSError as error:
        LOGGER.info("%s cannot be used: %s", path, error)
        return None


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
        key = _hash([version, platform.machine(), *compiler[1:], *flags])
        target = _folder() / f"rows-{key}.so"
        if target.exists():
            return target
        try:
            return _compile(compiler, flags, target)
        except (RuntimeError, subprocess.SubprocessError) as error:
            errors.append(str(error))
    raise RuntimeError(errors[0])


def _hash(words: list[str]) -> str:
    """Of the words and the sources."""
    key = hashlib.sha256("\0".join(words).encode())
    for name in SOURCES:
        key.update((SOURCE / name).read_bytes())
    return key.hexdigest()[:20]


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
    plain = flags_for(torch.backends.cpu.get_cpu_capability())
    if "clang" in version or not _openmp():
        return [plain]
    # as-needed drops the compiler's own libgomp, later on the command line
    return [[*plain, "-fopenmp", "-Wl,--as-needed", *_openmp()], plain]


def _openmp() -> list[str]:
    """Torch's own libgomp, if it has one."""
    torch_folder = Path(torch.__file__).parent
    folders = torch_folder / "lib", torch_folder.parent / "torch.libs"
    return [str(path) for folder in folders for path in sorted(folder.glob("libgomp*.so*"))][:1]


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
