"""Wrong input to the language models: for each argument a call, and a word that its error has."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.language_modeling.__main__ import EXPERIMENT, main
from experiments.language_modeling.config import LanguageRunConfig, LanguageSweepConfig
from experiments.language_modeling.corpus import batchify, load_corpus
from experiments.language_modeling.dynamic import dynamic_evaluation, gradient_statistics
from experiments.language_modeling.measures import log_prob_matrix, mean_nll, top_k_error
from experiments.language_modeling.rank import exact_rank, numerical_rank
from experiments.language_modeling.sections import (
    CorpusConfig,
    DynamicConfig,
    HeadConfig,
    ModelConfig,
    StageConfig,
)
from experiments.language_modeling.simlex import simlex
from tests.bad_input import Wrong
from tests.experiments.language_modeling.toys import Bigram, Recurrent, stream, write_ptb

CONFIGS = Path(__file__).parents[3] / "configs/language_modeling"
FACTORED = f"--config {CONFIGS / 'heads/factored-spherical.yaml'}"


def train(options: str, folder: Path) -> None:
    """The command on a small corpus; nothing is written."""
    data = write_ptb(folder / "ptb", "a b <unk>\n" * 20)
    given = f"--config {CONFIGS / 'ptb-small.yaml'} --output_dir {folder / 'run'}"
    try:
        main(["train", *given.split(), "--corpus.data_dir", data, *options.split()])
    finally:
        assert not (folder / "run").exists()


def sweep(folder: Path, **changes: Any) -> None:
    """Up to its first run."""
    config = {
        "output_dir": str(folder / "sweep"),
        "corpus": CorpusConfig("ptb", write_ptb(folder / "ptb")),
        "heads": {"softmax": HeadConfig()},
        "learning_rates": [1.0],
        "model": ModelConfig(embedding=4, hidden=4, layers=1),
        "device": "cpu",
    }
    made = LanguageSweepConfig(**config | changes)
    EXPERIMENT.check(made, EXPERIMENT.plan(made))


def report(results: str | None, folder: Path) -> None:
    """Of a folder with such a results.json; nothing is written."""
    if results is not None:
        (folder / "results.json").write_text(results)
        (folder / "config.json").write_text("{}")
    try:
        main(["report", str(folder), "--output_dir", str(folder / "page")])
    finally:
        assert not (folder / "page").exists()


def corpus(files: dict[str, str], folder: Path) -> None:
    for file, content in files.items():
        (folder / file).write_bytes(content.encode("latin-1"))
    load_corpus(CorpusConfig("text8" if "text8" in files else "ptb", str(folder)))


def pairs(header: str, folder: Path, rows: int = 2) -> None:
    (folder / "SimLex-999.txt").write_text(f"{header}\neast\twest\t1\n", encoding="latin-1")
    simlex(torch.randn(rows, 2), ("east", "west"), folder / "SimLex-999.txt")


def of(function: Callable[..., object], *arguments: Any, **named: Any) -> Callable[[Path], object]:
    return lambda _: function(*arguments, **named)


MODEL, FLAT = Recurrent(), Bigram(torch.zeros(2, 2))
FLAT.head.weight.data.zero_()
FROZEN = Recurrent().requires_grad_(False)
FEW, TWO = DynamicConfig(batch=10), DynamicConfig(batch=1, segment=2)
TEXT = torch.tensor([0, 1, 2, 0, 0, 1, 1])
UNKNOWN = {"ptb.train.txt": "a b\n", "ptb.valid.txt": "a\n", "ptb.test.txt": "q\n"}
SOFTMAX, SPARSE = HeadConfig(), HeadConfig(mapping="sparsemax")
OPTIONS = {
    "--corpus.data_dir /nowhere": "no such folder",
    "--train.batch 0": r"train\.batch=0",
    "--train.batch 60": "at most",
    "--head.mapping sofmax": "did you mean softmax",
    "--head.mapping r-softmax": "infinite",
    "--head.kind mixture --head.components 0": r"head\.components=0",
    "--head.kind mixture --head.mapping bouchard": r"head\.kind=mixture",
    "--head.kind factored": r"head\.mapping='softmax'",
    "--head.params.r 0.1": "unknown parameter",
    "--model.last 30": "tie",
    "--checkpoint_steps 0": "checkpoint_steps=0",
    "--measures.rank_contexts 99": "contexts=99",
    "--measures.simlex nowhere.txt": r"nowhere\.txt",
    "--measures.dynamic {}": "batch=100",
    FACTORED: r"train\.optimizer='adam'",
    f"{FACTORED} --head.params.eps 0": r"head\.params",
    f"{FACTORED} --head.learn [eps]": r"head\.learn",
    f"{FACTORED} --head.tie true": r"head\.tie",
    f"{FACTORED} --train.optimizer sgd --train.average_from 0": r"train\.average_from=0",
}
RATES = {"learning_rates": [1.0, 2.0]}
REFUSED: dict[type[BaseException], list[tuple[Callable[[Path], object], str]]] = {
    SystemExit: [
        *((partial(train, options), says) for options, says in OPTIONS.items()),
        (partial(report, None), "no record"),
        (partial(report, "{"), "not readable"),
        (partial(report, "[1]"), "not a language model's run"),
    ],
    ValueError: [
        (partial(sweep, heads={"a": SOFTMAX}), "baseline"),
        (partial(sweep, heads={"softmax": SOFTMAX, "sparsemax": SPARSE}, **RATES), "sparsemax"),
        (partial(sweep, seeds=0), "seeds=0"),
        (partial(sweep, train=StageConfig(learning_rate=1.0)), "learning_rates"),
        (of(StageConfig, optimizer="adam", average_from=0), "optimizer"),
        (of(HeadConfig, start="prior", bias=False), "start"),
        (of(ModelConfig, kind="transformer", embedding=200, heads=3), r"model\.heads=3"),
        (of(CorpusConfig, vocabulary_size=2), r"corpus\.vocabulary_size=2"),
        (of(LanguageRunConfig, output_dir="", chunk=0), "chunk=0"),
        (of(LanguageRunConfig, output_dir="", seed=-1), "seed=-1"),
        (of(DynamicConfig, form="newer"), "form"),
        (of(DynamicConfig, lamb=-1.0), "lamb"),
        (of(DynamicConfig, lr=float("nan")), "lr"),
        (of(DynamicConfig, epsilon=0.0), "epsilon"),
        (of(DynamicConfig, segment=0), "segment"),
        (partial(corpus, UNKNOWN), "'q'"),
        (partial(corpus, UNKNOWN | {"ptb.test.txt": "a\né\n"}), r"ptb\.test\.txt, line 2"),
        (partial(corpus, {"text8": "Ã©"}), "ASCII"),
        (partial(corpus, {"text8": "abc"}), "3 characters"),
        (of(batchify, TEXT, 4), "batch=4"),
        (of(mean_nll, MODEL, TEXT, 0, 5), "batch=0"),
        (of(top_k_error, MODEL, TEXT, 1, 0), "segment=0"),
        (of(top_k_error, MODEL, TEXT, 1, 5, 0), "k=0"),
        (of(log_prob_matrix, MODEL, TEXT, 7, 5), "contexts=7"),
        (of(numerical_rank, torch.full((2, 2), float("nan"))), "finite"),
        (of(numerical_rank, torch.zeros(0, 4)), "shape"),
        (partial(pairs, "word1\tword2\tSimLex999", rows=3), "embeddings"),
        (partial(pairs, "a,b"), "SimLex999"),
        (of(dynamic_evaluation, MODEL, stream(19), stream(99), FEW), "batch=10"),
        (of(gradient_statistics, FROZEN, stream(99), FEW), "trainable"),
        (of(gradient_statistics, FLAT, TEXT[:3] % 2, TWO), "gradient"),
    ],
    TypeError: [(of(exact_rank, torch.eye(3)), "float64")],
    FileNotFoundError: [(partial(corpus, {"ptb.train.txt": "a <unk>\n"}), "no valid split")],
}
ROWS = [
    Wrong(f"language models: {number} {says}", call, error, says)
    for error, cases in REFUSED.items()
    for number, (call, says) in enumerate(cases)
]
