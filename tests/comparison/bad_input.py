"""Wrong command lines, files and models of comparisons."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DebertaConfig,
    DebertaModel,
    GptOssConfig,
    GptOssForCausalLM,
)

from sparse_attn.comparison.comparison import compare
from sparse_attn.comparison.data import read_data
from tests.bad_input import Wrong
from tests.comparison.running import parse
from tests.glue.make_glue import write_task
from tests.letters import letter_tokenizer

Call = Callable[[Path], Any]
GOOD = "sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n"
BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def data(option: str, name: str, content: str | bytes) -> Call:
    """A file of texts or pairs."""

    def call(folder: Path) -> Any:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_data(parse(["model", option, str(path)]))

    return call


def columns(*words: str) -> Call:
    """Options for a file with the columns a, b and c; {} is its path."""

    def call(folder: Path) -> Any:
        path = folder / "a.csv"
        path.write_text("a,b,c\nx,y,1\n")
        return read_data(parse(["model", *(word.format(path) for word in words)]))

    return call


def pairs(old: str, new: str) -> Call:
    assert old in GOOD
    return data("--pairs", "a.tsv", GOOD.replace(old, new))


def missing(option: str) -> Call:
    return lambda folder: read_data(parse(["model", option, str(folder / "no.tsv")]))


def model(make: Callable[[], Any], *more: str, mappings: str = "sparsemax") -> Call:
    """A model on a file of texts, or on what `more` names; {} is the folder."""

    def call(folder: Path) -> Any:
        torch.manual_seed(0)
        made, tokenizer = make(), letter_tokenizer()
        made.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        (folder / "texts.txt").write_text("abc\n")
        write_task(folder, "MRPC", train=4, dev=8)
        words = [word.format(folder) for word in more or ["--texts", "{}/texts.txt"]]
        return compare(parse([str(folder / "model"), *words, "--mappings", mappings]))

    return call


def bert(cls: Any = BertModel, **changes: Any) -> Callable[[], Any]:
    return lambda: cls(BertConfig(**{**BERT, "vocab_size": len(letter_tokenizer()), **changes}))


def deberta() -> Any:
    return DebertaModel(DebertaConfig(**BERT, vocab_size=len(letter_tokenizer())))


def with_sinks() -> Any:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "head_dim": 4, "vocab_size": 99}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    return GptOssForCausalLM(GptOssConfig(**sizes, **heads, num_local_experts=2))


def without_tokenizer(folder: Path) -> Any:
    bert()().save_pretrained(folder / "model")
    (folder / "texts.txt").write_text("abc\n")
    words = ["--texts", f"{folder}/texts.txt", "--mappings", "sparsemax"]
    return compare(parse([str(folder / "model"), *words]))


def lost() -> Any:
    """A model whose outputs are NaN."""
    made = bert()()
    torch.nn.init.constant_(made.encoder.layer[0].output.dense.weight, torch.nan)
    return made


def one_label(folder: Path) -> Any:
    write_task(folder, "SST-2")
    (folder / "SST-2/dev.tsv").write_text("sentence\tlabel\nfine\t1\ngood\t1\n")
    return read_data(parse(["model", "--task", "SST-2", "--data_dir", str(folder)]))


def nowhere(error: type[Exception], says: str, *words: str) -> Wrong:
    def call(folder: Path) -> Any:
        return compare(parse(["model", "--mappings", "sparsemax", *words]))

    return Wrong(f"compare: {words}", call, error, says)


TASK = ("--task", "MRPC", "--data_dir", "{}")
CLASSIFIER = BertForSequenceClassification
FILES: list[tuple[str, Call, str]] = [
    ("no texts file", missing("--texts"), r"--texts .*no.tsv: there is no such file"),
    ("no pairs file", missing("--pairs"), r"--pairs .*no.tsv: there is no such file"),
    ("empty texts", data("--texts", "a.txt", "\n \n"), "--texts .*a.txt: holds no text; give one"),
    (
        "folder of texts",
        lambda folder: read_data(parse(["model", "--texts", str(folder)])),
        "--texts .*: is a folder; expected a file .txt with a text a line, or .tsv, .csv",
    ),
    ("texts not UTF-8", data("--texts", "a.txt", b"\xff"), "a.txt, line 1: not UTF-8 .*save the"),
    ("text column", data("--texts", "a.csv", "words\na\n"), "line 1: no column 'text'"),
    ("blank text", data("--texts", "a.jsonl", '{"text": " "}'), "column 'text' is blank; fill"),
    ("number", data("--texts", "a.jsonl", '{"text": 1}'), "'text' holds 1, expected a string"),
    ("half a character", data("--texts", "a.jsonl", '{"text": "\\ud83d"}'), "has half a char"),
    ("text suffix", data("--texts", "a.md", "a\n"), "--texts .*a.md: expected a file .txt with a"),
    ("pair suffix", data("--pairs", "a.txt", "a\n"), "--pairs .*a.txt: expected a file .tsv, .csv"),
    ("no rows", data("--pairs", "a.tsv", GOOD.partition("a")[0]), "--pairs .*a.tsv: holds no rows"),
    ("empty pairs", data("--pairs", "a.tsv", ""), "--pairs .*a.tsv: holds no rows"),
    ("no scores", pairs("score", "label"), "line 1: no column 'score'; the columns are"),
    ("score missing", pairs("b\t1", "b\t"), "line 2: column 'score' holds '', expected a finite"),
    ("score NaN", pairs("b\t1", "b\tnan"), "line 2: column 'score' holds 'nan'"),
    ("blank sentence", pairs("c\td", "c\t"), "line 3: column 'sentence2' is blank"),
    ("one score", pairs("\t2", "\t1"), "--pairs .*: every row has the score 1, .*different scores"),
    (
        "semicolons",
        data("--texts", "a.csv", "text;b\na;b\n"),
        "line 1: no column 'text'; .*separated by semicolons; expected commas in .csv",
    ),
    ("other columns", columns("--texts", "{}", "--text-columns", "d"), "no column 'd'.* a, b, c"),
    (
        "three columns",
        columns("--texts", "{}", "--text-columns", "a,b,c"),
        "a,b,c: expected one or",
    ),
    ("one side", columns("--pairs", "{}", "--text-columns", "a"), "--text-columns a: expected two"),
    (
        "columns of .txt",
        columns("--texts", "b.txt", "--text-columns", "a"),
        "only for a .tsv, .csv",
    ),
    (
        "labels of texts",
        columns("--texts", "{}", "--label-column", "c"),
        "^--label-column c: only for --pairs, or a labelled file as --task; leave it out",
    ),
    ("columns of a task", columns("--task", "RTE", "--text-columns", "a"), "only for a .tsv, .csv"),
    ("folder of a file", columns("--task", "{}", "--data_dir", "d"), "only for a task of GLUE or"),
    ("no columns of a file", columns("--task", "{}"), "text_columns: missing; .* are a, b, c"),
    (
        "no label of a file",
        columns("--task", "{}", "--text-columns", "a"),
        "label_column: missing; the columns of .*a.csv are a, b, c",
    ),
    (
        "no file",
        columns("--task", "no.csv", "--text-columns", "a"),
        "--task no.csv: there is no su",
    ),
    ("one label", one_label, "--task SST-2: every row has the label 1, which measures nothing"),
]
MODELS: list[tuple[str, Call, str]] = [
    ("softmax", model(bert(), mappings="sparsemax,softmax"), "--mappings: softmax is what"),
    ("twice", model(bert(), mappings="relu,relu"), "--mappings relu,relu: relu is given twice"),
    (
        "unknown",
        model(bert(), mappings="sparsmax"),
        "--mappings sparsmax: .*did you mean",
    ),
    ("range", model(bert(), mappings="entmax:alpha=0"), "--mappings entmax:alpha=0: .*alpha=0"),
    ("not taken", model(with_sinks, mappings="relu"), "--mappings relu: .*sinks"),
    ("does not dispatch", model(deberta), "MODEL: DebertaModel does not dispatch"),
    ("NaN", model(lost), "softmax: the model's outputs are NaN"),
    ("tokenizer of another model", model(bert(vocab_size=9)), "MODEL knows 9 tokens, but its"),
    ("no tokenizer", without_tokenizer, "MODEL=.*: there is no tokenizer beside the model; sav"),
    ("no classifier", model(bert(), *TASK), "MODEL=.*lacks weights, such as classifier"),
    (
        "labels of another task",
        model(bert(CLASSIFIER, num_labels=3), *TASK),
        "MODEL=.*: gives 3 scores, but MRPC has 2; name a model that was trained for it",
    ),
    (
        "names of another task",
        model(bert(CLASSIFIER, id2label={0: "yes", 1: "no"}), *TASK),
        r"MODEL=.*: names its labels \['yes', 'no'\], but MRPC has \['0', '1'\]; name a model",
    ),
]
ROWS = [
    *(Wrong(f"compare: {name}", call, ValueError, says) for name, call, says in [*FILES, *MODELS]),
    nowhere(FileNotFoundError, "^task: there is no file no.yaml", "--task", "no.yaml"),
    nowhere(
        FileNotFoundError,
        "^data_dir=/nowhere: no such folder; expected data_dir/MRPC",
        *("--task", "MRPC", "--data_dir", "/nowhere"),
    ),
]
