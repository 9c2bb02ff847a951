"""Settings of the kernels: wrong candidates are not timed, and the best become `tuned.py`."""

import json
import runpy
from pathlib import Path

import torch

from benchmarks import tune
from benchmarks.__main__ import main
from benchmarks.timing import Effort, Race
from sparse_attn.kernels.triton import tuned


def test_candidates_that_differ_or_do_not_compile_are_told(monkeypatch):
    def one_kernel(*_):
        def call():
            table = tune.settings.table_of(torch.device("cpu"))
            if any(setting.registers for setting in table.values()):
                raise RuntimeError("out of resource: registers")
            return (torch.full((2,), 1.0 + any(s.stages == 3 for s in table.values())),)

        return call

    before = tune.settings.table_of, tune.plan._PLANS
    monkeypatch.setattr(tune, "one_kernel", one_kernel)
    shape = tune.shapes.AttentionCase("", "", 1, 16, 1, 16)
    case = tune.TuneCase("", "softmax", "keys", "medium", shape)
    device = torch.device("cpu")
    race = Race(tune.contestants(case, device), case.base, device, Effort(0, least=2))
    reasons = {row["name"]: row["reason"] for row in tune.measure(case, race)}
    assert reasons["64x64 w4 s3"] == "ValueError: wrong: not the default's result"
    assert reasons["64x64 w4 s2 r168"] == "RuntimeError: out of resource: registers"
    assert reasons["default"] is reasons["128x64 w8 s2"] is None
    assert (tune.settings.table_of, tune.plan._PLANS) == before


def case(name, row, **ratios):
    """A case of a record: settings of the keys' kernel, by their time over the default's."""
    settings = {"default": [64, 64, 4, 3, None], "limited": [64, 64, 4, 2, 168]}
    found = [
        {"name": setting, "key": ["keys", name, 128, row], "setting": settings[setting],
         "reason": None, "to": {"default": {"median": ratio}}}
        for setting, ratio in {"default": 1.0, **ratios}.items()
    ]  # fmt: skip
    return {"rows": found}


def test_the_best_settings_become_the_module_of_the_package(tmp_path, monkeypatch):
    source = Path(tuned.__file__).read_text(encoding="utf-8")
    assert tune.module(tuned.TABLES) == source
    (tmp_path / "tuned.py").write_text(source)
    before = {
        "first.json": {
            ("keys", "softmax", 128, "medium"): (64, 64),
            ("keys", "free", 128, "long"): (64, 32),
        },
        "gone.json": {("keys", "softmax", 128, "long"): (64, 64)},
    }
    monkeypatch.setattr(tuned, "TABLES", {"NVIDIA H200": ((9, 0), before)})
    monkeypatch.setattr(tuned, "__file__", str(tmp_path / "tuned.py"))
    monkeypatch.chdir(tmp_path)
    record = {
        "environment": {"device": "NVIDIA H200", "capability": [9, 0]},
        "cases": [
            case("softmax", "medium", limited=0.6),
            case("softmax", "long", limited=0.98),
            {"rows": [{"name": "default", "reason": "out of memory"}]},
        ],
    }
    Path("here.json").write_text(json.dumps(record))
    main(["tune", "--enter", "here.json"])
    assert runpy.run_path("tuned.py")["TABLES"] == {
        "NVIDIA H200": (
            (9, 0),
            {
                "first.json": {("keys", "free", 128, "long"): (64, 32)},
                "here.json": {
                    ("keys", "softmax", 128, "medium"): (64, 64, 4, 2, 168),
                    ("keys", "softmax", 128, "long"): (64, 64, 4, 3, None),
                },
            },
        )
    }
