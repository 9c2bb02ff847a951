"""The library that the CPU kernels are compiled into."""

import ctypes
import errno
import os
import shlex
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import torch

from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.cpu.kernel_args import KernelArgs


@pytest.fixture
def library():
    if isinstance(build.library(), str):
        pytest.skip(build.library())
    return build.library()


def test_python_and_cpp_agree_on_the_arguments(library):
    assert library.size_of_args() == ctypes.sizeof(KernelArgs)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return build._folder()


@pytest.fixture
def copies(library, monkeypatch):
    """The library is copied instead of compiled; a list of the folders that it was copied to."""
    content = build._built().read_bytes()
    done = []

    def compile_(compiler, flags, folder, stem):
        done.append(folder)
        path = build._named(folder, stem, content)
        path.write_bytes(content)
        return path

    monkeypatch.setattr(build, "_compile", compile_)
    return done


@pytest.mark.parametrize("size", [0, 1_000, 100_000, -1])
def test_a_library_that_is_cut_short_is_built_again(size, copies, cache):
    """Loading it ends the process by SIGBUS."""
    path = build._built()
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    assert build._loaded()._name == str(path)
    assert copies == [cache, cache]
    assert build._built() == path
    assert copies == [cache, cache]


def test_a_library_with_another_byte_is_built_again(copies, cache):
    path = build._built()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert build._loaded() is not None
    assert copies == [cache, cache]


def test_a_library_that_cannot_be_loaded_is_built_again(copies, cache, monkeypatch):
    compile_ = build._compile
    junk = build._named(cache, "junk", b"junk")
    junk.write_bytes(b"junk")
    monkeypatch.setattr(build, "_compile", lambda *given: junk if not copies else compile_(*given))
    copies.append(cache)
    monkeypatch.setattr(build, "_intact", lambda folder, stem: junk)
    assert build._loaded() is not None
    assert copies == [cache, cache]


def test_a_cache_that_is_read_only_is_read(copies, cache, monkeypatch):
    path = build._built()
    access = os.access
    monkeypatch.setattr(os, "access", lambda name, mode: name != cache and access(name, mode))
    assert build._built() == path
    os.truncate(path, 1_000)
    assert build._built().parent == build._folder() != cache


def test_it_is_on_the_disk_before_it_has_its_name(cache, monkeypatch):
    """Else a power cut may leave the name with no content."""
    steps = []
    sync, replace = os.fsync, os.replace

    def write(command):
        Path(command[-1]).write_bytes(b"library")

    monkeypatch.setattr(build, "_run", write)
    monkeypatch.setattr(os, "fsync", lambda file: (steps.append("sync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("name"), replace(*names)))
    path = build._compile(["g++"], [], cache, "rows")
    assert steps == ["sync", "name"]
    assert list(cache.iterdir()) == [path]
    assert build._intact(cache, "rows") == path


def test_drafts_of_killed_compilations_are_removed(cache, monkeypatch):
    monkeypatch.setattr(build, "_run", lambda command: Path(command[-1]).write_bytes(b"library"))
    killed, running = cache / "tmpabc.so", cache / "tmpdef.so"
    for draft, age in ((killed, 3 * build.TIMEOUT), (running, build.TIMEOUT)):
        draft.touch()
        os.utime(draft, (time.time() - age,) * 2)
    path = build._compile(["g++"], [], cache, "rows")
    assert set(cache.iterdir()) == {running, path}


def compiler(folder, says):
    """A compiler that fails and says so."""
    path = folder / "my compiler"
    path.write_text(f"#!/bin/sh\n[ $# = 1 ] && exit\nprintf '{says}' >&2\nexit 1\n")
    path.chmod(0o755)
    return str(path)


REASONS = {
    "nothing": ("", "exited with 1: no message", build.MEND),
    "code": ("rows.cpp:1: error\\n1 error", "exited with 1: 1 error", build.MEND),
    "disk": (
        "ld: final link failed: No space left on device\\ncollect2: error: ld returned 1",
        "ld: final link failed: No space left on device",
        build.ROOM,
    ),
    "letters": ("error: \\377", "error: ", build.MEND),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_it_is_not_built(reason, cache, tmp_path, monkeypatch, caplog):
    says, told, remedy = REASONS[reason]
    monkeypatch.setenv("CXX", shlex.quote(compiler(tmp_path, says)))
    monkeypatch.setattr(build, "_result", None)
    result = build.library()
    assert result.startswith("the CPU kernels cannot be built: ")
    assert told in result
    assert caplog.messages == [f"{result}. Attention falls back to the slower reference; {remedy}."]
    assert not list(cache.iterdir())


def test_no_room_for_temporary_files(cache, monkeypatch, caplog):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build, "_result", None)
    monkeypatch.setattr(tempfile, "mkstemp", full)
    monkeypatch.setattr(build, "_compiler", lambda: ["true"])
    monkeypatch.setattr(build, "_from_wheel", lambda: None)
    assert isinstance(build.library(), str)
    assert caplog.messages[0].endswith(f"{build.ROOM}.")


def test_a_cache_that_others_may_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build._folder() == tmp_path / "sparse_attn"
    (tmp_path / "sparse_attn").chmod(0o777)
    assert build._folder() != tmp_path / "sparse_attn"


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++ -O1")
    with pytest.raises(RuntimeError, match="CXX='/nowhere/g\\+\\+ -O1' was not found"):
        build._compiler()


def test_a_command_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(RuntimeError, match=r"CXX=\"g\+\+ '\" is not a command: No closing"):
        build._compiler()


@pytest.fixture
def in_wheel(library, tmp_path, monkeypatch):
    """A compiled library where a platform wheel has it, beside the sources."""
    content = build._built().read_bytes()
    shutil.copytree(build.SOURCE, tmp_path / "cpu", ignore=shutil.ignore_patterns("built"))
    monkeypatch.setattr(build, "SOURCE", tmp_path / "cpu")
    monkeypatch.delenv("CXX", raising=False)
    place = build.in_wheel(torch.backends.cpu.get_cpu_capability(), content)
    place.parent.mkdir()
    place.write_bytes(content)
    return place


def test_the_library_of_a_wheel_is_used(in_wheel):
    assert build._from_wheel()._name == str(in_wheel)


@pytest.mark.parametrize("change", ["the source", "the flags", "CXX", "the file"])
def test_the_library_of_a_wheel_is_not_used_for_what_it_is_not(in_wheel, change, monkeypatch):
    if change == "the source":
        with (build.SOURCE / "maps.h").open("a") as file:
            file.write("// edited\n")
    elif change == "the flags":
        monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    elif change == "CXX":
        monkeypatch.setenv("CXX", "g++ -O1")
    else:
        os.truncate(in_wheel, 100_000)
    assert build._from_wheel() is None
