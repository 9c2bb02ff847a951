"""On a disk that fills up, a command says what it could not write, and what was written stays."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from glue.__main__ import main
from sparse_attn.reports import bootstrap
from tests.commands import refusal
from tests.glue.report.make_sweep import LABELS, add, make_config, write_sweep
from tests.trust.trainings import Undisturbed, check_files, check_words


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk that is small enough to fill")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small disk could not be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def free(folder: Path) -> int:
    """Bytes."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@pytest.mark.slow
def test_no_space_left(undisturbed: Undisturbed, small_disk: Path) -> None:
    training, folder, ballast = undisturbed.training, small_disk / "run", small_disk / "ballast"
    size = sum(path.stat().st_size for path in undisturbed.folder.rglob("*") if path.is_file())
    for share in (0.0, 0.4, 0.8):
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        room = int(share * (size - used))
        ballast.write_bytes(bytes(free(small_disk) - room))
        check_words(training.start(folder).end(), folder, [str(share)])
        ballast.unlink()
        check_files(folder)
    training.go_on(folder)
    undisturbed.compare(folder, [])


def test_the_report_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 199)
    monkeypatch.setattr("glue.report.page.make_plots", lambda sweep, task: [])
    write_sweep(tmp_path, make_config())
    add(tmp_path, "softmax", "final", 0, LABELS, LABELS)
    main(["report", str(tmp_path)])
    pages = [tmp_path / f"report.{end}" for end in ("md", "html")]
    contents = [page.read_bytes() for page in pages]
    add(tmp_path, "softmax", "final", 1, LABELS, LABELS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for page, content in zip(pages, contents, strict=True):
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) - 100, hard))
        try:
            said = refusal(main, capsys, "report", tmp_path, code=1)
            assert re.search(rf"{page}: could not be written .*freeing disk", said)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert page.read_bytes() == content
    assert not list(tmp_path.glob("*.tmp"))
