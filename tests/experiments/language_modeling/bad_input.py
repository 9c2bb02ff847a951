"""Wrong input to the language models."""

import math
from collections.abc import Callable
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
CONFIG = CONFIGS / "ptb-small.yaml"
FACTORED = ("--config", str(CONFIGS / "heads/factored-spherical.yaml"))


def train(*arguments: str) -> Callable[[Path], None]:
    """The command on a small corpus; nothing is written."""

    def call(folder: Path) -> None:
        data = write_ptb(folder / "ptb", "a b <unk>\n" * 20)
        given = ["--config", CONFIG, "--output_dir", folder / "run", "--corpus.data_dir", data]
        try:
            main(["train", *map(str, given), *arguments])
        finally:
            assert not (folder / "run").exists()

    return call


def sweep(**changes: Any) -> Callable[[Path], None]:
    """Up to its first run."""

    def call(folder: Path) -> None:
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

    return call


def report(**files: str) -> Callable[[Path], None]:
    def call(folder: Path) -> None:
        for name, content in files.items():
            (folder / "a" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "a" / f"{name}.json").write_text(content)
        try:
            main(["report", str(folder), "--output_dir", str(folder / "page")])
        finally:
            assert not (folder / "page").exists()

    return call


def corpus(name: str, **files: str) -> Callable[[Path], object]:
    def call(folder: Path) -> object:
        for file, content in files.items():
            (folder / (file if name == "text8" else f"ptb.{file}.txt")).write_bytes(
                content.encode("latin-1")
            )
        return load_corpus(CorpusConfig(name, str(folder)))  # type: ignore[arg-type]

    return call


def pairs(rows: int, header: str | None) -> Callable[[Path], object]:
    def call(folder: Path) -> object:
        path = folder / "SimLex-999.txt"
        if header is not None:
            path.write_text(f"{header}\neast\twest\t1\n", encoding="latin-1")
        return simlex(torch.randn(rows, 2), ("east", "west"), path)

    return call


def of(function: Callable[..., object], *arguments: Any) -> Callable[[Path], object]:
    return lambda _: function(*arguments)


def made(config: type, **fields: Any) -> Callable[[Path], object]:
    return lambda _: config(**fields)


MODEL, FLAT = Recurrent(), Bigram(torch.zeros(2, 2))
FLAT.head.weight.data.zero_()
FEW, TWO = DynamicConfig(batch=10), DynamicConfig(batch=1, segment=2)
EYE, EXACT = torch.eye(3), torch.eye(3).double()
HEADER = "word1\tword2\tSimLex999"
TEXT = torch.tensor([0, 1, 2, 0, 0, 1, 1])
UNKNOWN = {"train": "a b\n", "valid": "a\n", "test": "q\n"}
SOFTMAX, SPARSE = HeadConfig(), HeadConfig(mapping="sparsemax")
PLIF = HeadConfig(mapping="plif", params={"knots": -1})

REFUSED: dict[type[BaseException], list[tuple[Callable[[Path], object], str]]] = {
    SystemExit: [
        (train("--corpus.data_dir", "/nowhere"), "error: .*no such folder; expected ptb.train.txt"),
        (train("--train.batch", "0"), r"train\.batch=0: expected at least 1"),
        (train("--head.mapping", "sofmax"), "did you mean softmax"),
        (train("--head.kind", "mixture", "--head.components", "0"), r"head\.components=0"),
        (train("--head.params.r", "0.1"), "unknown parameter; softmax takes sink"),
        (train("--model.last", "30"), r"tie: expected shape \(4, 30\)"),
        (train("--train.batch", "60"), "batch=60: expected at most"),
        (train("--measures.rank_contexts", "99"), "contexts=99: expected 1 to 79"),
        (train("--measures.simlex", "nowhere.txt"), "nowhere.txt: No such file"),
        (train("--measures.dynamic", "{}"), "batch=100: expected at most 40"),
        (
            train("--head.kind", "factored"),
            r"head\.mapping='softmax': expected spherical-softmax, ",
        ),
        (train(*FACTORED, "--head.mapping", "mse"), "expected spherical-softmax, taylor-softmax"),
        (
            train(*FACTORED, "--head.params.eps", "0"),
            r"head\.params={'eps': 0.0}: expected eps alone",
        ),
        (train(*FACTORED, "--head.params.center", "1.5"), r"'center': 1.5}: expected eps alone"),
        (train(*FACTORED, "--head.learn", "[eps]"), r"head\.learn=\['eps'\]: expected none"),
        (train(*FACTORED, "--head.tie", "true"), r"head\.tie=True: expected false"),
        (train(*FACTORED), r"train\.optimizer='adam': expected sgd: a factored head"),
        (
            train(*FACTORED, "--train.optimizer", "sgd", "--train.average_from", "0"),
            r"train\.average_from=0: expected never: a factored head",
        ),
        (
            train("--head.kind", "mixture", "--head.mapping", "bouchard"),
            r"head\.kind=mixture: it trains by -log p, and bouchard by a loss of its own",
        ),
        (train("--head.mapping", "r-softmax"), "returns zeros, whose -log p is infinite"),
        (report(), "holds no record of a run"),
        (report(config="{"), r"config\.json is not readable"),
        (report(config="[1]"), r"config\.json: not of a run"),
        (report(config="{}"), r"a: not a language model's run \('head'\); move it away"),
    ],
    ValueError: [
        (sweep(heads={"a": SOFTMAX}), "expected the baseline 'softmax' among"),
        (sweep(heads={"softmax": SOFTMAX, "a/b": SOFTMAX}), "'a/b' must fit into file names"),
        (sweep(heads={"softmax": SOFTMAX, "plif": PLIF}), r"heads\.plif: knots=-1"),
        (sweep(learning_rates=[]), r"learning_rates=\[\]: expected at least one"),
        (sweep(learning_rates=[1.0, 1.0]), "without duplicates"),
        (sweep(learning_rates=[0.0]), r"train\.learning_rate=0.0: expected a finite"),
        (sweep(seeds=0), "seeds=0: expected at least 1"),
        (sweep(train=StageConfig(learning_rate=1.0)), "give learning_rates"),
        (
            sweep(heads={"softmax": SOFTMAX, "sparsemax": SPARSE}, learning_rates=[1.0, 2.0]),
            r"expected one for heads\.sparsemax",
        ),
        (made(StageConfig, optimizer="adam", average_from=0), "optimizer='adam': expected sgd"),
        (made(HeadConfig, start="prior", bias=False), "only a linear or mixture head with a bias"),
        (
            made(ModelConfig, kind="transformer", embedding=200, heads=3),
            r"model\.heads=3: expected a divisor of model\.embedding=200",
        ),
        (made(CorpusConfig, vocabulary_size=2), r"corpus\.vocabulary_size=2: expected at least 3"),
        (made(LanguageRunConfig, output_dir="", chunk=0), "chunk=0: expected at least 1"),
        (made(LanguageRunConfig, output_dir="", seed=-1), "seed=-1: expected an integer"),
        *(
            (made(DynamicConfig, **{name: value}), f"{name}={value!r}: expected")
            for name, value in (
                *(("form", "newer"), ("lamb", -1.0), ("lr", math.inf), ("lr", math.nan)),
                *(("epsilon", 0.0), ("segment", 0), ("batch", 0)),
            )
        ),
        (made(DynamicConfig, lr=1.0, choose=True), "choose=True: expected neither lr nor lamb"),
        (corpus("ptb", **UNKNOWN), "'q' is not in the training split, which has no <unk>"),
        (corpus("ptb", **{**UNKNOWN, "test": "a\né\n"}), "ptb.test.txt, line 2: not UTF-8"),
        (corpus("text8", text8="é"), "text8, line 1: not UTF-8"),
        (corpus("text8", text8="Ã©"), "text8: not ASCII; expected"),
        (corpus("text8", text8="abc"), "3 characters, expected more than 10000000"),
        (of(batchify, TEXT, 4), "batch=4: expected at most 3, half the 7 tokens"),
        (of(mean_nll, MODEL, TEXT, 0, 5), "batch=0, segment=5"),
        (of(top_k_error, MODEL, TEXT, 1, 0), "batch=1, segment=0"),
        (of(mean_nll, MODEL, TEXT, 4, 5), "batch=4"),
        (of(top_k_error, MODEL, TEXT, 1, 5, 0), "k=0"),
        (of(log_prob_matrix, MODEL, TEXT, 0, 5), "contexts=0: expected 1 to 6"),
        (of(log_prob_matrix, MODEL, TEXT, 7, 5), "contexts=7: expected 1 to 6"),
        *((of(numerical_rank, EYE * x), "finite") for x in (math.nan, math.inf, -math.inf)),
        *(
            (of(numerical_rank, torch.zeros(shape)), "expected M x T numbers")
            for shape in ((3,), (0, 4), (2, 3, 4))
        ),
        (of(exact_rank, EXACT * math.nan), "expected finite numbers"),
        (pairs(3, HEADER), r"one row for each of 2 words, got shape \(3, 2\)"),
        (pairs(2, "wörd1"), "SimLex-999.txt, line 1: not UTF-8"),
        (pairs(2, "a,b"), "no column word1, word2, SimLex999"),
        (of(dynamic_evaluation, MODEL, stream(19), stream(99), FEW), "batch=10"),
        (of(gradient_statistics, Recurrent().requires_grad_(False), stream(99), FEW), "no param"),
        (of(gradient_statistics, FLAT, TEXT[:3] % 2, TWO), "every gradient on train_stream is 0"),
    ],
    TypeError: [(of(exact_rank, EYE), r"expected torch\.float64, got torch\.float32")],
    FileNotFoundError: [
        (
            corpus("ptb", train="a <unk>\n", test="a\n"),
            r"no valid split of ptb: expected ptb\.valid\.txt; the folder holds ptb\.test\.txt, "
            r"ptb\.train\.txt\. Expected layout: ptb\.train\.txt, ptb\.valid\.txt",
        ),
        (pairs(2, None), "SimLex-999.txt"),
    ],
}
ROWS = [
    Wrong(f"language models: {number} {says}", call, error, says)
    for error, cases in REFUSED.items()
    for number, (call, says) in enumerate(cases)
]
