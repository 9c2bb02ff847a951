"""Parser of the machine code that nvdisasm prints; Triton includes nvdisasm."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import triton

_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
_LABEL = re.compile(r"(\.L\w+):")
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([^\s;]+)(.*?);")
_TARGET = re.compile(r"`\((\.L\w+)\)")
PRODUCTS = ("HGMMA", "HMMA")


class Code(NamedTuple):
    """Instructions of a piece of machine code by their names, such as HGMMA."""

    names: Counter[str]

    @property
    def instructions(self) -> int:
        return self.names.total()

    @property
    def products(self) -> int:
        return sum(self.names[name] for name in PRODUCTS)

    @property
    def spills(self) -> int:
        return self.names["LDL"] + self.names["STL"]


class Kernel(NamedTuple):
    """A kernel: its code, its innermost loops in order, and stack in bytes and registers."""

    code: Code
    loops: list[Code]
    stack: int
    registers: int


def disassemble(cubin: bytes) -> Kernel:
    """Return the only kernel of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = _run("nvdisasm", "-c", file.name)
        usage = _run("cuobjdump", "-res-usage", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    return _read(listing)._replace(registers=int(found[1]), stack=int(found[2]))


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run(
        [_TOOLS / tool, *arguments], capture_output=True, text=True, check=True
    ).stdout


def _read(listing: str) -> Kernel:
    names: list[str] = []
    labels: dict[str, int] = {}
    ends: dict[int, int] = {}  # end of each loop by its start
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(names)
        elif found := _INSTRUCTION.match(line):
            names.append(found[1].split(".")[0])
            target = _TARGET.search(found[2])
            if names[-1] == "BRA" and target and target[1] in labels:
                ends[labels[target[1]]] = len(names)
    loops = [
        Code(Counter(names[start:end]))
        for start, end in sorted(ends.items())
        if end - start > 1  # skip the branch to itself after the end of the code
        and not any(start < other < end for other in ends)
    ]
    return Kernel(Code(Counter(names)), loops, 0, 0)
