"""Wrong files, task entries and sweeps of GLUE."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from glue.config import RunConfig
from glue.sweep import CandidateConfig
from glue.train import load_data
from sparse_attn.evaluation.data import load_task, read_split
from sparse_attn.evaluation.tasks import TASKS, get_task
from tests.bad_input import Wrong
from tests.glue.make_glue import ENTRY, edit, own_task, write_task, written_task
from tests.glue.running import MAPPINGS, RAMP, sweep

Call = Callable[[Path], Any]
NOTHING: dict[str, Any] = {"model": "m", "output_dir": "o"}
LABELLED = "text,other,label\nw,y,a\nx,y,b\ny,y,a\nz,y,b\n"
FILE = '{"review": "x", "stars": 1}\n'


def entry(old: str, new: str) -> Call:
    """The entry of a task with a part replaced."""
    assert old in ENTRY
    return lambda folder: written_task(folder, ENTRY.replace(old, new))


def own_file(name: str, content: str) -> Call:
    """A file of a user's own task."""

    def call(folder: Path) -> Any:
        (folder / name).write_text(content)
        return read_split(own_task(folder, "", splits={"train": name, "dev": name}), None, "dev")

    return call


def glue_file(task: str, line: int, old: str, new: str) -> Call:
    """The training file of a task of GLUE with a part of one line replaced."""

    def call(folder: Path) -> Any:
        edit(write_task(folder, task) / "train.tsv", line, old, new)
        return read_split(TASKS[task], folder, "train")

    return call


def dev_file(content: bytes) -> Call:
    """SST-2 with another dev set."""

    def call(folder: Path) -> Any:
        (write_task(folder, "SST-2") / "dev.tsv").write_bytes(content)
        return load_task(TASKS["SST-2"], folder)

    return call


def cut_short(folder: Path) -> None:
    path = write_task(folder, "MRPC") / "train.tsv"
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"\t")])
    read_split(TASKS["MRPC"], folder, "train")


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
        return load_data(config, config.task_of_run())

    return call


def learned_rows(*rows: str) -> Call:
    """A validation file of these rows."""

    def call(folder: Path) -> Any:
        (folder / "dev.csv").write_text("\n".join(("text,other,label", *rows)))
        return of_file(validation_file=str(folder / "dev.csv"))(folder)

    return call


def same_rows_in_yaml(folder: Path) -> Any:
    (folder / "own.csv").write_text(LABELLED)
    task = "text: text\nlabel: label\nlabels: [a, b]\nsplits: {train: own.csv, dev: own.csv}\n"
    (folder / "own.yaml").write_text(task)
    config = RunConfig(task=str(folder / "own.yaml"), model="m", output_dir="o")
    return load_data(config, config.task_of_run())


OWN_DATA: list[tuple[str, Call]] = [
    ("train_file=no.csv: there is no such file", of_file(train_file="no.csv")),
    ("validation_file=no.csv: there is no such file", of_file(validation_file="no.csv")),
    ("text_columns: missing; the columns of .* are text, other, label", of_file(text_columns=None)),
    ("label_column: missing; the columns of .* are text, other, label", of_file(label_column=None)),
    ("line 1: no column 'txt'; the columns are text, other, label", of_file(text_columns="txt")),
    ("one or two columns other than the label's", of_file(text_columns="text,label")),
    ("line 2: column 'label' is blank; fill it in", of_file("text,other,label\nx,y, \n")),
    ("has 1 different labels, expected 2 to 100", of_file("text,other,label\nx,y,a\n")),
    ("has 0 different labels, expected 2 to 100", of_file("text,other,label\n")),
    (
        "has 101 different labels, .* a YAML file",
        of_file("text,other,label\n" + "".join(f"x,y,{n}\n" for n in range(101))),
    ),
    ("4 rows are too few to hold out a tenth", of_file(LABELLED)),
    (
        "own.csv: all 4 rows of dev .dev.csv. are in train .own.csv., so the score",
        learned_rows("z,y,b", "x,y,b", "y,y,a", "w,y,a"),
    ),
    # labels and columns that are not read make no difference
    ("own.csv: all 2 rows of dev", learned_rows("x,y,a", "w,z,b")),
    ("own: all 4 rows of dev .own.csv. are in train .*leave dev out", same_rows_in_yaml),
    ("task='RTE': not beside train_file", of_file(task="RTE")),
    ("data_dir='d': not beside train_file", of_file(data_dir="d")),
    ("text_columns='text': needs train_file", of_file(train_file=None, task="RTE")),
    ("task: missing; or name your labelled file as train_file", lambda _: RunConfig(**NOTHING)),
    ("tasks: missing; or name", swept(tasks=None)),
    (
        "task=own.csv: a file of rows is no task; give it as train_file",
        lambda _: get_task("own.csv"),
    ),
]

ENTRIES = [
    ("labels: [entails, contradicts]\n", "", "missing key 'labels'"),
    ("label: verdict", "lable: verdict", r"unknown key 'lable' \(did you mean 'label'\?\)"),
    ("label: verdict", "label: verdict\nhub: rte", "unknown key 'hub'"),
    ("label: verdict", "label: 3", "label must be a string, got 3"),
    ("label: verdict", "label: premise", "other than the label's"),
    ("[premise, hypothesis]", "[a, b, c]", "one or two columns"),
    ("[premise, hypothesis]", "[a, a]", "one or two columns"),
    ("[entails, contradicts]", "[yes, no]", "got True; put it in quotes"),
    ("[entails, contradicts]", "[1.0, 2.0]", "got 1.0; put it in quotes"),
    ("[entails, contradicts]", "[entails]", "two or more different"),
    ("[entails, contradicts]", "[entails, entails]", "two or more different"),
    ("[entails, contradicts]", "[]", "labels must not be empty"),
    ("dev: data/dev.csv", "test: test.csv", "`train` and for one or more dev sets"),
    ("{train: train.csv, dev: data/dev.csv}", "{dev: dev.csv}", "`train` and for one or more dev"),
    ("{train: train.csv, dev: data/dev.csv}", "train.csv", "splits must map"),
    ("label: verdict", "label: verdict\nmetrics: [pearson]", "metrics of a classification"),
    ("label: verdict", "label: verdict\nmetrics: []", "metrics must not be empty"),
    ("label: verdict", "label: verdict\nmain_metric: f1", "main_metric must be one of"),
    ("label: verdict", "label: verdict\ncolumns: [premise]", "must name 'hypothesis'"),
    ("[entails, contradicts]", "[a, b, c]\nmetrics: f1", "'f1' is for the second of two"),
    ("[premise, hypothesis]", "[premise", "line"),
    (ENTRY, "- text\n", r"expected the keys text, label.*got list"),
    (ENTRY, "", r"expected the keys text, label.*got NoneType"),
    # it is loaded safely
    (ENTRY, "text: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
]

OWN_FILES = [
    ("a.csv", "id,stars\n", r"line 1: no column 'review'; the columns are id, stars"),
    ("a.csv", "review;stars\nx;1\n", "line 1: no column 'review'; .*separated by semicolons"),
    ("a.tsv", "review,stars\nx,1\n", "line 1: no column 'review'; .*separated by commas"),
    ("a.csv", 'review,stars\n"a\nb",1\nc,3\n', "line 4: label '3' is not one of"),
    ("a.csv", 'review,stars\n"a\nb",1\n\nc\n', "line 5: expected 2 columns .* got 1"),
    ("a.csv", 'review,stars\nx,1\n"a,1\nb,1\n', "line 3: unexpected end of data"),
    ("a.csv", 'review,stars\n"a" b,1\n', "line 2: .*double any quote inside a field"),
    ("a.jsonl", f'{FILE}{{"review": "x"}}\n', "line 2: no column 'stars'"),
    ("a.jsonl", f'{FILE}\n{{"review":\n', "line 3: not JSON .*one object"),
    (
        "a.jsonl",
        '{"review": 5, "stars": 1}\n',
        "line 1: column 'review' holds 5, expected a string",
    ),
    ("a.jsonl", '{"review": "\\ud83d", "stars": 1}\n', "line 1: .*has half a character"),
    ("a.csv", "review,stars\nx,1\n  ,2\n,2\n", "line 3: column 'review' is blank, and 1 more"),
    ("a.jsonl", '{"review": "", "stars": 1}\n', "line 1: column 'review' is blank; fill it"),
    ("a.jsonl", '{"review": "x", "stars": null}\n', "line 1: label 'null' is not one of"),
    ("a.jsonl", '{"review": "x", "stars": true}\n', "line 1: label 'true' is not one of"),
    ("a.jsonl", "3\n", "line 1: expected an object, got int"),
    ("a.json", f"[{FILE}, []]", "record 2: expected an object, got list"),
    ("a.json", f"[{FILE.strip()},\n", "line 2: not JSON"),
]

GLUE_FILES = [
    ("RTE", 2, "not_entailment", "maybe", r"label 'maybe' is not one of \['entailment', 'not_ent"),
    ("MNLI", 2, "\tneutral", "\t-", "label '-' is not one of .*'contradiction'"),
    ("SST-2", 2, "\t0", "\t2", r"label '2' is not one of \['0', '1'\]"),
    ("CoLA", 1, "\t0\t", "\t\t", r"label '' is not one of"),
    ("STS-B", 2, "5.000", "high", "column 'score' holds 'high', expected a finite number"),
    ("STS-B", 2, "5.000", "nan", "column 'score' holds 'nan', expected a finite number"),
    ("STS-B", 2, "5.000", "", "column 'score' holds '', expected a finite number"),
    ("STS-B", 2, "5.000", "5.001", "score 5.001 is outside 0 to 5"),
    ("STS-B", 2, "5.000", "-1", "score -1 is outside 0 to 5"),
    ("MNLI", 1, "gold_label", "gold", r"no column 'gold_label'; the columns are index"),
    ("MNLI", 1, "gold_label", "sentence1", "more than one column 'sentence1'"),
]

SWEEPS: list[tuple[str, Call]] = [
    ("tasks=.*expected at least one", swept(tasks={})),
    ("tasks: expected each once", swept(tasks={"MRPC": None, "mrpc": None})),
    ("'MRCP'; the nearest: MRPC", swept(tasks={"MRCP": None})),
    ("learning_rates=.*expected at least one", swept(learning_rates=[])),
    ("train.learning_rate=-1.0: expected .* above 0", swept(learning_rates=[-1.0])),
    ("learning_rates=.*at least one, without duplicates", swept(learning_rates=[1e-5, 1e-5])),
    ("trials=1: expected at least one for each of the 2 learning_rates", swept(trials=1)),
    ("mappings.r-softmax: params: 3 combinations in 2 trials, so some would", swept(trials=2)),
    ("mappings.x: t=-1.0 is out of range", beside_softmax("t-softmax", {"t": [1.0, -1.0]})),
    ("seeds=0: expected at least 1", swept(seeds=0)),
    ("selection=1.0: expected a share", swept(selection=1.0)),
    (
        "expected plain 'softmax' among them, .* got r$",
        swept(mappings={"r": MAPPINGS["r-softmax"]}),
    ),
    (
        "expected plain 'softmax' among them",
        swept(mappings={"softmax": CandidateConfig("sparsemax", schedule=RAMP)}),
    ),
    ("plain 'softmax'", swept(mappings={"softmax": CandidateConfig("softmax", layers=[0])})),
    (
        "mappings.x: mapping='r-sotfmax' is unknown; did you mean r-softmax",
        beside_softmax("r-sotfmax"),
    ),
    (
        "mappings.x: the fair protocol ramps every mapping; .* mixed-sparsemax",
        beside_softmax("sparsemax"),
    ),
    (
        "mappings.x: the fair protocol ramps .* for mixed-sparsemax with",
        beside_softmax("mixed-sparsemax"),
    ),
    (
        "mappings.x: the fair protocol ramps every mapping; give it a schedule that moves",
        beside_softmax("r-softmax", {"r": [0.1]}, schedule=replace(RAMP, initial=0.1)),
    ),
    (
        r"mappings.x: params.r=\[\]: expected values, each once",
        beside_softmax("r-softmax", {"r": []}),
    ),
    (
        r"mappings.x: params.r=\[0.1, 0.1\]: expected values, each once",
        beside_softmax("r-softmax", {"r": [0.1, 0.1]}),
    ),
    (
        "the name 'a/b' must fit into file names",
        swept(mappings={**MAPPINGS, "a/b": MAPPINGS["r-softmax"]}),
    ),
    (
        "train.learning_rate=0.0001: .* give learning_rates",
        swept(train=replace(sweep().train, learning_rate=1e-4)),
    ),
    ("train.seed=3: .* give seeds", swept(train=replace(sweep().train, seed=3))),
]

ROWS = [
    *(
        Wrong(f"glue-entry-{number}", entry(old, new), ValueError, rf"/own\.yaml: .*{says}")
        for number, (old, new, says) in enumerate(ENTRIES)
    ),
    *(
        Wrong(f"glue-own-file-{number}", own_file(name, text), ValueError, f"/{name}, {says}")
        for number, (name, text, says) in enumerate(OWN_FILES)
    ),
    *(
        Wrong(
            f"glue-own-file-empty-{name}",
            own_file(name, text),
            ValueError,
            f"an empty dev set: .*/{name} holds no rows",
        )
        for name, text in (("a.json", "[]"), ("a.jsonl", ""), ("a.csv", ""))
    ),
    Wrong(
        "glue-own-file-of-another-kind",
        own_file("a.txt", "x\n"),
        ValueError,
        r"/a\.txt: expected a file \.tsv, \.csv, \.json or \.jsonl",
    ),
    *(
        Wrong(
            f"glue-{task}-{says}",
            glue_file(task, line, old, new),
            ValueError,
            rf"/{task}/train\.tsv, line {line}: {says}",
        )
        for task, line, old, new, says in GLUE_FILES
    ),
    *(
        Wrong(
            f"glue-empty-dev-set-{len(content)}",
            dev_file(content),
            ValueError,
            r"an empty dev set: .*dev\.tsv holds no rows",
        )
        for content in (b"", b"sentence\tlabel\n")
    ),
    Wrong(
        "glue-another-encoding",
        dev_file("sentence\tlabel\nplain\t0\nnaïve\t1\n".encode("latin-1")),
        ValueError,
        r"dev\.tsv, line 3: not UTF-8 \(.* at byte 3 of the line",
    ),
    Wrong(
        "glue-file-cut-short",
        cut_short,
        ValueError,
        r"train\.tsv, line 10: expected 5 columns \(Quality, .*\), got 4",
    ),
    Wrong(
        "glue-unknown-split",
        lambda folder: read_split(TASKS["MNLI"], folder, "dev"),
        ValueError,
        "MNLI has no split 'dev'; it has train, dev_matched, dev",
    ),
    Wrong(
        "glue-no-data-dir",
        lambda folder: read_split(TASKS["RTE"], None, "train"),
        ValueError,
        r"data_dir must name the folder of .*train\.tsv",
    ),
    Wrong(
        "glue-no-entry",
        lambda folder: get_task(folder / "absent.yml"),
        FileNotFoundError,
        r"there is no file .*absent\.yml",
    ),
    Wrong(
        "glue-no-task",
        lambda folder: get_task("wikipedia"),
        ValueError,
        r"unknown task 'wikipedia'; tasks are CoLA, .*WNLI",
    ),
    *(Wrong(f"glue-sweep-{says}", call, ValueError, says) for says, call in SWEEPS),
    *(
        Wrong(
            f"glue-own-data-{says}",
            call,
            FileNotFoundError if "no such file" in says else ValueError,
            says,
        )
        for says, call in OWN_DATA
    ),
]
