"""What pages, pictures and recordings refuse."""

from collections.abc import Callable
from typing import Any

import torch

from sparse_attn import Mapping, patch_model
from sparse_attn.inspection import pictures, record_attention
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


def inside(make: Callable[[], Any], says: str, error: Any, do: Any = lambda model: None) -> Wrong:
    def call(_: Any) -> None:
        model = make()
        with record_attention(model):
            do(model)

    return Wrong(f"record_attention: {says}", call, error, says)


def record_again(model: Any) -> None:
    with record_attention(model):
        pass


def of_no_call() -> Any:
    with record_attention(bert()) as record:
        pass
    return pictures.draw_sparsity(record)


ROWS = [
    page(Record([EVEN]), "sides: expected records by name", error=TypeError),
    page({"a": Record([None])}, "weights=True"),
    page({"a": Record([EVEN], crosses=[True])}, "is cross-attention"),
    page({"a": Record([EVEN])}, "tokens: 3 given", tokens=3),
    page({"a": Record([EVEN])}, "example=1: expected 0 to 0", example=1),
    page({"a": Record([EVEN])}, "special_mask: expected 2", special_mask=[1]),
    page({"a": Record([EVEN + 1])}, "not probabilities"),
    page({"a": Record([EVEN]), "b": Record([None, EVEN])}, "the same layers"),
    page({"a": Record([EVEN]), "b": Record([EVEN.expand(1, 2, 2, 2)])}, "as many heads"),
    page({"a": WIDE, "b": WIDE}, "at most 62 tokens fit", tokens=100),
    picture("mappings: .* list", lambda: pictures.draw_curves("softmax")),
    picture("mapping='softmix' is unknown", lambda: pictures.draw_simplex("softmix")),
    picture(
        "mapping: expected one value of each",
        lambda: pictures.draw_simplex(Mapping("r-softmax", r=[0.1, 0.2], num_heads=2)),
    ),
    weights(torch.ones(1, 2, 2), [*"ab"], r"weights: .* \(1, 2, 2\)"),
    weights(EYE / 0, [*"ab"], r"weights: .* outside \[0, 1\] or NaN"),
    weights(EYE, [*"abc"], "tokens: .* 2 queries, .* got 3"),
    weights(EYE, "ab", "^tokens: expected a list of strings", TypeError),
    weights(torch.ones(2, 3), [*"ab"], "key_tokens .* 3 keys"),
    weights(EYE, [*"ab"], r"valid: .* \(1, 2\)", valid=torch.ones(1, 2).bool()),
    weights(torch.eye(61), ["a"] * 61, "tokens: expected at most 60"),
    weights(EYE, [*"ab"], "ax: expected one Axes", ax=[], error=TypeError),
    place("layers: there is no layer 3", layer=3),
    place("head=4: expected 0 to 3", head=4),
    place("expected one head or more", head=[]),
    place("example=2: expected 0 to 1", example=2),
    picture(
        "record: has no weights of .*weights=True",
        lambda: pictures.draw_attention(recorded(bert()), TOKENS, layer=0, head=0),
    ),
    picture("record: has no call", of_no_call),
    picture("record: softmax has no param", lambda: pictures.draw_parameters(recorded(bert()))),
    picture(
        "name='t': expected one of r",
        lambda: pictures.draw_parameters(recorded(sharp_bert("r-softmax")), "t"),
    ),
    inside(lambda: torch.nn.Linear(1, 1), "Transformers model", TypeError),
    inside(lambda: build_refused("DebertaModel"), "does not dispatch", ValueError),
    inside(bert, "is already being recorded", RuntimeError, record_again),
    inside(
        lambda: sharp_bert("r-softmax"),
        "before the record_attention block",
        RuntimeError,
        lambda model: patch_model(model, "sparsemax")(IDS),
    ),
]
