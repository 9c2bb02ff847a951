"""Tokenizers that know no word are refused; those that need no files are not."""

import json
from itertools import product
from pathlib import Path

import pytest

from glue.model import load_tokenizer as of_glue
from sparse_attn.hf.opening import load_tokenizer, open_tokenizer
from tests.marks import first

SAYS = r"there is no tokenizer beside the model; save it there, by tokenizer\.save_pretrained"


def folder_of(folder: Path, kind: str, *, with_config: bool = False) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    if with_config:
        (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "with_config"),
    [*product(("bert", "t5", "splinter"), (False, True)), ("mbart", True), ("llama", False)],
)
def test_no_tokenizer(kind: str, with_config: bool, tmp_path: Path) -> None:
    path = folder_of(tmp_path, kind, with_config=with_config)
    for load in (open_tokenizer, load_tokenizer, of_glue):
        named = "" if load is open_tokenizer else f"='{path}': "
        with pytest.raises(ValueError, match=named + SAYS):
            load(path)


@pytest.mark.parametrize("kind", first("perceiver", "canine"))
def test_a_tokenizer_of_characters(kind: str, tmp_path: Path) -> None:
    tokenizer = open_tokenizer(folder_of(tmp_path, kind))
    assert len(set(tokenizer("abc", add_special_tokens=False)["input_ids"])) == 3
