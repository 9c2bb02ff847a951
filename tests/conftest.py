"""Settings shared by every test: one thread, fixed seeds, reproducible hypothesis runs."""

import gc
import logging
import os
import signal
from collections.abc import Generator
from importlib import import_module
from importlib.util import find_spec
from zlib import crc32

import numpy
import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    # Triton reads it when the kernels are imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
    import_module("tests.interpreter").speed_up()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a background job of a shell, whose processes would ignore the tests' Ctrl+C
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # the workers of pytest-xdist share the cores

MANY, SHARE = 8, 4

settings.register_profile("sparse_attn", deadline=None, max_examples=30, derandomize=True)
# `make soak`: other examples in every run, each failure with the line that brings it back
settings.register_profile("long", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "sparse_attn"))


for logger in logging.root.manager.loggerDict.values():
    # pytest adds its handlers to each logger without parents, three times a test
    if isinstance(logger, logging.Logger) and logger.name.startswith(("torch.", "c10d")):
        logger.propagate = True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the tests and modules, millions of objects, out of every garbage collection.

    Statsmodels collects in each correction of p-values, and tests of memory do.
    """
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave three of four cases of a test with many to `make slow`, of each test other ones."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, found in cases.items():
        if len(found) > MANY and not any(item.get_closest_marker("slow") for item in found):
            for place, item in enumerate(found, start=crc32(name.encode())):
                if place % SHARE:
                    item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def seed() -> int:
    """Seed torch before every test, so that a test does not depend on those before it."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # of the CPU alone, because the others keep a trace of every call until they are used
        torch.default_generator.manual_seed(0)
    return 0


@pytest.fixture
def rng(seed: int) -> numpy.random.Generator:
    """A seeded numpy generator."""
    return numpy.random.default_rng(seed)
