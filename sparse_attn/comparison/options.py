"""Options of a comparison; imports nothing heavy, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sparse_attn.evaluation.text_files import SUFFIXES, column_names
from sparse_attn.system.hub import is_hub_id

MAPPINGS = (
    "r-softmax:r=0.5,t-softmax:t=4,entmax:alpha=1.25,entmax:alpha=1.5,sparsemax",
    "top-p-softmax:p=0.9,top-p-softmax:p=0.5,clipped-softmax:alpha=0.25,softpick",
)
TEXTS = (
    ".txt with a text a line, or .tsv, .csv, .json or .jsonl with a column `text`, or for a model "
    "of pairs `sentence1` and `sentence2`"
)
PAIRS = (
    ".tsv, .csv, .json or .jsonl with the columns `sentence1`, `sentence2` and `score`, as the "
    "STS benchmark's"
)


@dataclass(frozen=True)
class Given:
    """Options for the model and its inputs."""

    model: str
    texts: Path | None
    pairs: Path | None
    task: str | None
    data_dir: Path | None
    trust_remote_code: bool
    text_columns: str | None = field(default=None, kw_only=True)
    label_column: str | None = field(default=None, kw_only=True)

    @property
    def uses_hub(self) -> bool:
        """Whether model or data may come from the hub."""
        from_hub = self.task is not None and self.data_dir is None and self.task_file is None
        return is_hub_id(self.model) or from_hub

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the text columns; empty by default."""
        return column_names(self.text_columns)

    @property
    def task_file(self) -> Path | None:
        """The labelled file that --task names; None for a task of GLUE or a YAML file."""
        path = None if self.task is None else Path(self.task)
        return path if path and path.suffix in SUFFIXES else None


@dataclass(frozen=True)
class Options(Given):
    """Options of the command line. One of texts, pairs and task is given."""

    mappings: str
    out: Path | None
    max_length: int | None = None
    stride: int | None = None
    windows: int | None = None
    needles: int | None = None

    @property
    def in_windows(self) -> bool:
        """Whether the texts are read as one long text."""
        return any(given is not None for given in (self.stride, self.windows, self.needles))
