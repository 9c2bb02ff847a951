"""The sources run, unpickle and unpack nothing that comes from a file or a hub."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sparse_attn", "glue", "experiments", "benchmarks")
PACKAGES += ("release",)

FORBIDDEN_MODULES = {"dill", "cloudpickle", "joblib", "shelve", "marshal", "tarfile"}
FORBIDDEN = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.hub.load", "torch.jit.load"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.Loader"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("shutil.unpack_archive", "eval", "exec", "compile", "__import__"),
}
FORBIDDEN_METHODS = {"extractall", "extract"}
# arguments that these calls must have
NEEDED = {
    "torch.load": ("weights_only", True),
    "load_state_dict_from_url": ("weights_only", True),
    "get_state_dict": ("weights_only", True),
}
# arguments that no call may have
DANGEROUS = {
    ("shell", True),
    ("trust_remote_code", True),
    ("allow_pickle", True),
    ("weights_only", False),
}


def faults(source: str) -> Iterator[str]:
    """What a module does that it should not, by the name it does it with."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                top = name.name.partition(".")[0]
                aliases[name.asname or top] = name.name if name.asname else top
                yield from {top} & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
            yield from {node.module.partition(".")[0]} & FORBIDDEN_MODULES
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            found = dotted(node, aliases)
            if found in FORBIDDEN:
                yield found
        if isinstance(node, ast.Call):
            yield from faults_of_call(node, aliases)


def faults_of_call(call: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    name = dotted(call.func, aliases)
    method = name.rpartition(".")[2]
    given = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
    for function in {name, method} & NEEDED.keys():
        argument, value = NEEDED[function]
        if given.get(argument) is not value:
            yield f"{function} without {argument}={value}"
    if method in FORBIDDEN_METHODS:
        yield method
    yield from (f"{k}={v}" for k, v in given.items() if (k, v) in DANGEROUS)
    if method == "Environment" and "autoescape" not in {k.arg for k in call.keywords}:
        yield "Environment without autoescape"


def dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """The full name of a, a.b or f().b, whose beginning is then left out."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, aliases)}.{node.attr}"
    return ""


def test_sources_run_nothing_that_they_read() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 100
    found = {
        (path.relative_to(ROOT).as_posix(), fault)
        for path in files
        for fault in faults(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_templates_mark_nothing_as_safe() -> None:
    templates = [path for package in PACKAGES for path in (ROOT / package).rglob("*.j2")]
    assert templates
    for path in templates:
        assert not re.search(r"\|\s*safe\b|autoescape", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import torch\ntorch.load(p)", "torch.load without weights_only=True"),
        ("from torch import load as get\nget(p, 'cpu')", "torch.load without weights_only=True"),
        ("import torch as t\nt.load(p, weights_only=False)", "weights_only=False"),
        ("torch.load(p, weights_only=flag)", "torch.load without weights_only=True"),
        ("from torch.hub import load_state_dict_from_url as f\nf(u)", "load_state_dict_from_url"),
        ("W[x].get_state_dict(check_hash=True)", "get_state_dict without weights_only=True"),
        ("import pickle\npickle.load(f)", "pickle.load"),
        ("from pickle import loads\nloads(b)", "pickle.loads"),
        ("import pickle as p\nclass A(p.Unpickler): ...", "pickle.Unpickler"),
        ("import joblib", "joblib"),
        ("def f():\n    from dill import load", "dill"),
        ("import yaml\nyaml.load(t, Loader=yaml.Loader)", "yaml.load"),
        ("from yaml import unsafe_load", None),
        ("from yaml import unsafe_load\nunsafe_load(t)", "yaml.unsafe_load"),
        ("eval(text)", "eval"),
        ("model.eval()\ntorch.compile(f)\nre.compile(p)", None),
        ("list(map(exec, texts))", "exec"),
        ("import subprocess as s\ns.run(c, shell=True)", "shell=True"),
        ("from os import system\nsystem(c)", "os.system"),
        ("AutoModel.from_pretrained(p, trust_remote_code=True)", "trust_remote_code=True"),
        ("AutoModel.from_pretrained(p, trust_remote_code=options.trust)", None),
        ("np.load(p, allow_pickle=True)", "allow_pickle=True"),
        ("zipfile.ZipFile(p).extractall(f)", "extractall"),
        ("import shutil\nshutil.unpack_archive(p)", "shutil.unpack_archive"),
        ("Environment(loader=x)", "Environment without autoescape"),
    ],
)
def test_what_is_found(source: str, fault: str | None) -> None:
    found = list(faults(source))
    assert any(fault in text for text in found) if fault else found == []
