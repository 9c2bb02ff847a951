"""Wrong texts, pairs, models, ways and mappings of conversions that are compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, T5Config, T5Model

from experiments.conversion.__main__ import EXPERIMENT
from experiments.conversion.config import ConversionSweepConfig
from experiments.conversion.ways import FROZEN, LEARNED
from sparse_attn.evaluation.predictions import DivergedError
from tests.bad_input import Wrong
from tests.experiments.conversion.tiny import BUDGET, one, write
from tests.letters import letter_tokenizer

Call = Callable[[Path], Any]
WORDS = len(letter_tokenizer())


def given(**changes: Any) -> Call:
    """A run that is refused before it starts; {} is the folder."""

    def call(folder: Path) -> Any:
        placed = {k: v.format(folder) if isinstance(v, str) else v for k, v in changes.items()}
        return EXPERIMENT.assemble(one(**{**write(folder), **placed}))

    return call


def holding(name: str, *lines: str) -> Call:
    """Texts or pairs with these lines."""

    def call(folder: Path) -> Any:
        files = write(folder)
        Path(files[name]).write_text("\n".join(lines))
        return EXPERIMENT.assemble(one(**files))

    return call


def model(made: Callable[[], Any], **changes: Any) -> Call:
    """Another model with the same tokenizer."""

    def call(folder: Path) -> Any:
        files = write(folder)
        made().save_pretrained(files["model"])
        return EXPERIMENT.assemble(one(**files, **changes))

    return call


def gpt2() -> GPT2Model:
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    return GPT2Model(GPT2Config(vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2, **ends))


def t5() -> T5Model:
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return T5Model(T5Config(vocab_size=WORDS, **sizes))


def of_five_tokens() -> BertModel:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertModel(BertConfig(vocab_size=5, intermediate_size=8, **sizes))


def swept(**changes: Any) -> Call:
    def call(folder: Path) -> Any:
        shared = {**BUDGET, **write(folder), "output_dir": str(folder / "out")}
        config = ConversionSweepConfig(**{**shared, **changes})
        return EXPERIMENT.check(config, EXPERIMENT.plan(config))

    return call


def performed(**changes: Any) -> Call:
    def call(folder: Path) -> Any:
        return EXPERIMENT.assemble(one(**write(folder), **changes)).perform(None)

    return call


HEADER = "sentence1\tsentence2\tscore"
NO_DIAL = "mapping='sparsemax': has no parameter that sets its zeros; expected one of .*entmax"
CASES: list[tuple[str, Call, str]] = [
    ("no texts", given(texts="{}/none.txt"), "--texts .*none.txt: there is no such file"),
    ("empty texts", holding("texts", "", " "), "--texts .*texts.txt: holds no text"),
    ("few texts", holding("texts", *"abc"), "--texts .*texts.txt: expected at least 64 .* got 3"),
    ("no pairs", given(pairs="{}/none.tsv"), "--pairs .*none.tsv: there is no such file"),
    (
        "pairs without scores",
        holding("pairs", "sentence1\tsentence2", "a\tb"),
        "pairs.tsv, line 1: no column 'score'",
    ),
    ("equal scores", holding("pairs", HEADER, "a\tb\t1", "c\td\t1"), "every row has the score 1"),
    ("no model", given(model="{}/none"), "MODEL=.*none"),
    ("encoder and decoder", model(t5), "has an encoder and a decoder; name a sentence encoder"),
    ("tokenizer of another model", model(of_five_tokens), "MODEL knows 5 tokens"),
    (
        "fused projections",
        model(gpt2, way=FROZEN),
        "way='frozen queries and keys': GPT2Model .* h.0.attn; leave out this way",
    ),
    (
        "learned k",
        given(mapping="top-k-softmax", way=LEARNED),
        "way='learned per head': k of top-k-softmax cannot be learned; leave out this way",
    ),
    ("way", given(way="distiled"), "way='distiled': expected one of untrained; .*distilled"),
    ("mapping", given(mapping="entmaxx"), "entmaxx.*did you mean.*entmax"),
    ("no dial", given(mapping="sparsemax"), NO_DIAL),
    ("target", given(target_zeros=90.0), r"target_zeros=90.0: expected a share in \(0, 1\)"),
    ("rate", given(learning_rate=0.0), "learning_rate=0.0: expected a finite number above 0"),
    ("batch", given(batch_size=1), "batch_size=1: expected at least 2, for texts to contrast"),
    ("steps", given(steps=0), "steps=0: expected at least 1"),
    ("seed", given(seed=-1), "seed=-1: expected an integer"),
    ("ways", swept(ways=["untrained", "distiled"]), "way='distiled': expected one of"),
    ("way twice", swept(ways=["untrained"] * 2), r"ways=\['untrained', 'untrained'\]: .*each once"),
    ("seeds", swept(seeds=0), "seeds=0: expected at least 1"),
    (
        "sweep without texts",
        swept(texts="none.txt", ways=["uniform"]),
        "uniform on pairs: --texts none.txt: there is no such file",
    ),
    (
        "target out of reach",
        performed(target_zeros=0.97),
        "target_zeros=0.97: entmax reaches .*lower the target",
    ),
    *(
        (
            f"target out of reach, {way}",
            performed(target_zeros=target, way=way),
            rf"target_zeros={target}: {name} reaches 0\.\d+ with one {dial} for all layers; lower",
        )
        for way, name, dial, target in (
            ("uniform", "entmax", "alpha", 0.97),
            ("random drop", "random-drop-softmax", "r", 0.99),
        )
    ),
]
DIVERGED = [
    (f"diverged, {way}", performed(learning_rate=1e30, way=way), "; lower learning_rate")
    for way in ("distilled", "learned per head", "continued training")
]
ROWS = [
    Wrong(f"conversion: {name}", call, error, says)
    for error, cases in ((ValueError, CASES), (DivergedError, DIVERGED))
    for name, call, says in cases
]
