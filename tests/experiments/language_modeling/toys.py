"""Language models and corpora small enough to be worked out by hand."""

from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.language_modeling.models import LanguageModel, State
from sparse_attn.heads import LinearHead


class Bigram(LanguageModel):
    """p(w | v) = map(scores[v])_w: the hidden state of a word is its row of a table of scores."""

    def __init__(self, scores: Tensor, mapping: str = "softmax") -> None:
        words = len(scores)
        head = LinearHead(words, words, mapping, bias=False).to(scores.dtype)
        super().__init__(nn.Embedding(words, words, _weight=scores.clone()), head)
        with torch.no_grad():
            head.weight.copy_(torch.eye(words))

    def initial_state(self, batch: int) -> State:
        return ()

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.embedding(tokens), state


class Recurrent(LanguageModel):
    """h_t = tanh(A h_(t-1) + e(w_t)), dropout on what the head sees; output weights are tied."""

    def __init__(self, words: int = 11, size: int = 6, bias: bool = True) -> None:
        embedding = nn.Embedding(words, size)
        super().__init__(embedding, LinearHead(size, words, bias=bias, tie=embedding.weight))
        self.again = nn.Linear(size, size, bias=False)
        self.dropout = nn.Dropout(0.9)

    def initial_state(self, batch: int) -> State:
        return (self.again.weight.new_zeros(batch, self.again.in_features),)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        hidden = []
        for step in self.embedding(tokens).unbind(1):
            h = torch.tanh(self.again(h) + step)
            hidden.append(h)
        return self.dropout(torch.stack(hidden, 1)), (h.detach(),)


def stream(tokens: int, words: int = 11, seed: int = 1) -> Tensor:
    """Random words."""
    return torch.randint(words, (tokens,), generator=torch.Generator().manual_seed(seed))


def write_ptb(folder: Path, lines: str = "a b <unk> c\n" * 30, **splits: str) -> str:
    """A corpus of the layout of Penn Treebank; returns its folder."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        text = splits.get(split, lines)
        (folder / f"ptb.{split}.txt").write_text(text, encoding="utf-8")
    return str(folder)
