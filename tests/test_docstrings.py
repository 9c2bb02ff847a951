"""Public names have docstrings, whose examples run."""

import doctest
import inspect
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import sparse_attn
from sparse_attn import functional, heads, inspection, kernels, losses, mappings


def public() -> Iterator[tuple[str, Any, type | None]]:
    """What a user may call, by the name that he writes, with the class that it is of."""
    seen = set()
    for module in (functional, losses, heads, kernels, mappings, inspection, sparse_attn):
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or id(thing) in seen:
                continue
            seen.add(id(thing))
            yield name, thing, thing if inspect.isclass(thing) else None
            for key, member in vars(thing).items() if inspect.isclass(thing) else ():
                function = getattr(member, "fget", getattr(member, "__func__", member))
                # a method without docstring may have that of torch or Transformers
                if not key.startswith("_") and is_ours(thing, key, function):
                    yield f"{name}.{key}", function, thing


def is_ours(holder: type, key: str, function: Any) -> bool:
    written = [b for b in holder.__mro__ if getattr(vars(b).get(key), "__doc__", None)]
    inherited = written and not written[0].__module__.startswith("sparse_attn")
    return isinstance(function, FunctionType) and not inherited


CALLABLES = {name: (thing, holder) for name, thing, holder in public()}


def doc(name: str) -> str:
    thing, holder = CALLABLES[name]
    return inspect.getdoc(getattr(holder, name.split(".")[1]) if "." in name else thing) or ""


def test_nothing_is_without_a_docstring():
    assert len(CALLABLES) > 100
    assert [n for n in CALLABLES if not re.match(r"[^\n]{10,100}", doc(n))] == []


def test_examples_run():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    told: list[str] = []
    for name in CALLABLES:
        runner.run(parser.get_doctest(doc(name), {}, name, None, None), out=told.append)
    assert not told, "".join(told)
    assert runner.tries > 5
