"""Wrong files, task entries and sweeps of GLUE."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from glue.config import RunConfig
from glue.sweep import CandidateConfig
from glue.train import chosen, read_data
from glue.trainer import trackers
from sparse_attn.evaluation.data import read_split
from sparse_attn.evaluation.tasks import TASKS, get_task
from tests.bad_input import Wrong
from tests.glue.make_glue import ENTRY, edit, own_task, write_task, written_task
from tests.glue.running import MAPPINGS, sweep

Call = Callable[[Path], Any]
NOTHING: dict[str, Any] = {"model": "m", "output_dir": "o"}
LABELLED = "text,other,label\nw,y,a\nx,y,b\ny,y,a\nz,y,b\n"


def entry(old: str, new: str) -> Call:
    """The entry of a task with a part replaced."""
    assert old in ENTRY
    return lambda folder: written_task(folder, ENTRY.replace(old, new))


def own_file(name: str, content: str) -> Call:
    """A file of a user's own task."""

    def call(folder: Path) -> Any:
        (folder / name).write_text(content, encoding="latin-1")
        return read_split(own_task(folder, "", splits={"train": name, "dev": name}), None, "dev")

    return call


def glue_file(task: str, line: int, old: str, new: str) -> Call:
    """The training file of a task of GLUE with a part of one line replaced."""

    def call(folder: Path) -> Any:
        edit(write_task(folder, task) / "train.tsv", line, old, new)
        return read_split(TASKS[task], folder, "train")

    return call


def swept(**changes: Any) -> Call:
    return lambda folder: sweep(**changes)


def beside_softmax(name: str, *given: Any, **more: Any) -> Call:
    """A sweep of a mapping x."""
    return swept(mappings={**MAPPINGS, "x": CandidateConfig(name, *given, **more)})


def of_file(content: str = LABELLED, **changes: Any) -> Call:
    """A run on a labelled file with the columns text, other and label."""

    def call(folder: Path) -> Any:
        (folder / "own.csv").write_text(content)
        given = {"train_file": str(folder / "own.csv"), "text_columns": "text"}
        given |= {"label_column": "label", "model": "m", "output_dir": "o", **changes}
        config = RunConfig(**given)
        return chosen(config, read_data(config, config.task_of_run()))

    return call


def validated(folder: Path) -> Any:
    """A run whose validation file has only rows of the training file."""
    (folder / "dev.csv").write_text(LABELLED)
    return of_file(validation_file=str(folder / "dev.csv"))(folder)


CASES: list[tuple[str, type[Exception], Call, str]] = [
    ("train_file", FileNotFoundError, of_file(train_file="no.csv"), "train_file=no.csv"),
    ("validation_file", FileNotFoundError, of_file(validation_file="no.csv"), "_file=no.csv"),
    ("learned rows", ValueError, validated, "all 4 rows of dev"),
    ("text_columns", ValueError, of_file(text_columns="txt"), "no column 'txt'"),
    ("no text_columns", ValueError, of_file(text_columns=None), "text_columns: missing"),
    ("label_column", ValueError, of_file(label_column=None), "label_column: missing"),
    ("one label", ValueError, of_file("text,other,label\nx,y,a\n"), "1 different labels"),
    ("no rows", ValueError, of_file("text,other,label\n"), "own.csv: holds no rows"),
    ("no header", ValueError, of_file("", text_columns=None), "own.csv: holds no rows"),
    (
        "labels that are alike",
        ValueError,
        of_file("text,label\na,yes\nb,NO\nc,yes \nd,no\ne,YES\nf,maybe\n"),
        "'NO', 'no'; 'YES', 'yes', 'yes '; .* YAML file for train, sweep or compare",
    ),
    ("few rows", ValueError, of_file(), "too few to hold out"),
    ("task and file", ValueError, of_file(task="RTE"), "task='RTE': not beside train_file"),
    ("data_dir and file", ValueError, of_file(data_dir="d"), "data_dir='d': not beside"),
    ("no task", ValueError, lambda _: RunConfig(**NOTHING), "task: missing"),
    ("file as task", ValueError, lambda _: get_task("own.csv"), "give it as train_file"),
    ("task", ValueError, lambda _: get_task("wikipedia"), "unknown task 'wikipedia'"),
    ("task file", FileNotFoundError, lambda f: get_task(f / "absent.yml"), r"absent\.yml"),
    ("split", ValueError, lambda f: read_split(TASKS["MNLI"], f, "dev"), "no split 'dev'"),
    ("data_dir", ValueError, lambda _: read_split(TASKS["RTE"], None, "train"), "data_dir"),
    ("report_to", ValueError, lambda _: trackers("tensorbord"), "report_to='tensorbord'"),
]

ENTRIES = [
    ("labels: [entails, contradicts]\n", "", "missing key 'labels'"),
    ("label: verdict", "lable: verdict", "did you mean 'label'"),
    ("label: verdict", "label: 3", "label must be"),
    ("[premise, hypothesis]", "[a, b, c]", "one or two columns"),
    ("[entails, contradicts]", "[yes, no]", "put it in quotes"),
    ("[entails, contradicts]", "[entails]", "two or more different"),
    ("{train: train.csv, dev: data/dev.csv}", "train.csv", "splits must map"),
    ("label: verdict", "label: verdict\nmetrics: [pearson]", "metrics"),
    ("label: verdict", "label: verdict\nmain_metric: f1", "main_metric"),
    ("label: verdict", "label: verdict\ncolumns: [premise]", "'hypothesis'"),
    (ENTRY, "- text\n", "got list"),
]

OWN_FILES = [
    ("a.csv", "review;stars\nx;1\n", "line 1: no column 'review'"),
    ("b.csv", 'review,stars\n"a\nb",1\nc,3\n', "line 4: label '3'"),
    ("c.csv", 'review,stars\n"a\nb",1\n\nc\n', "line 5: expected 2 columns"),
    ("d.csv", "review,stars\nx,1\n  ,2\n,2\n", "line 3: column 'review' is blank, and 1 more"),
    ("e.tsv", "review\tstars\nna\xefve\t1\n", "line 2: not UTF-8"),
    ("f.jsonl", '{"review": "x", "stars": 1}\n{"review": "x"}\n', "line 2: no column 'stars'"),
    ("g.json", "3\n", "line 1: expected an object"),
    ("h.json", "[]", "holds no rows"),
    ("i.txt", "x\n", "expected a file"),
]

GLUE_FILES = [
    ("RTE", 2, "not_entailment", "maybe", "label 'maybe'"),
    ("STS-B", 2, "5.000", "nan", "expected a finite number"),
    ("STS-B", 2, "5.000", "5.001", "outside 0 to 5"),
    ("MNLI", 1, "gold_label", "gold", "no column 'gold_label'"),
    ("MRPC", 3, "\t", " ", "expected 5 columns"),
]

SWEEPS: list[tuple[str, Call, str]] = [
    ("no tasks", swept(tasks=None), "tasks: missing"),
    ("tasks", swept(tasks={"MRCP": None}), "nearest: MRPC"),
    ("learning_rates", swept(learning_rates=[-1.0]), "learning_rate=-1.0"),
    ("equal rates", swept(learning_rates=[1e-5, 1e-5]), "without duplicates"),
    ("trials", swept(trials=1), "trials=1"),
    ("few trials", swept(trials=2), "3 combinations in 2 trials"),
    ("seeds", swept(seeds=0), "seeds=0"),
    ("selection", swept(selection=1.0), "selection=1.0"),
    ("train", swept(train=replace(sweep().train, seed=3)), "train.seed=3: .* give seeds"),
    ("rate", swept(train=replace(sweep().train, learning_rate=1)), "give learning_rates"),
    ("baseline", swept(mappings={"r": MAPPINGS["r-softmax"]}), "expected plain 'softmax'"),
    ("label", swept(mappings={**MAPPINGS, "a/b": MAPPINGS["r-softmax"]}), "'a/b' must fit"),
    ("name", beside_softmax("r-sotfmax"), "did you mean r-softmax"),
    ("params", beside_softmax("t-softmax", {"t": [1.0, -1.0]}), "t=-1.0 is out of range"),
    ("equal params", beside_softmax("r-softmax", {"r": [0.1, 0.1]}), "each once"),
    ("no schedule", beside_softmax("sparsemax"), "mixed-sparsemax"),
]

ROWS = [
    *(Wrong(f"glue: {name}", call, error, says) for name, error, call, says in CASES),
    *(
        Wrong(f"glue: entry with {new!r}", entry(old, new), ValueError, rf"/own\.yaml: .*{says}")
        for old, new, says in ENTRIES
    ),
    *(
        Wrong(f"glue: file {name}", own_file(name, text), ValueError, rf"/{name}\W.*{says}")
        for name, text, says in OWN_FILES
    ),
    *(
        Wrong(
            f"glue: {task} with {new!r}",
            glue_file(task, line, old, new),
            ValueError,
            rf"/{task}/train\.tsv, line {line}: .*{says}",
        )
        for task, line, old, new, says in GLUE_FILES
    ),
    *(Wrong(f"glue: sweep, {name}", call, ValueError, says) for name, call, says in SWEEPS),
]
