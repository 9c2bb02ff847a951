"""The sections of a config: corpus, head, model, stages of training, evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sparse_attn.engine.config import check_fields

INF = float("inf")
# losses of `FactoredSphericalHead`, by mapping; its squared error has no probabilities
OBJECTIVES = {
    "spherical-softmax": "spherical",
    "taylor-softmax": "taylor",
    "bouchard": "bouchard",
}


@dataclass(frozen=True)
class CorpusConfig:
    """Corpus to train on.

    Args:
        name: ptb, wikitext-2, text8 (characters) or one-billion-word.
        data_dir: folder with its files, such as ptb.train.txt; the hub by default.
        vocabulary_size: keep this many of the most frequent words, the others become <unk>; all by
            default.
    """

    name: Literal["ptb", "wikitext-2", "text8", "one-billion-word"] = "ptb"
    data_dir: str | None = None
    vocabulary_size: int | None = None

    def __post_init__(self) -> None:
        size = self.vocabulary_size
        check_fields(self, "corpus", vocabulary_size=(size is None or size > 2, "at least 3"))


@dataclass(frozen=True)
class HeadConfig:
    """The output layer.

    Args:
        kind: linear, mixture (see components), adaptive (see cutoffs) or factored: linear, trained
            by plain SGD at a cost independent of the vocabulary.
        mapping: a registered mapping, such as softmax, sigsoftmax, plif, taylor-softmax, or one
            that the experiment adds: relu-eps, or bouchard, softmax trained by Bouchard's bound. A
            factored head takes spherical-softmax, taylor-softmax or bouchard.
        params: mapping parameters, such as `--head.params.knots 1000`.
        learn: names of parameters to learn, such as `--head.learn "[bias]"`.
        mapping_lr: learning rate of the mapping; the stage's by default.
        bias: add a bias to the scores.
        tie: share the output weights with the embedding if the sizes agree.
        start: initial bias: zero, or prior (log word frequencies).
        components: number of mixture components.
        latent: size of a mixture's states; the embedding size by default.
        prior: mapping of the mixture weights; the mixture's default if omitted.
        dropout: dropout on a mixture's states.
        cutoffs: cumulative cluster sizes of the adaptive head, such as [2000, 10000].
    """

    kind: Literal["linear", "mixture", "adaptive", "factored"] = "linear"
    mapping: str = "softmax"
    params: dict[str, float] = field(default_factory=dict)
    learn: list[str] = field(default_factory=list)
    mapping_lr: float | None = None
    bias: bool = True
    tie: bool = True
    start: Literal["zero", "prior"] = "zero"
    components: int = 15
    latent: int | None = None
    prior: str | None = None
    dropout: float = 0.0
    cutoffs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        dense = self.kind != "factored"
        check_fields(
            self,
            "head",
            mapping=(
                dense or self.mapping in OBJECTIVES,
                f"{', '.join(OBJECTIVES)}: the mappings whose losses a factored head has",
            ),
            params=(
                dense or (set(self.params) <= {"eps"} and self.params.get("eps", INF) > 0),
                "eps alone in a factored head, and above 0",
            ),
            learn=(dense or not self.learn, "none: a factored head has a fixed mapping"),
            tie=(dense or not self.tie, "false: a factored head has weights of its own"),
            mapping_lr=(self.mapping_lr is None or 0 <= self.mapping_lr < INF, "0 or more"),
            counts=("components",),
            dropout=(0 <= self.dropout < 1, "a number in [0, 1)"),
            cutoffs=(self.kind != "adaptive" or self.cutoffs != [], "the clusters of the head"),
            start=(
                self.start == "zero" or (self.bias and self.kind != "adaptive"),
                "zero: only a linear or mixture head with a bias starts at the prior",
            ),
        )

    @property
    def name(self) -> str:
        """Short name of the head: softmax, sigsoftmax-bias, mos, moss, mos-plif, ..."""
        mapping = "-".join((self.mapping, *self.learn))
        if self.kind == "mixture":
            return {"softmax": "mos", "sigsoftmax": "moss"}.get(mapping, f"mos-{mapping}")
        return mapping if self.kind == "linear" else f"{self.kind}-{mapping}"


@dataclass(frozen=True)
class ModelConfig:
    """The network below the head.

    Args:
        kind: lstm (AWD-LSTM; a plain LSTM with all dropouts 0), feed-forward or transformer.
        embedding: size of the word embeddings.
        hidden: size of a hidden layer.
        layers: number of hidden layers.
        last: size of an LSTM's last layer; the embedding size by default.
        dropout: dropout on the last layer's output.
        dropout_hidden: dropout between layers.
        dropout_input: dropout on the embedding's output.
        dropout_embedding: share of words whose embedding is dropped in a batch.
        weight_drop: share of an LSTM's hidden-to-hidden weights dropped in a batch.
        alpha: activation regularisation, the weight of the mean squared last output (AR).
        beta: temporal activation regularisation, on its change between words (TAR).
        context: number of words the feed-forward model sees.
        heads: attention heads of the Transformer.
        output_std: standard deviation of the feed-forward model's initial output weights; some
            mappings have no gradient at 0.
    """

    kind: Literal["lstm", "feed-forward", "transformer"] = "lstm"
    embedding: int = 400
    hidden: int = 1150
    layers: int = 3
    last: int | None = None
    dropout: float = 0.0
    dropout_hidden: float = 0.0
    dropout_input: float = 0.0
    dropout_embedding: float = 0.0
    weight_drop: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0
    context: int = 6
    heads: int = 4
    output_std: float = 0.0

    def __post_init__(self) -> None:
        shares = [name for name in self.__dataclass_fields__ if "drop" in name]
        check_fields(
            self,
            "model",
            **{name: (0 <= getattr(self, name) < 1, "a number in [0, 1)") for name in shares},
            counts=("embedding", "hidden", "context"),
            layers=(self.layers >= (self.kind == "lstm"), "a number of layers"),
            heads=(
                self.kind != "transformer" or self.embedding % self.heads == 0,
                f"a divisor of model.embedding={self.embedding}",
            ),
            output_std=(self.output_std >= 0, "0 or more"),
        )

    @property
    def output(self) -> int:
        """Size of the head's input."""
        if self.kind == "feed-forward":
            return self.hidden if self.layers else self.context * self.embedding
        last = self.last if self.kind == "lstm" else None
        return self.embedding if last is None else last


@dataclass(frozen=True)
class StageConfig:
    """How to train a stage; `finetune` adds a second one.

    Args:
        optimizer: sgd or adam.
        learning_rate: peak learning rate.
        schedule: constant, or linear decay to 0.
        warmup_steps: steps of linear warmup from 0.
        average_from: average the weights (ASGD) from this epoch on, counted from 0; trigger: once
            the validation loss exceeds the lowest of all but the last `patience` epochs; or never.
        patience: most recent epochs that the trigger ignores.
        stop_on_trigger: end the stage when the trigger fires while averaging, or if averaging is
            off.
        batch: number of parallel streams of training text.
        bptt: tokens per stream and step.
        vary: draw bptt at random in each step, as in AWD-LSTM, and scale the learning rate with it.
        longest: most tokens above bptt that vary may draw; no limit by default.
        clip: maximum gradient norm; None disables clipping.
        weight_decay: weight decay of all parameters.
        epochs: passes over the training text.
        max_steps: stop after this many steps, if sooner.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 30.0
    schedule: Literal["constant", "linear"] = "constant"
    warmup_steps: int = 0
    average_from: int | Literal["never", "trigger"] = "never"
    patience: int = 5
    stop_on_trigger: bool = False
    batch: int = 20
    bptt: int = 70
    vary: bool = False
    longest: int | None = None
    clip: float | None = 0.25
    weight_decay: float = 0.0
    epochs: int = 1
    max_steps: int | None = None

    def __post_init__(self) -> None:
        averages = self.average_from != "never"
        from_epoch = self.average_from if isinstance(self.average_from, int) else 0
        check_fields(
            self,
            "train",
            learning_rate=(0 < self.learning_rate < INF, "a finite number above 0"),
            warmup_steps=(self.warmup_steps >= 0, "0 or more"),
            optimizer=(not averages or self.optimizer == "sgd", "sgd, whose weights are averaged"),
            average_from=(from_epoch >= 0, "an epoch from 0 on, trigger or never"),
            counts=("patience", "batch", "bptt", "epochs", "max_steps"),
            longest=(self.longest is None or self.longest >= 0, "0 or more"),
            clip=(self.clip is None or self.clip > 0, "above 0"),
            weight_decay=(0 <= self.weight_decay < INF, "0 or more"),
        )


@dataclass(frozen=True)
class EvaluationConfig:
    """How perplexity is computed.

    Args:
        batch: parallel streams of validation text.
        test_batch: parallel streams of test text; with 1 every word is read.
        segment: tokens per stream and forward pass.
    """

    batch: int = 10
    test_batch: int = 1
    segment: int = 70

    def __post_init__(self) -> None:
        check_fields(self, "evaluation", counts=("batch", "test_batch", "segment"))


class Rates(NamedTuple):
    """Defaults of an update in dynamic evaluation."""

    lamb: float
    lr: float
    epsilon: float


# defaults of benkrause/dynamic-evaluation, and of the version in MoS's code
RATES = {"new": Rates(2e-3, 5e-5, 2e-5), "old": Rates(2e-2, 2e-3, 1e-3)}


@dataclass(frozen=True)
class DynamicConfig:
    """Dynamic evaluation.

    The forms differ in G and rho, computed over the B segments of the training set:
    new: G = sqrt(mean_B g^2), rho = G / (mean of the mean G of each tensor).
    old: G = sqrt(sum_B g^2), rho = G / (sum of the mean G of each tensor).
    So new equals old with lamb / (number of tensors), lr / sqrt(B), epsilon / sqrt(B).

    Args:
        form: new, as in the current code; old, as in MoS's code, which the papers used (MoS on PTB:
            lamb 0.075; on WikiText-2: epsilon 0.002).
        lamb: decay towards the trained weights, at least 0. Default: new 0.002, old 0.02.
        lr: learning rate, at least 0. Default: new 5e-5, old 0.002.
        epsilon: added to G, above 0. Default: new 2e-5, old 0.001.
        segment: tokens scored before each update.
        batch: rows of the training stream for computing G.
    """

    form: Literal["new", "old"] = "new"
    lamb: float | None = None
    lr: float | None = None
    epsilon: float | None = None
    segment: int = 5
    batch: int = 100

    def __post_init__(self) -> None:
        check_fields(self, "dynamic", form=(self.form in RATES, "new or old"))
        lamb, lr, epsilon = self.rates
        check_fields(
            self,
            "dynamic",
            lamb=(0 <= lamb < INF, "a finite number from 0 on"),
            lr=(0 <= lr < INF, "a finite number from 0 on"),
            epsilon=(0 < epsilon < INF, "a finite number above 0"),
            counts=("segment", "batch"),
        )

    @property
    def rates(self) -> Rates:
        """The given numbers, completed by the defaults of the form."""
        given = zip((self.lamb, self.lr, self.epsilon), RATES[self.form], strict=True)
        return Rates(*(default if value is None else value for value, default in given))
