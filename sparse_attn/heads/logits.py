"""What the source of a Transformers model does with the output of its head."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from torch import nn
from transformers import PreTrainedModel

from sparse_attn.layers import source_of_forward

Statement: TypeAlias = ast.Assign | ast.AugAssign | ast.Return

LOGITS = re.compile(r"\w*(logits|scores)$")
# arithmetic, a soft cap, a cut of the vocabulary, values set by hand
CHANGE = re.compile(r" [-+*/@]=? |tanh\(|soft_?cap|\[\.\.\., ?: ?\w|^\w+\[.*\] = ")
# a buffer of the model, mostly zero, which is looked at by itself
FINAL_BIAS = re.compile(r" \+ self\.final_logits_bias(\.to\([^)]*\))?")


def owners(root: PreTrainedModel, head: nn.Module) -> list[PreTrainedModel]:
    """The models in `root`, itself included, whose output embedding this is."""
    models = [m for m in root.modules() if isinstance(m, PreTrainedModel)]
    return [m for m in models if m.get_output_embeddings() is head]


def changed_logits(root: PreTrainedModel, head: nn.Module) -> str | None:
    """Where logits are something else than the output of the head; None if nowhere.

    Reads the forward of the models that own the head and of the modules that hold it. What cannot
    be read, and what this overlooks, is left to `guard`.
    """
    for owner in owners(root, head):
        known = _factors({**vars(owner.config.get_text_config(decoder=True)), **vars(owner)})
        for module in owner.modules():
            calls = [f"self.{name}" for name, child in module.named_children() if child is head]
            if (calls or module is owner) and (change := _change(type(module), calls, known)):
                return f"{type(module).__name__} {change}"
    return None


def _factors(values: dict[str, Any]) -> dict[str, float | None]:
    """The values that a line could compute with. A config's dtype is often None, and no factor."""
    kinds = (int, float, type(None))
    return {n: v for n, v in values.items() if type(v) in kinds and n != "dtype"}


def _change(cls: type[nn.Module], calls: list[str], known: dict[str, float | None]) -> str | None:
    """What a forward, which calls the head by these names, does to logits."""
    source = textwrap.dedent(source_of_forward(cls))
    called = not (calls and source)
    outputs: set[str] = set()
    for statement in _live(ast.parse(source).body, known):
        text, nodes = ast.unparse(statement), list(ast.walk(statement))
        found = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) in calls]
        for call in found:  # arithmetic in its argument happens to hidden states
            text = text.replace(ast.unparse(call), "logits")
        targets = _targets(statement)
        if found:
            called = True
            outputs |= targets
        watched = found or any(name in outputs or LOGITS.match(name) for name in targets)
        if watched and CHANGE.search(FINAL_BIAS.sub("", text)) and not _is_off(text, known):
            return f"changes its logits after the head ({ast.unparse(statement)})"
    return None if called else f"does not call its head ({calls[0]})"


def _live(nodes: Iterable[ast.AST], known: dict[str, float | None]) -> Iterator[Statement]:
    """The statements in order, without those under `if x is not None` where x is None."""
    for node in nodes:
        if isinstance(node, Statement):
            yield node
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.If):
            given = re.findall(r"(\w+)\)? is not None", ast.unparse(node.test))
            if any(known.get(name, "") is None for name in given):
                children = iter(node.orelse)
        yield from _live(children, known)


def _targets(statement: Statement) -> set[str]:
    """The names that a statement assigns to."""
    if isinstance(statement, ast.Return):
        return set()
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _is_off(text: str, known: dict[str, float | None]) -> bool:
    """Whether the factors of a line are all None or 1, and there are some."""
    factors = [known[word] for word in re.findall(r"\w+", text) if word in known]
    return bool(factors) and all(factor in (None, 1) for factor in factors)
