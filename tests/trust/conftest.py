"""The two trainings, each with an undisturbed run, and what the first of them needs."""

import pytest

from tests.glue.conftest import glue_folder, tiny_model
from tests.marks import slow
from tests.trust.trainings import Undisturbed, finetuning, language_model

__all__ = ["glue_folder", "tiny_model"]


@pytest.fixture(scope="session", params=["finetuning", *slow("language modelling")])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    """A training that has run to its end."""
    if request.param == "finetuning":
        files = [request.getfixturevalue(name) for name in ("tiny_model", "glue_folder")]
        training = finetuning(*files)
    else:
        training = language_model(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return Undisturbed(training, folder, training.go_on(folder))
