"""Files are whole or not there, and nothing beside them is touched."""

import os
import threading
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

from sparse_attn.system.files import (
    MissingFolderError,
    UnwrittenError,
    atomic_write,
    make_folder,
)
from sparse_attn.system.paths import own_version


def write(path: Path, text: str) -> None:
    with atomic_write(path) as draft:
        draft.write_text(text)


def fail(path: Path, error: Exception) -> None:
    with atomic_write(path) as draft:
        draft.write_text("half")
        raise error


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write(path, "old")
    for error, raised in ((KeyError(), KeyError), (OSError("full"), UnwrittenError)):
        with pytest.raises(raised, match=r"^$|a\.txt: could not be written \(full\)"):
            fail(path, error)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_block_that_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "old")
    with (
        pytest.raises(UnwrittenError, match="could not be written"),
        atomic_write(tmp_path / "a.txt"),
    ):
        pass
    with pytest.raises(UnwrittenError, match=r"\(File name too long\); choose another path$"):
        write(tmp_path / ("a" * 250), "new")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_only_its_own_drafts_are_removed(tmp_path: Path) -> None:
    kept = ["a.12.tmp", "a.1.txt.0123abcd.tmp", "b.txt.0123abcd.tmp", "a.txt.notes.tmp"]
    for name in (*kept, "a.txt.0123abcd.tmp"):
        (tmp_path / name).touch()
    write(tmp_path / "a.txt", "new")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "a.txt"])


def test_files_of_one_stem_at_once(tmp_path: Path) -> None:
    def many(name: str) -> None:
        for _ in range(100):
            write(tmp_path / name, name)

    threads = [threading.Thread(target=many, args=(f"report.{end}",)) for end in ("md", "html")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"report.md": "report.md", "report.html": "report.html"}


def test_permissions_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.touch(mode=0o600)
    write(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UnwrittenError, match=r"there is no folder .*nowhere; create it first"):
        write(tmp_path / "nowhere/a.txt", "")


@pytest.mark.parametrize("name", ["file/inner", "a" * 300])
def test_a_folder_that_cannot_be_made(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingFolderError, match=r"could not be written \(.*; choose another path"):
        make_folder(tmp_path / name)
    make_folder(tmp_path / "a/b")
    make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()


def test_a_copy_of_the_sources_that_is_not_installed_knows_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = own_version()
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError))
    assert own_version() == installed
