"""Wrong input to the language models."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments.language_modeling.__main__ import EXPERIMENT, main
from experiments.language_modeling.config import RunConfig, SweepConfig
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

CONFIG = Path(__file__).parents[3] / "configs/language_modeling/ptb-small.yaml"


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
        made = SweepConfig(**config | changes)
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
            path = folder / (file if name == "text8" else f"ptb.{file}.txt")
            path.write_text(content, encoding="utf-8")
        return load_corpus(CorpusConfig(name, str(folder)))  # type: ignore[arg-type]

    return call


def pairs(rows: int, header: str) -> Callable[[Path], object]:
    def call(folder: Path) -> object:
        path = folder / "SimLex-999.txt"
        path.write_text(f"{header}\neast\twest\t1\n")
        return simlex(torch.randn(rows, 2), ("east", "west"), path)

    return call


def still(frozen: bool) -> object:
    """Statistics of a model without parameters to train, or without gradients."""
    flat = Bigram(torch.zeros(2, 2)).requires_grad_(not frozen)
    with torch.no_grad():
        flat.head.weight.zero_()
    return gradient_statistics(flat, torch.tensor([0, 1, 0]), DynamicConfig(batch=1, segment=2))


FEW = DynamicConfig(batch=10)
EYE = torch.eye(3)
HEADER = "word1\tword2\tSimLex999"
TEXT = torch.tensor([0, 1, 2, 0, 0, 1, 1])
NO_TEST = {"train": "a b <unk>\n", "valid": "a\n"}
SPARSE = {"softmax": HeadConfig(), "sparsemax": HeadConfig(mapping="sparsemax")}
PLIF = {"softmax": HeadConfig(), "plif": HeadConfig(mapping="plif", params={"knots": -1})}

ROWS = [
    *(
        Wrong(f"language models: train {name}", train(*words), SystemExit, says)
        for name, words, says in (
            ("folder", ["--corpus.data_dir", "/nowhere"], "error: .*no such folder"),
            ("batch 0", ["--train.batch", "0"], r"train\.batch=0: expected at least 1"),
            ("mapping", ["--head.mapping", "sofmax"], "did you mean softmax"),
            ("components", ["--head.kind", "mixture", "--head.components", "0"], "components=0"),
            ("params", ["--head.params.r", "0.1"], "unknown parameter; softmax takes no param"),
            ("tie", ["--model.last", "30"], r"tie: expected shape \(4, 30\)"),
            ("batch 60", ["--train.batch", "60"], "batch=60: expected at most"),
            ("contexts", ["--measures.rank_contexts", "99"], "contexts=99: expected 1 to 79"),
            ("simlex", ["--measures.simlex", "nowhere.txt"], "No such file.*nowhere.txt"),
            ("dynamic", ["--measures.dynamic", "{}"], "batch=100: expected at most 40"),
            ("zeros", ["--head.mapping", "r-softmax"], "returns zeros, whose -log p cannot train"),
        )
    ),
    *(
        Wrong(f"language models: sweep {name}", sweep(**changes), ValueError, says)
        for name, changes, says in (
            ("without softmax", {"heads": {"a": HeadConfig()}}, "expected 'softmax' among them"),
            ("label", {"heads": {"softmax": HeadConfig(), "a/b": HeadConfig()}}, "name files"),
            ("rates", {"learning_rates": []}, r"learning_rates=\[\]: expected one at least"),
            ("twice", {"learning_rates": [1.0, 1.0]}, "each once"),
            ("rate", {"learning_rates": [0.0]}, r"train\.learning_rate=0.0: expected a finite"),
            ("seeds", {"seeds": 0}, "seeds=0: expected at least 1"),
            ("rate apart", {"train": StageConfig(learning_rate=1.0)}, "give learning_rates"),
            ("head", {"heads": PLIF}, "plif on ptb: knots=-1"),
            ("zeros", {"heads": SPARSE, "learning_rates": [1.0, 2.0]}, "expected one for sparsem"),
        )
    ),
    *(
        Wrong(f"language models: config {name}", lambda _, make=make: make(), ValueError, says)
        for name, make, says in (
            (
                "averaging Adam",
                lambda: StageConfig(optimizer="adam", average_from=0),
                r"train\.optimizer='adam': expected sgd",
            ),
            (
                "start",
                lambda: HeadConfig(start="prior", bias=False),
                "only a linear or mixture head with a bias",
            ),
            (
                "heads",
                lambda: ModelConfig(kind="transformer", embedding=200, heads=3),
                r"model\.heads=3: expected a divisor of model\.embedding=200",
            ),
            ("words", lambda: CorpusConfig(vocabulary_size=2), r"size=2: expected at least 3"),
            ("chunk", lambda: RunConfig("", chunk=0), "chunk=0: expected at least 1"),
            ("seed", lambda: RunConfig("", seed=-1), "seed=-1: expected a whole number"),
            ("form", lambda: DynamicConfig("newer"), "form='newer': expected new"),  # type: ignore
            ("lamb", lambda: DynamicConfig(lamb=-1.0), "lamb=-1.0"),
            ("lr inf", lambda: DynamicConfig(lr=math.inf), "lr=inf"),
            ("lr nan", lambda: DynamicConfig(lr=math.nan), "lr=nan"),
            ("epsilon", lambda: DynamicConfig(epsilon=0.0), "epsilon=0.0"),
            ("segment", lambda: DynamicConfig(segment=0), "segment=0"),
            ("batch", lambda: DynamicConfig(batch=0), "batch=0"),
            ("choose", lambda: DynamicConfig(lr=1.0, choose=True), "choose=True: expected neither"),
        )
    ),
    *(
        Wrong(f"language models: {name}", call, error, says)
        for name, call, error, says in (
            ("no report", report(), SystemExit, "holds no record of a run"),
            ("broken", report(config="{"), SystemExit, r"config\.json: not readable"),
            ("list", report(config="[1]"), SystemExit, r"config\.json: not of a run"),
            ("no head", report(config="{}"), SystemExit, r"a: not the folder of a run \('head'\)"),
            ("no split", corpus("ptb", **NO_TEST), FileNotFoundError, r"no test split .*ptb\.test"),
            (
                "unknown word",
                corpus("ptb", train="a b\n", valid="a\n", test="q\n"),
                ValueError,
                "'q' is not in the training split, which has no <unk>",
            ),
            ("text8", corpus("text8", text8="abc"), ValueError, "3 characters, expected more than"),
            (
                "batchify",
                lambda _: batchify(torch.arange(7), 4),
                ValueError,
                "batch=4: expected at most 3, half the 7 tokens",
            ),
            (
                "batch",
                lambda _: mean_nll(Recurrent(), TEXT, 0, 5),
                ValueError,
                "batch=0, seg",
            ),
            ("segment", lambda _: top_k_error(Recurrent(), TEXT, 1, 0), ValueError, "segment=0"),
            ("rows", lambda _: mean_nll(Recurrent(), TEXT, 4, 5), ValueError, "batch=4"),
            ("k", lambda _: top_k_error(Recurrent(), TEXT, 1, 5, k=0), ValueError, "k=0: expected"),
            *(
                (
                    f"{contexts} contexts",
                    lambda _, contexts=contexts: log_prob_matrix(Recurrent(), TEXT, contexts, 5),
                    ValueError,
                    rf"contexts={contexts}: expected 1 to 6",
                )
                for contexts in (0, 7)
            ),
            *(
                (
                    f"rank of {value}",
                    lambda _, value=value: numerical_rank(EYE * value),
                    ValueError,
                    "finite numbers",
                )
                for value in (math.nan, math.inf, -math.inf)
            ),
            *(
                (
                    f"rank of {shape}",
                    lambda _, shape=shape: numerical_rank(torch.zeros(shape)),
                    ValueError,
                    "expected M x T numbers",
                )
                for shape in ((3,), (0, 4), (2, 3, 4))
            ),
            ("float32", lambda _: exact_rank(EYE), TypeError, r"expected torch\.float64, got torc"),
            (
                "float64",
                lambda _: exact_rank(EYE.double() * math.nan),
                ValueError,
                "expected finite numbers",
            ),
            (
                "embeddings",
                pairs(3, HEADER),
                ValueError,
                r"each of 2 words, got shape \(3, 2\)",
            ),
            ("columns", pairs(2, "a,b"), ValueError, "no column word1, word2, SimLex999"),
            (
                "no SimLex",
                lambda folder: simlex(torch.zeros(0, 2), (), folder / "x.txt"),
                FileNotFoundError,
                r"x\.txt",
            ),
            (
                "short text",
                lambda _: dynamic_evaluation(Recurrent(), stream(19), stream(99), FEW),
                ValueError,
                "batch=10",
            ),
            ("frozen", lambda _: still(frozen=True), ValueError, "no parameter is trained"),
            ("no slope", lambda _: still(frozen=False), ValueError, "every gradient on train_str"),
        )
    ),
]
