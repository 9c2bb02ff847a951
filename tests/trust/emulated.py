"""Run tests of the CPU kernels on another processor, under an emulator: a plugin of pytest.

    EMULATED="qemu-aarch64 PROGRAM" python -m pytest -p tests.trust.emulated ...

PROGRAM is `emulated.cpp`, which takes the place of the library.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import shlex
import subprocess
from typing import Any

import pytest

from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.cpu.kernel_args import KernelArgs, View

BYTES = 2**30  # of which only those written take memory


class Emulated:
    """The functions of the library, as ctypes has them."""

    def __init__(self, command: list[str]) -> None:
        file = os.memfd_create("arguments")
        os.ftruncate(file, BYTES)
        self._memory = mmap.mmap(file, BYTES)
        self._process = subprocess.Popen(
            [*command, str(file), str(BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[file],
            text=True,
        )
        os.close(file)
        self._start, size = map(int, self._told().split())
        assert size == ctypes.sizeof(KernelArgs)

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, name)

    def _call(self, name: str, given: Any, backward: ctypes.c_int64 | None = None) -> None:
        args: KernelArgs = given._obj
        end = self._put(ctypes.sizeof(args), args.kernel + b"\0")
        places: dict[range, int] = {}  # in the file, by addresses here
        for storage in (tensor.untyped_storage() for tensor in args._kept):
            block = range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
            if block not in places:
                places[block] = end
                end = self._put(end, ctypes.string_at(block.start, len(block)))

        def moved(pointer: int | None) -> int | None:
            if pointer is None:
                return None
            block = next(block for block in places if pointer in block)
            return self._start + places[block] + pointer - block.start

        theirs: Any = KernelArgs.from_buffer_copy(args)
        theirs.kernel = self._start + ctypes.sizeof(args)
        for field, kind in KernelArgs._fields_:
            if kind is View:
                getattr(theirs, field).data = moved(getattr(args, field).data)
            elif kind is ctypes.c_void_p and field != "lists":  # which never leave the program
                setattr(theirs, field, moved(getattr(args, field)))
        self._put(0, bytes(theirs))
        print(name, backward.value if backward else 0, file=self._process.stdin, flush=True)
        assert self._told() == "done\n", f"{name} crashed"
        for block, place in places.items():
            ctypes.memmove(block.start, self._memory[place : place + len(block)], len(block))
        theirs = KernelArgs.from_buffer_copy(self._memory)
        args.lists, args.entries = theirs.lists, theirs.entries

    def end(self) -> None:
        self._process.communicate()
        self._memory.close()

    def _put(self, place: int, data: bytes) -> int:
        """Write into the file; returns where the next block goes."""
        self._memory[place : place + len(data)] = data
        return -(-(place + len(data)) // 64) * 64

    def _told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def pytest_configure(config: pytest.Config) -> None:
    emulated = Emulated(shlex.split(os.environ["EMULATED"]))
    config.add_cleanup(emulated.end)
    build.library = lambda: emulated
