"""Settings shared by every test: one thread, fixed seeds, reproducible examples; and a browser."""

import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from zlib import crc32

import numpy
import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    # Triton reads it when the kernels are imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a background job of a shell, whose processes would ignore the tests' Ctrl+C
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # the workers of pytest-xdist share the cores

MANY, SHARE = 8, 5

settings.register_profile("sparse_attn", deadline=None, max_examples=30, derandomize=True)
# `make soak`: other examples in every run, each failure with the line that brings it back
settings.register_profile("long", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "sparse_attn"))


for logger in logging.root.manager.loggerDict.values():
    # pytest adds its handlers to each logger that does not propagate, three times a test
    if isinstance(logger, logging.Logger) and logger.name.startswith(("torch.", "c10d")):
        logger.propagate = True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the tests and modules, millions of objects, out of every garbage collection.

    Tests of memory collect.
    """
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=("quick", "slow"),
        help="quick: no test marked slow, and about one in five cases of a test with more than "
        "eight; slow: the others",
    )


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
        interpreter = import_module("tests.interpreter")
        interpreter.speed_up(overflow=config.getoption("part") is None)


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a part of the tests out. Which cases are quick depends on their names alone."""
    if (part := config.getoption("part")) is None:
        return
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    quick = {item for cases in tests.values() for item in quick_cases(cases)}
    parts = [item for item in items if item in quick], [i for i in items if i not in quick]
    items[:], others = parts if part == "quick" else reversed(parts)
    config.hook.pytest_deselected(items=others)


def quick_cases(cases: list[pytest.Item]) -> list[pytest.Item]:
    """The cases of a test that are not marked slow; of many about one in five."""
    quick = [case for case in cases if not case.get_closest_marker("slow")]
    if len(quick) < len(cases) or len(cases) <= MANY:
        return quick
    return [case for case in cases if crc32(case.nodeid.encode()) % SHARE == 0] or cases[:1]


@pytest.fixture(autouse=True)
def seed() -> int:
    """Seed torch and forget compiled code, so that a test does not depend on those before it."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # of the CPU alone, because the others keep a trace of every call until they are used
        torch.default_generator.manual_seed(0)
    return 0


@pytest.fixture
def rng(seed: int) -> numpy.random.Generator:
    """A seeded numpy generator."""
    return numpy.random.default_rng(seed)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; tests are skipped where it or Playwright is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("no chromium is installed")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        running.close()
