"""The code in the README and the docs runs as written, commands exist, links lead somewhere."""

import argparse
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import jsonargparse
import pytest
from accelerate.commands.launch import launch_command_parser

from sparse_attn import cli
from sparse_attn.cli.parser import LineParser
from sparse_attn.cli.programs import PROGRAMS
from tests.commands import ROOT, python
from tests.marks import slow, soak
from website import code

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
}
STARTS = r"((python|accelerate launch) (.* )?-m \w|sparse-attn \w)"
OURS = {"benchmarks", "experiments", "glue", "sparse_attn"}


def notebook(path: Path) -> str:
    """The code of a notebook, without the commands of IPython."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = [line for c in cells if c["cell_type"] == "code" for line in [*c["source"], "\n"]]
    return "".join(line for line in lines if not line.startswith("%"))


# which do what tests/hf/test_export.py and tests/trust/test_language_model.py do
LONG = ("docs/guide/export.md", "docs/tutorials/llm.md")


@pytest.mark.parametrize("long", [*slow(False), *soak(True)], ids=["short", "long"])
def test_python_runs(long: bool) -> None:
    programs = {page: program for page, text in PAGES.items() if (program := code.python(text))}
    programs["docs/tour.ipynb"] = notebook(ROOT / "docs/tour.ipynb")
    programs = {page: program for page, program in programs.items() if (page in LONG) == long}
    assert len(programs) == 2 if long else len(programs) > 8
    results = json.loads(
        python(
            Path(__file__).with_name("run_pages.py"),
            input=json.dumps(programs),
            env={"HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"},
        )
    )
    failed = [f"{page}\n{error}" for page, (status, _, error) in results.items() if status]
    assert not failed, "\n\n".join(failed)
    output = PAGES["README.md"].split("print(record)\n```\n\n```\n")[1].split("```")[0]
    assert long or output in results["README.md"][1]


def commands() -> Iterator[tuple[str, str]]:
    """Page and command of what a reader may type, where it starts a module of this repository."""
    for page, text in PAGES.items():
        for language, block, _ in code.blocks(text):
            if language in ("", "console"):
                for line in block.replace("\\\n", " ").splitlines():
                    if found := re.match(rf"(\$ )?({STARTS}.*)", line):
                        yield page, found[2]


class ParsedError(BaseException):
    """The arguments were good; goes through everything that tells a user of errors."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_commands_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_after(parse):
        def parsed(*arguments, **options):
            parse(*arguments, **options)
            raise ParsedError

        return parsed

    for parser in (argparse.ArgumentParser, jsonargparse.ArgumentParser):
        monkeypatch.setattr(parser, "parse_args", stop_after(parser.parse_args))
    monkeypatch.setattr(LineParser, "parse_all", stop_after(LineParser.parse_all))
    monkeypatch.setattr(cli, "parse", stop_after(cli.parse))
    # tests/glue/test_own_mapping.py runs the commands that import a page's module
    monkeypatch.setattr("sparse_attn.cli.parser.import_module", lambda name: None)
    monkeypatch.chdir(ROOT)
    seen = 0
    for page, command in commands():
        words = shlex.split(command, comments=True)
        if words[0] == "accelerate":
            launched, _ = launch_command_parser().parse_known_args(words[2:])
            assert launched.module, command
            assert launched.config_file is None or Path(launched.config_file).exists(), command
            words = [launched.training_script, *launched.training_script_args]
        elif words[0] == "sparse-attn":
            program = PROGRAMS.get(words[1])
            words = [program, *words[2:]] if program else ["sparse_attn", *words[1:]]
        else:
            words = words[words.index("-m") + 1 :]
        if words[0].split(".")[0] not in OURS:
            continue
        monkeypatch.setattr(sys, "argv", words)
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except ParsedError:
            seen += 1
        except SystemExit:
            pytest.fail(f"{page}: {command}")
    assert seen > 30


def test_links() -> None:
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            url = urlsplit(target)
            if url.scheme:
                assert url.scheme == "https", (page, target)
                assert re.fullmatch(r"([\w-]+\.)+[a-z]+", url.netloc), (page, target)
            elif url.path:
                assert (ROOT / page).parent.joinpath(url.path).exists(), (page, target)
