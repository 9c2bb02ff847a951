"""Tokenizers that know no word are refused; those that need no files are not."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from glue.model import load_tokenizer as of_glue
from sparse_attn.hf.opening import load_tokenizer, open_tokenizer


def folder_of(folder: Path, kind: str, *, with_config: bool) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    if with_config:
        (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "with_config"),
    [*product(("bert", "t5", "mbart", "splinter"), (False, True)), ("llama", False)],
)
@pytest.mark.parametrize("load", [open_tokenizer, load_tokenizer, of_glue])
def test_no_tokenizer(
    load: Callable[[str], Any], kind: str, with_config: bool, tmp_path: Path
) -> None:
    path = folder_of(tmp_path, kind, with_config=with_config)
    says = r"there is no tokenizer beside the model; save it there, by tokenizer\.save_pretrained"
    with pytest.raises(ValueError, match=says) as raised:
        load(path)
    if load is not open_tokenizer:
        assert path in str(raised.value)


@pytest.mark.parametrize("kind", ["canine", "perceiver"])
def test_a_tokenizer_of_characters(kind: str, tmp_path: Path) -> None:
    tokenizer = open_tokenizer(folder_of(tmp_path, kind, with_config=False))
    assert len(set(tokenizer("abc", add_special_tokens=False)["input_ids"])) == 3
