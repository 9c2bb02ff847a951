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
from contextlib import suppress
from pathlib import Path

import torch

LOGGER = logging.getLogger("sparse_attn")
SOURCE = Path(__file__).parent
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
VECTOR_FLAGS = {
    "AVX512": "-mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mprefer-vector-width=512",
    "AVX2": "-mavx2 -mfma",
}
MEND = (
    "install a C++ compiler (such as g++) or set CXX to one; XDG_CACHE_HOME names another folder "
    "for the library"
)
TIMEOUT = 300  # seconds for a compilation

_lock = threading.Lock()
_result: ctypes.CDLL | str | None = None


def library() -> ctypes.CDLL | str:
    """Return the loaded library, built if necessary, or the reason for its absence; cached."""
    global _result
    with _lock:
        if _result is None:
            try:
                _result = _from_wheel() or ctypes.CDLL(str(_built()))
            except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
                _result = f"the CPU kernels cannot be built: {error}"
                LOGGER.warning(
                    "%s. Attention falls back to the slower reference; %s.", _result, MEND
                )
        return _result


def in_wheel(capability: str, content: bytes) -> Path:
    """Return the path of this library in a platform wheel, for machines of this capability.

    The name has hashes of sources and flags, against use by other versions, and of the content.
    """
    return _named(SOURCE / "built", _stem_in_wheel(capability), content)


def _stem_in_wheel(capability: str) -> str:
    return f"{capability.lower()}-{_hash(flags_for(capability))}"


def _named(folder: Path, stem: str, content: bytes) -> Path:
    return folder / f"{stem}-{hashlib.sha256(content).hexdigest()[:20]}.so"


def _intact(folder: Path, stem: str) -> Path | None:
    """Find an intact library of this name in the folder.

    The content is checked, because loading a library truncated by a crash or a full disk kills the
    process with SIGBUS.
    """
    for path in sorted(folder.glob(f"{stem}-*.so")):
        with suppress(OSError):  # for example a bad block
            if path == _named(folder, stem, path.read_bytes()):
                return path
    return None


def sources() -> list[str]:
    """Return the names of the C++ files, without the hidden ones that editors write."""
    return sorted(path.name for path in SOURCE.glob("[!.]*") if path.suffix in (".cpp", ".h"))


def flags_for(capability: str) -> list[str]:
    """Return compiler flags for machines with this CPU capability of torch."""
    return [*FLAGS, *VECTOR_FLAGS.get(capability, "").split(), "-pthread"]


def _from_wheel() -> ctypes.CDLL | None:
    """Load the platform wheel's library, if it fits and CXX does not ask for a compiler."""
    if os.environ.get("CXX"):
        return None
    stem = _stem_in_wheel(torch.backends.cpu.get_cpu_capability())
    path = _intact(SOURCE / "built", stem)
    if path is None:
        return None
    try:
        for openmp in _openmp():
            ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)  # the library uses its symbols
        return ctypes.CDLL(str(path))
    except OSError as error:
        LOGGER.info("%s cannot be used: %s", path, error)
        return None


def _built() -> Path:
    """Return the path of the compiled library, named by hashes of its inputs and its content."""
    compiler, cache = _compiler(), _cache()
    version = _run([*compiler, "--version"])
    errors = []
    for flags in _flag_choices(version):
        stem = f"rows-{_hash([version, platform.machine(), *compiler[1:], *flags])}"
        found = None if cache is None else _intact(cache, stem)
        if found is not None:
            return found
        try:
            return _compile(compiler, flags, _folder(), stem)
        except (RuntimeError, subprocess.SubprocessError) as error:
            errors.append(str(error))
    raise RuntimeError(errors[0])


def _hash(words: list[str]) -> str:
    """Hash the words and the sources."""
    key = hashlib.sha256("\0".join(words).encode())
    for name in sources():
        key.update((SOURCE / name).read_bytes())
    return key.hexdigest()[:20]


def _compiler() -> list[str]:
    """Return the command in CXX, possibly with arguments, or the first compiler found."""
    if command := os.environ.get("CXX"):
        return shlex.split(command)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("no C++ compiler was found")


def _flag_choices(version: str) -> list[list[str]]:
    """Return sets of compiler flags, best first.

    OpenMP is used only with GCC and torch's libgomp, because a second thread pool would compete
    with torch's. Otherwise the kernels use plain threads.
    """
    plain = flags_for(torch.backends.cpu.get_cpu_capability())
    if "clang" in version or not _openmp():
        return [plain]
    # as-needed drops the compiler's own libgomp, later on the command line
    return [[*plain, "-fopenmp", "-Wl,--as-needed", *_openmp()], plain]


def _openmp() -> list[str]:
    """Find torch's libgomp, if it has one."""
    torch_folder = Path(torch.__file__).parent
    folders = torch_folder / "lib", torch_folder.parent / "torch.libs"
    return [str(path) for folder in folders for path in sorted(folder.glob("libgomp*.so*"))][:1]


def _folder() -> Path:
    """Return the folder to write the library to: the cache, or a private folder of this process."""
    cache = _cache()
    if cache is not None and os.access(cache, os.W_OK):
        return cache
    return Path(_temporary_folder().name)


def _cache() -> Path | None:
    """Return the user's cache, if no other user except root can write to it."""
    try:
        given = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # its specification says to ignore relative paths
        cache = (given if given.is_absolute() else Path.home() / ".cache") / "sparse_attn"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = cache.stat()
        own = not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0)
        return cache if own and not status.st_mode & 0o022 else None
    except (OSError, RuntimeError):  # no home, or it is not a folder
        return None


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a private folder of this process."""
    return tempfile.TemporaryDirectory(prefix="sparse_attn-", ignore_cleanup_errors=True)


def _compile(compiler: list[str], flags: list[str], folder: Path, stem: str) -> Path:
    """Compile outside the folder, so that a kill leaves it clean, and rename a whole copy."""
    LOGGER.info("building the CPU kernels with %s in %s", shlex.join(compiler), folder)
    with tempfile.TemporaryDirectory(prefix="sparse_attn-") as private:
        made = Path(private, "rows.so")
        # a library among the flags must come after the source that needs it
        _run([*compiler, str(SOURCE / "rows.cpp"), *flags, "-o", str(made)])
        target = _named(folder, stem, made.read_bytes())
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            os.replace(shutil.copy(made, draft), target)
    return target


def _run(command: list[str]) -> str:
    """Return a compiler's output; on failure raise with its last lines."""
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False
    )
    if done.returncode:
        lines = (done.stderr.strip() or "no message").splitlines()
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {'; '.join(lines[-3:])}")
    return done.stdout
