"""Commands in processes of their own, which are killed or find their disk full.

A process is forked from a server that has imported everything (`warm`): a start of Python with
Transformers takes seconds. It calls the `main` of a command line. A kill comes from outside at a
moment, or from inside at a file operation or within the bytes of a file.
"""

from __future__ import annotations

import importlib
import io
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.trust.warm"])
TIMEOUT = 120
# audit events of what changes a folder, and which argument is the path
CHANGES = {"open": 0, "os.mkdir": 0, "os.rmdir": 0, "os.remove": 0, "os.rename": 1}


@dataclass(frozen=True)
class Cut:
    """What happens to a process at a file operation.

    Attributes:
        at: its number among those of the process, from 1.
        share: where it is the writing of a file, the process is killed after so much of it; before
            the operation if left out, or where it is another.
        sizes: of files, by the beginning of their names; 0 of those that are not there.
        full: in place of a kill, the write fails there, and so does every later one of more bytes.
    """

    at: int
    share: float | None
    sizes: dict[str, int]
    full: bool = False


@dataclass(frozen=True)
class End:
    """How a process has ended.

    Attributes:
        killed: whether it was killed.
        seconds: that `main` took; 0 if it was killed.
        said: what `main` left with: "" if it returned, the message of a SystemExit, a traceback.
        operations: what it did in the folder, such as "open checkpoint.pt", up to where it was
            killed from inside.
    """

    killed: bool
    seconds: float
    said: str
    operations: tuple[str, ...]


class Command:
    """`main(arguments)` of a module, in a process that runs.

    Args:
        program: the module.
        arguments: of its command line.
        folder: where file operations are counted.
        cut: what is to happen at one of them.
    """

    def __init__(
        self, program: str, arguments: list[str], folder: Path, cut: Cut | None = None
    ) -> None:
        self.receiver, sender = CONTEXT.Pipe(duplex=False)
        given = (sender, program, arguments, str(folder), cut)
        self.process = CONTEXT.Process(target=_work, args=given)
        self.process.start()
        sender.close()

    def end(self, kill_after: float | None = None) -> End:
        """Wait for the end, which comes by SIGKILL after so many seconds, if not before."""
        self.process.join(TIMEOUT if kill_after is None else kill_after)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            assert kill_after is not None, f"no end after {TIMEOUT} s"
        killed = self.process.exitcode in (-signal.SIGKILL, -signal.SIGXFSZ)
        assert killed or self.process.exitcode == 0, self.process.exitcode
        # the last of its words; one that is killed from outside has none
        said: tuple[float, str, tuple[str, ...]] = (0.0, "", ())
        with suppress(EOFError, OSError):
            while True:
                said = self.receiver.recv()
        self.receiver.close()
        self.process.close()
        return End(killed, *said)


def _work(
    sender: Connection, program: str, arguments: list[str], folder: str, cut: Cut | None
) -> None:
    """What a process does."""
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    torch.set_num_threads(1)
    watch = _Watch(folder, cut, sender)
    sys.addaudithook(watch)
    # these write by C++ and Rust, of which Python's hooks know nothing
    torch.save = _announced(torch.save)
    safetensors.torch.serialize_file = _announced(safetensors.torch.serialize_file)
    main, said, told = importlib.import_module(program).main, "", io.StringIO()
    started = time.perf_counter()
    try:
        with redirect_stderr(told):
            main(arguments)
    except SystemExit as stop:
        said = stop.code if isinstance(stop.code, str) else told.getvalue()
    except BaseException:
        # the pipe holds so much that nobody has read yet
        said = traceback.format_exc()[-9000:]
    sender.send((time.perf_counter() - started, said, tuple(watch.operations)))


def _announced(write: Callable[..., Any]) -> Callable[..., Any]:
    """`write`, which raises the audit event of `open` for the path that is its second argument."""

    def announce(content: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str | Path):
            sys.audit("open", str(path), "w", os.O_WRONLY)
        return write(content, path, *args, **kwargs)

    return announce


class _Watch:
    """An audit hook that counts the operations which change files in a folder, and cuts."""

    def __init__(self, folder: str, cut: Cut | None, sender: Connection) -> None:
        self.folder, self.cut, self.sender = folder, cut, sender
        self.operations: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        path = self._changed(event, args) if event in CHANGES else None
        # the log of TensorBoard is written by a thread, whenever it comes to it
        if path is None or "tfevents" in path:
            return
        self.operations.append(f"{event.removeprefix('os.')} {os.path.relpath(path, self.folder)}")
        if self.cut is not None and len(self.operations) == self.cut.at:
            self._strike(self.cut, path if event == "open" else None)

    def _changed(self, event: str, args: tuple[Any, ...]) -> str | None:
        """The path in the folder that an event is about to change, if it does."""
        path = args[CHANGES[event]]
        if isinstance(path, int):
            return None
        path = os.fsdecode(path)
        if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR):
            return None
        if event in ("os.remove", "os.rmdir") and args[1] != -1:
            path = f"{os.readlink(f'/proc/self/fd/{args[1]}')}/{path}"
        if event == "os.mkdir" and os.path.exists(path):
            return None
        return path if path.startswith(self.folder) else None

    def _strike(self, cut: Cut, written: str | None) -> None:
        if not cut.full and (cut.share is None or written is None):
            self.sender.send((0.0, "", tuple(self.operations)))
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        size = 0
        if cut.share is not None and written is not None:
            size = int(cut.share * cut.sizes.get(os.path.basename(written).split(".")[0], 0))
        if not cut.full:
            self.sender.send((0.0, "", tuple(self.operations)))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
