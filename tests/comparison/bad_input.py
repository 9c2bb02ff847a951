"""Wrong command lines, files and models of comparisons."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from sparse_attn.comparison.comparison import compare
from sparse_attn.comparison.data import read_data
from tests.bad_input import Wrong
from tests.comparison.running import parse
from tests.glue.make_glue import write_task
from tests.hf.families import build_refused
from tests.letters import letter_tokenizer

Call = Callable[[Path], Any]
PAIRS = "sentence1\tsentence2\tscore\na\tb\t{}\nc\td\t2\n"
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
CLASSIFIER = BertForSequenceClassification
TASK = ("--task", "MRPC", "--data_dir", "{}")


def data(option: str, name: str, content: str | bytes, *more: str) -> Call:
    """A file of texts, pairs or labels."""

    def call(folder: Path) -> Any:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_data(parse(["model", option, str(path), *more]))

    return call


def table(option: str, *more: str) -> Call:
    return data(option, "a.csv", "a,b,c\nx,y,1\n", *more)


def given(*words: str) -> Call:
    return lambda folder: read_data(parse(["model", *words]))


def bert(cls: Any = BertModel, **changes: Any) -> Callable[[], Any]:
    return lambda: cls(BertConfig(**{**SIZES, "vocab_size": len(letter_tokenizer()), **changes}))


BERT = bert()


def lost() -> Any:
    """A model whose outputs are NaN."""
    made = BERT()
    torch.nn.init.constant_(made.encoder.layer[0].output.dense.weight, torch.nan)
    return made


def model(
    make: Callable[[], Any] = BERT,
    *more: str,
    mappings: str = "sparsemax",
    tokenizer: bool = True,
) -> Call:
    """A model on a file of texts, or on what `more` names; {} is the folder."""

    def call(folder: Path) -> Any:
        torch.manual_seed(0)
        make().save_pretrained(folder / "model")
        if tokenizer:
            letter_tokenizer().save_pretrained(folder / "model")
        (folder / "texts.txt").write_text("abc\n")
        write_task(folder, "MRPC", train=4, dev=8)
        words = [word.format(folder) for word in more or ["--texts", "{}/texts.txt"]]
        return compare(parse([str(folder / "model"), *words, "--mappings", mappings]))

    return call


CASES: list[tuple[str, Call, str]] = [
    ("texts, no file", given("--texts", "no.txt"), "--texts no.txt: there is no"),
    ("texts, a folder", given("--texts", "/"), "--texts /: is a folder"),
    ("texts, empty", data("--texts", "a.txt", "\n \n"), "a.txt: holds no text"),
    ("texts, not UTF-8", data("--texts", "a.txt", b"\xff"), "a.txt, line 1: not UTF-8"),
    ("texts, a number", data("--texts", "a.jsonl", '{"text": 1}'), "line 1: .*expected a string"),
    ("texts, blank", data("--texts", "a.jsonl", '{"text": " "}'), "line 1: .*blank"),
    ("pairs, suffix", data("--pairs", "a.txt", "a\n"), "--pairs .*a.txt: expected a file .tsv"),
    ("pairs, empty", data("--pairs", "a.tsv", ""), "--pairs .*a.tsv: holds no rows"),
    ("pairs, NaN", data("--pairs", "a.tsv", PAIRS.format("nan")), "line 2: .*'nan'"),
    ("pairs, one score", data("--pairs", "a.tsv", PAIRS.format("2")), "every row has the score 2"),
    ("texts, no column", table("--texts"), "no column 'text'; .* a, b, c; .* by --text_columns"),
    ("pairs, no column", table("--pairs"), "no column .*by --text_columns and --label_column"),
    ("texts, no key", data("--texts", "a.jsonl", '{"a": "x"}'), "'text'; .* by --text_columns"),
    ("text_columns", table("--texts", "--text_columns", "d"), "no column 'd'.* a, b, c"),
    ("text_columns, three", table("--texts", "--text_columns", "a,b,c"), "expected one or two"),
    ("text_columns, one", table("--pairs", "--text_columns", "a"), "expected two"),
    ("text_columns, .txt", given("--texts", "b.txt", "--text_columns", "a"), "only for a .tsv"),
    ("text_columns, missing", table("--task"), "text_columns: missing"),
    ("label_column", table("--texts", "--label_column", "c"), "label_column c: only for --pairs"),
    ("label_column, missing", table("--task", "--text_columns", "a"), "label_column: missing"),
    (
        "task, one label",
        table("--task", "--text_columns", "a", "--label_column", "b"),
        "label_column='b': .*1 different label",
    ),
    ("data_dir", table("--task", "--data_dir", "d"), "data_dir d: only for a task of GLUE"),
    ("mappings, softmax", model(mappings="sparsemax,softmax"), "--mappings: softmax is what"),
    ("mappings, twice", model(mappings="relu,relu"), "relu is given twice"),
    ("mappings, unknown", model(mappings="sparsmax"), "sparsmax: .*did you mean"),
    ("mappings, parameter", model(mappings="entmax:alpha=0"), "--mappings entmax:alpha=0"),
    ("model, other attention", model(lambda: build_refused("DebertaModel")), "does not dispatch"),
    ("model, NaN", model(lost), "softmax: the model's outputs are NaN"),
    ("model, other tokenizer", model(bert(vocab_size=9)), "MODEL knows 9 tokens"),
    ("model, no tokenizer", model(tokenizer=False), "MODEL=.*there is no tokenizer"),
    ("model, no classifier", model(BERT, *TASK), "MODEL=.*lacks weights, such as classifier"),
    ("model, more labels", model(bert(CLASSIFIER, num_labels=3), *TASK), "MRPC has 2"),
    ("model, other labels", model(bert(CLASSIFIER, id2label={0: "yes", 1: "no"}), *TASK), "'yes'"),
]
ROWS = [
    *(Wrong(f"compare: {name}", call, ValueError, says) for name, call, says in CASES),
    Wrong("compare: task", given("--task", "no.yaml"), FileNotFoundError, "^task: .*no.yaml"),
    Wrong(
        "compare: data_dir, no folder",
        given("--task", "MRPC", "--data_dir", "/nowhere"),
        FileNotFoundError,
        "^data_dir=/nowhere: no such folder",
    ),
]
