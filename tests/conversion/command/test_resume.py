"""A conversion that was stopped anywhere goes on to the same model and record."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from safetensors.torch import load_file

from sparse_attn.conversion import converting, healing, stages
from sparse_attn.reports import bootstrap
from tests.comparison.running import Models
from tests.conversion.command.running import SPARSE, converted
from tests.marks import soak

TIMES = ("cost", "stages", "seconds", "command")


class Killed(BaseException):
    """Not an exception that anything handles."""


def dies(function: Callable[..., Any], after: int = 0, late: bool = False) -> Callable[..., Any]:
    """The function, killed at a later call, or at its end."""
    calls = 0

    def killed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        found = function(*args, **kwargs) if calls <= after or late else None
        if calls > after:
            raise Killed
        return found

    return killed


@pytest.fixture(scope="module")
def whole(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed conversion."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        often(patch)
        converted(models.encoder, out)
    return out


def often(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(healing, "SAVE_EVERY", 3)
    patch.setattr(healing, "EVERY", 2)
    patch.setattr(bootstrap, "RESAMPLES", 99)
    patch.setattr(Figure, "savefig", lambda self, to, **_: isinstance(to, Path) and to.touch())


KILLS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "choosing": (converting, "make_plan", {}),
    "before the first checkpoint": (healing.Healer, "compute_loss", {"after": 2}),
    "after a checkpoint": (healing.Healer, "compute_loss", {"after": 7}),
    "healed": (stages, "_convert", {"late": True}),
    "saving": (stages, "load_tokenizer", {}),
    "measuring": (stages, "measure", {}),
    "writing": (stages, "make_page", {}),
    "finishing": (stages, "remove_checkpoints", {}),
}
ONE = "after a checkpoint"


@pytest.mark.parametrize("stage", [ONE, *soak(*(stage for stage in KILLS if stage != ONE))])
def test_it_goes_on(
    models: Models, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    often(monkeypatch)
    holder, name, how = KILLS[stage]
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, dies(getattr(holder, name), **how))
        with pytest.raises(Killed):
            converted(models.encoder, out)
    record = converted(models.encoder, out)
    weights = [load_file(folder / "model/model.safetensors") for folder in (out, whole)]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])
    undisturbed = json.loads((whole / "record.json").read_text())
    # the folders of texts differ
    for made in (record, undisturbed):
        made |= dict.fromkeys(TIMES, 0) | {"source": "", "recipe": ""}
    assert json.loads(json.dumps(record)) == undisturbed


def test_a_finished_conversion_is_shown_again(
    models: Models, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "read_model", dies(stages.read_model))
    assert converted(models.encoder, whole) == json.loads((whole / "record.json").read_text())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (["--seed", "1"], r"\(seed: requested 1, found 0\)"),
        (["--target_zeros", "0.5"], r"output_dir=.*\(target_zeros: requested 0.5, found 0.6\)"),
        (["--task", "MRPC"], r"\(task: requested 'MRPC', found None\)"),
    ],
)
def test_other_options_are_refused(
    models: Models, whole: Path, changed: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "read_inputs", lambda options: None)
    before = sorted(path.name for path in whole.rglob("*"))
    with pytest.raises(ValueError, match=says):
        converted(models.encoder, whole, *SPARSE, *changed)
    assert sorted(path.name for path in whole.rglob("*")) == before


@pytest.mark.slow
def test_what_was_refused_leaves_the_folder_free(models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="reaches 0"):
        converted(models.encoder, out, *SPARSE, "--target_zeros", "0.99")
    assert converted(models.encoder, out)["recipe"]["target_zeros"] == 0.6


def test_a_folder_of_something_else(models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is not the folder of a run; choose another"):
        converted(models.encoder, out)
