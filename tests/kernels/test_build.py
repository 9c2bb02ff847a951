"""The library that the CPU kernels are compiled into."""

import ctypes
import shutil

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


def test_a_damaged_library_is_built_again(library, tmp_path, monkeypatch):
    name = build._built().name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = build._folder() / name
    path.write_text("junk")
    assert build._built() == path
    assert build._loaded(path) is not None


def test_a_cache_that_others_may_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build._folder() == tmp_path / "sparse_attn"
    (tmp_path / "sparse_attn").chmod(0o777)
    assert build._folder() != tmp_path / "sparse_attn"


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++ -O1")
    with pytest.raises(RuntimeError, match="CXX='/nowhere/g\\+\\+ -O1' was not found"):
        build._compiler()


@pytest.fixture
def in_wheel(library, tmp_path, monkeypatch):
    """A compiled library where a platform wheel has it, beside the sources."""
    path = build._built()
    shutil.copytree(build.SOURCE, tmp_path / "cpu", ignore=shutil.ignore_patterns("built"))
    monkeypatch.setattr(build, "SOURCE", tmp_path / "cpu")
    monkeypatch.delenv("CXX", raising=False)
    place = build.in_wheel(torch.backends.cpu.get_cpu_capability())
    place.parent.mkdir()
    return shutil.copy(path, place)


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
        in_wheel.write_text("junk")
    assert build._from_wheel() is None
