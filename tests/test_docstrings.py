"""Public docstrings explain every parameter, and their examples run.

A docstring may hand over to another: "as `softmax`", "log p of `t_softmax`". What that says counts.
"""

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


def whole(name: str, topic: str = "", *before: str) -> str:
    """The docstring, and those that it hands over to: in all, or where it names the topic."""
    text, holder = doc(name), name.split(".")[0]
    others = set()
    for piece in re.split(r"\n\n|\n(?= {4}\S)", text):
        if re.search(rf"(?i){topic}|\belse\b|log p of", piece):
            others |= {*re.findall(r"\b(?:[Aa]s|of) (?:in )?`(\w+)`", piece)}
    known = {n for o in others for n in (o, f"{holder}.{o}") if n in CALLABLES} - {name, *before}
    return "\n\n".join([text, *(whole(n, topic, name, *before) for n in sorted(known))])


def section(text: str, title: str) -> str:
    found = re.search(rf"^{title}:\n((?: .*\n|\n(?= ))*)", text + "\n", re.MULTILINE)
    return found[1] if found else ""


def entries(text: str) -> dict[str, str]:
    """What the lists of a docstring say, by name; "a, b: ..." says it of both."""
    found = re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name.strip("*"): said for names, said in found for name in names.split(", ")}


def parameters(name: str) -> list[str]:
    thing, holder = CALLABLES[name]
    hidden = (
        "cls" if holder and isinstance(vars(holder).get(thing.__name__), classmethod) else "self"
    )
    return [p for p in inspect.signature(thing).parameters if p != hidden]


def test_nothing_is_without_a_docstring():
    assert len(CALLABLES) > 100
    assert [n for n in CALLABLES if not re.match(r"[^\n]{10,100}", doc(n))] == []


def test_every_parameter_is_explained():
    faults = []
    for name in CALLABLES:
        text, names = whole(name), parameters(name)
        listed = entries(text)
        for parameter in names:
            # one or two may stand in a sentence
            said = len(names) <= 2 and re.search(rf"\b{parameter}\b", text)
            if parameter not in listed and not said:
                faults.append(f"{name} says nothing of {parameter}")
        gone = set(entries(section(doc(name), "Args"))) - set(names)
        faults += [f"{name} has no {parameter}" for parameter in gone]
    assert not faults, "\n".join(faults)


def test_examples_run():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    told: list[str] = []
    for name in CALLABLES:
        runner.run(parser.get_doctest(doc(name), {}, name, None, None), out=told.append)
    assert not told, "".join(told)
    assert runner.tries > 5
