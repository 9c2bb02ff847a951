"""The command: what it prints and writes, and wrong options in one line."""

import inspect
import json
import re
from pathlib import Path

import pytest

from sparse_attn import cli, convert
from sparse_attn.comparison.page import table
from sparse_attn.conversion.card import write_card
from sparse_attn.conversion.options import Options
from sparse_attn.conversion.page import make_page, trained
from sparse_attn.reports.table import markdown
from tests.commands import python, refusal
from tests.comparison.running import Models, text_file
from tests.conversion.command.running import QUICK, SPARSE, TEXTS, converted
from tests.marks import first


def main(words: list[str]) -> None:
    cli.main(["convert", *words])


def test_defaults_are_those_of_the_library() -> None:
    theirs = {
        name: parameter.default
        for name, parameter in inspect.signature(convert).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    assert theirs == {name: getattr(Options, name) for name in theirs}


def test_it_prints_the_table_and_writes_the_page(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, lines = tmp_path / "out", text_file(tmp_path, TEXTS)
    words = [str(models.encoder), "--texts", str(lines), "--out", str(out), *SPARSE]
    words[-5:-4] = ["20"]  # steps, two losses
    main(words)
    told = capsys.readouterr().out
    record = json.loads((out / "record.json").read_text())
    labels = ["before training: entmax", "after training: entmax"]
    assert [row["mapping"] for row in record["mappings"]] == labels
    assert all(
        cell in told
        for shown in (table(record), *trained(record))
        for row in shown.rows
        for cell in row
    )
    assert told.splitlines()[-2:] == [f"model: {out}/model", f"report: {out}/report.html"]
    page = (out / "report.md").read_text()
    assert str(tmp_path) not in page
    figures = {path.name for path in out.glob("*.png")}
    assert figures == {"zeros.png", "differences.png", "layers.png", "loss.png"}
    assert all(name in page for name in figures)
    assert [line["step"] for line in record["loss"]] == [10, 20]
    assert re.search(r"time of a forward pass / the original model's \| \d+\.\d\d", page)
    main(words)
    assert capsys.readouterr().out == told[told.index(table(record).caption) :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "arguments"),
    first(
        ("causal", [*SPARSE, "--choose_layers"]),
        ("encoder", ["--mapping", "sparsemax", "--steps", "0"]),
        ("encoder", ["--mapping", "softmax:sink=0", *QUICK]),
        ("classifier", ["--mapping", "top-k-softmax:k=3", *QUICK]),
    ),
)
def test_pages(models: Models, tmp_path: Path, model: str, arguments: list[str]) -> None:
    record = converted(getattr(models, model), tmp_path / "out", *arguments)
    healed = "0" not in arguments
    assert len(record["mappings"]) == 1 + healed
    assert len(trained(record)) == healed
    page = make_page(record).markdown()
    assert ("| texts | 81 of " in page) == healed
    assert ("| layers may keep softmax | yes |" in page) == ("--choose_layers" in arguments)


def test_the_card_of_the_model(models: Models, tmp_path: Path) -> None:
    """It loads the model as written, names a base of the hub, and replaces no card of the user."""
    out = tmp_path / "out"
    record = converted(models.causal, out)
    path = out / "model/README.md"
    card = path.read_text()
    assert "tags:\n- sparse-attn\n" in card
    assert all(line in card for line in markdown(table(record)))
    assert "base_model" not in card
    (program,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    told = python("-c", program.replace("FOLDER", str(out / "model")) + "print(type(model))")
    assert "GPT2LMHeadModel" in told
    path.write_text("mine")
    write_card(path.parent, "user/model", record)
    assert path.read_text() == "mine"
    path.unlink()
    write_card(path.parent, "user/model/file.gguf", record)
    assert path.read_text().startswith("---\nbase_model: user/model\nlibrary_name: transformers\n")


GIVEN = ["bert", "--mapping", "entmax", "--texts", "a", "--out", "b"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (GIVEN[:3] + GIVEN[5:], "the following arguments are required: --texts"),
        ([*GIVEN, "--steps", "-1"], "argument --steps: -1: expected 0 or more"),
        ([*GIVEN, "--target_zeros", "90"], "--target_zeros: 90: expected a share between 0 and 1"),
        ([*GIVEN, "--pairs", "a", "--task", "b"], "--task: not allowed with argument --pairs"),
        ([*GIVEN, "--choose_layers"], "--choose_layers: needs --target_zeros"),
        ([*GIVEN[:-1], __file__], "is a file; name a folder"),
        (GIVEN, "--texts a: there is no such file"),
    ],
)
def test_wrong_options(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(main, capsys, *arguments)


def test_a_training_that_diverges_is_one_line(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, diverging = text_file(tmp_path, TEXTS), [*SPARSE[:-1], "1e30"]
    with pytest.raises(SystemExit) as stopped:
        main([str(models.encoder), "--texts", str(lines), "--out", str(tmp_path / "o"), *diverging])
    assert stopped.value.code == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: the loss is NaN: training has diverged; lower learning_rate")


@pytest.mark.slow
def test_two_processes_make_the_model_of_one(models: Models, tmp_path: Path) -> None:
    """Each reads half of a batch; the first chooses, writes and measures."""
    one = converted(models.encoder, tmp_path / "one")
    words = [models.encoder, "--texts", tmp_path / "texts.txt", "--out", tmp_path / "two", *SPARSE]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    told = python(*launch, "-m", "sparse_attn", "convert", *words, "--batch_size", "4")
    assert told.count("report: ") == 1
    two = json.loads((tmp_path / "two/record.json").read_text())
    for ours, theirs in zip(two["mappings"], one["mappings"], strict=True):
        assert ours["agreement"] == pytest.approx(theirs["agreement"], abs=1e-5)
        assert ours["zeros"] == pytest.approx(theirs["zeros"], abs=1e-3)
    assert one["mappings"][0]["agreement"] != pytest.approx(one["mappings"][1]["agreement"])
