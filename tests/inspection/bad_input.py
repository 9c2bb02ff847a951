"""What pages, pictures and recordings refuse."""

import math
from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure

from sparse_attn import Mapping, patch_model
from sparse_attn.inspection import AttentionRecord, pictures, record_attention
from sparse_attn.inspection.page import attention_page
from tests.bad_input import Wrong
from tests.hf.families import build_refused
from tests.inspection.page_data import Record
from tests.inspection.tiny import IDS, TOKENS, bert, recorded, sharp_bert

EVEN, EYE = torch.full((1, 1, 2, 2), 0.5), torch.eye(2)
WIDE = Record([torch.zeros(1, 1, 1, 1).expand(1, 32, 100, 100)] * 32)


def page(sides: Any, says: str, tokens: int = 2, error: Any = ValueError, **more: Any) -> Wrong:
    return Wrong(
        f"attention_page: {says}",
        lambda _: attention_page(sides, ["a"] * tokens, **more),
        error,
        says,
    )


def picture(says: str, draw: Callable[[], Any], error: type[Exception] = ValueError) -> Wrong:
    return Wrong(f"pictures: {says}", lambda _: draw(), error, says)


def weights(p: Any, tokens: Any, says: str, error: Any = ValueError, **more: Any) -> Wrong:
    return picture(says, lambda: pictures.draw_weights(p, tokens, **more), error)


def place(says: str, **wrong: Any) -> Wrong:
    def draw() -> Any:
        record = recorded(sharp_bert("r-softmax"), weights=True)
        return pictures.draw_attention(record, TOKENS, **{"layer": 0, "head": 0, **wrong})

    return picture(says, draw)


def unseen(draw: Callable[[AttentionRecord], Any]) -> Wrong:
    def call(_: Any) -> None:
        with record_attention(bert()) as record:
            pass
        draw(record)

    return Wrong(
        f"{draw.__name__} of no call", call, ValueError, "record: has no call of the whole"
    )


def inside(make: Callable[[], Any], says: str, error: Any, do: Any = lambda model: None) -> Wrong:
    def call(_: Any) -> None:
        model = make()
        with record_attention(model):
            do(model)

    return Wrong(f"record_attention: {says}", call, error, says)


def record_again(model: Any) -> None:
    with record_attention(model):
        pass


ROWS = [
    page({}, "one record or two"),
    page({"a": Record([None])}, "weights=True"),
    page({"a": Record([EVEN, EVEN], crosses=[False, True])}, r"layer\.1 is cross-attention"),
    page({"a": Record([EVEN])}, r"tokens: 3 given, but layer\.0 of 'a' has 2 queries", tokens=3),
    page({"a": Record([EVEN])}, "example=1: expected 0 to 0", example=1),
    page({"a": Record([EVEN])}, "example=-1", example=-1),
    page({"a": Record([EVEN])}, "special_mask: expected 2", special_mask=[1]),
    page({"a": Record([EVEN * math.nan])}, r"layer\.0 holds values that are not prob"),
    page({"a": Record([EVEN + 1])}, "not probabilities"),
    page(
        {"a": Record([EVEN]), "b": Record([None, EVEN])},
        r"the same layers, got 1 and 1 layers that ran, layer\.0 and layer\.1 first",
    ),
    page(
        {"a": Record([EVEN]), "b": Record([EVEN.expand(1, 2, 2, 2)])},
        r"expected as many heads on both sides, got 1 and 2 in layer\.0",
    ),
    page({"a": WIDE, "b": WIDE}, r"20\.5 million weights.* at most 62 tokens fit", tokens=100),
    page(Record([EVEN]), "sides: expected records by name.* got Record", error=TypeError),
    picture("mappings: .* list .* got 'softmax'", lambda: pictures.draw_curves("softmax")),
    picture(r"mappings: expected a list .* got \[\]", lambda: pictures.draw_curves([])),
    picture("mapping='softmix' is unknown", lambda: pictures.draw_simplex("softmix")),
    picture(
        "mapping: expected one value of each parameter, got r-softmax with num_heads=2",
        lambda: pictures.draw_simplex(Mapping("r-softmax", r=[0.1, 0.2], num_heads=2)),
    ),
    weights(torch.ones(1, 2, 2), [*"ab"], r"weights: .* \(1, 2, 2\)"),
    weights(torch.ones(0, 0), [""], r"weights: .* \(0, 0\)"),
    weights({}, [], "expected one head or more to draw, got"),
    weights(EYE, [*"ab"], "ax: expected one Axes .* got list", ax=[], error=TypeError),
    picture(
        "record: expected a record.* got list",
        lambda: pictures.draw_attention([[]], ["a"], layer=0, head=0),
        TypeError,
    ),
    weights(2 * EYE, [*"ab"], "weights: .* got numbers outside"),
    weights(-EYE, [*"ab"], r"weights: .* got numbers outside \[0"),
    weights(EYE / 0, [*"ab"], r"weights: .* got numbers outside \[0, 1\] or NaN"),
    weights(EYE, [*"abc"], "tokens: .* 2 queries, .* got 3"),
    weights(torch.ones(2, 3), [*"ab"], "key_tokens .* 3 keys, .* got"),
    weights(
        torch.eye(61), ["a"] * 61, "tokens: expected at most 60 queries, .* got 61; draw a part"
    ),
    weights(
        EYE,
        [*"ab"],
        r"valid: expected a boolean tensor of shape \(2, 2\), got torch.bool of shape \(1, 2\)",
        valid=torch.ones(1, 2).bool(),
    ),
    weights(EYE, "ab", "^tokens: expected a list of strings", TypeError),
    weights(EYE, torch.tensor([5, 6]), "^tokens: expected a list of strings,", TypeError),
    weights(EYE, [5, 6], "^tokens: expected a list of strings, such", TypeError),
    place("layers: there is no layer 3; give numbers below 3, or names such as 'encoder", layer=3),
    place("layers: there is no layer 'pooler'", layer="pooler"),
    place("expected one head or more to draw, got none", head=[]),
    place("ax: expected one head for it, got 2", head=[0, 1], ax=Figure().add_subplot()),
    place(r"figsize=\(3, 3\): expected None", ax=Figure().add_subplot(), figsize=(3, 3)),
    place("head=4: expected 0 to 3", head=4),
    place("example=2: expected 0 to 1", example=2),
    picture(
        "record: has no weights of .*weights=True",
        lambda: pictures.draw_attention(recorded(bert()), TOKENS, layer=0, head=0),
    ),
    picture(
        "record: softmax has no parameters", lambda: pictures.draw_parameters(recorded(bert()))
    ),
    picture(
        "name='t': expected one of r",
        lambda: pictures.draw_parameters(recorded(sharp_bert("r-softmax")), "t"),
    ),
    *map(unseen, (pictures.draw_sparsity, pictures.draw_support, pictures.draw_parameters)),
    inside(bert, "BertModel is already being recorded", RuntimeError, record_again),
    inside(lambda: build_refused("DebertaModel"), "does not dispatch", ValueError),
    inside(lambda: torch.nn.Linear(1, 1), "Transformers model", TypeError),
    inside(
        lambda: sharp_bert("r-softmax"),
        "before the record_attention block",
        RuntimeError,
        lambda model: patch_model(model, "sparsemax")(IDS),
    ),
]
