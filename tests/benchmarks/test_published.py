"""Every published page and picture is, byte for byte, what its record gives."""

import matplotlib
import pytest

from benchmarks.published import FOLDER, made, records, write

RECORDS = [path.relative_to(FOLDER).as_posix() for path in records()]


@pytest.mark.parametrize("name", RECORDS)
def test_page(name):
    page, _ = made(FOLDER / name)
    assert page == (FOLDER / name).with_suffix(".md").read_text()


@pytest.mark.slow
def test_pictures(tmp_path):
    drawn = {}
    for path in records():
        for picture, figure in made(path)[1].items():
            figure.savefig(tmp_path / "made.png", dpi=120)
            drawn[picture] = (tmp_path / "made.png").read_bytes()
    published = {path: path.read_bytes() for path in FOLDER.rglob("*.png")}
    assert drawn.keys() == published.keys()
    for path, picture in published.items():
        # other versions draw other letters; each writes its number into the file
        if f"Matplotlib version{matplotlib.__version__},".encode() in picture:
            assert drawn[path] == picture, path


def test_write(tmp_path):
    record = tmp_path / "crossover-cpu.json"
    record.write_bytes((FOLDER / record.name).read_bytes())
    write(record)
    assert record.with_suffix(".md").read_text() == (FOLDER / "crossover-cpu.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {"crossover-cpu.png"}
