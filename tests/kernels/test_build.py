"""The library that the CPU kernels are compiled into."""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.cpu.kernel_args import KernelArgs
from tests.commands import wait_for


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


@pytest.mark.parametrize("change", ["empty", "cut short", "another byte"])
def test_a_damaged_library_is_built_again(change, copies, cache):
    """Loading one that is cut short ends the process by SIGBUS."""
    path = build._built()
    content = path.read_bytes()
    damaged = {
        "empty": b"",
        "cut short": content[:-1],
        "another byte": content[:-1] + bytes([content[-1] ^ 1]),
    }
    path.write_bytes(damaged[change])
    assert build._built() == path
    assert build._built() == path
    assert copies == [cache, cache]


def test_a_cache_that_is_read_only_is_read(copies, cache, monkeypatch):
    path = build._built()
    access = os.access
    monkeypatch.setattr(os, "access", lambda name, mode: name != cache and access(name, mode))
    assert build._built() == path
    os.truncate(path, 1_000)
    assert build._built().parent == build._folder() != cache


def test_two_processes_compile_at_once(cache, monkeypatch):
    """Each has a draft of its own, and a draft is no library."""
    drafts, both = set(), threading.Barrier(2, timeout=60)

    def write(command):
        drafts.add(command[-1])
        Path(command[-1]).write_bytes(b"lib")
        both.wait()
        assert build._intact(cache, "rows") is None
        both.wait()
        Path(command[-1]).write_bytes(b"library")

    monkeypatch.setattr(build, "_run", write)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(build._compile, ["g++"], [], cache, "rows") for _ in range(2)]
        (path,) = {call.result() for call in calls}
    assert len(drafts) == 2
    assert list(cache.iterdir()) == [path]
    assert build._intact(cache, "rows") == path


def compiler(folder, says):
    """A compiler that fails and says so."""
    path = folder / "my compiler"
    path.write_text(f"#!/bin/sh\n[ $# = 1 ] && exit\nprintf '{says}' >&2\nexit 1\n")
    path.chmod(0o755)
    return shlex.quote(str(path))


REASONS = {
    "nothing": ("", "exited with 1: no message"),
    "code": ("rows.cpp:1: error\\n1 error", "exited with 1: rows.cpp:1: error; 1 error"),
    "letters": ("error: \\377", "error: "),
    "not there": (None, "'/nowhere/g++'"),
    "no command": (None, "No closing quotation"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_it_is_not_built(reason, cache, tmp_path, monkeypatch, caplog):
    says, told = REASONS[reason]
    commands = {"not there": "/nowhere/g++ -O1", "no command": "g++ '"}
    monkeypatch.setenv("CXX", commands.get(reason) or compiler(tmp_path, says))
    monkeypatch.setattr(build, "_result", None)
    result = build.library()
    assert result.startswith("the CPU kernels cannot be built: ")
    assert told in result
    (message,) = caplog.messages
    assert message == f"{result}. Attention falls back to the slower reference; {build.MEND}."
    assert not list(cache.iterdir())


def test_a_cache_that_others_may_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build._folder() == tmp_path / "sparse_attn"
    (tmp_path / "sparse_attn").chmod(0o777)
    assert build._folder() != tmp_path / "sparse_attn"


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


def test_a_relative_cache_is_ignored(tmp_path, monkeypatch):
    """So says the specification of XDG_CACHE_HOME."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert build._folder() == tmp_path / "home/.cache/sparse_attn"
    assert not (tmp_path / "relative").exists()


def test_a_killed_compilation_leaves_nothing_in_the_cache(cache, tmp_path, monkeypatch):
    started = tmp_path / "started"
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n[ $# = 1 ] && exit\ntouch {started}\nexec sleep 100\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    program = "from sparse_attn.kernels.cpu import build; build.library()"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        wait_for(started.exists, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not list(cache.iterdir())
