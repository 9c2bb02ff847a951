"""The distance of a model from its softmax self."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.conversion.states import States, distances, states_of


def states(seed: int, logits: Tensor | None = None, length: int = 4) -> States:
    generator = torch.Generator().manual_seed(seed)
    hidden = [torch.randn(2, length, 3, generator=generator) for _ in range(2)]
    return States(hidden, logits)


MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])


def hidden_part(ours: States, theirs: States, text: int, tokens: int) -> float:
    """Mean over blocks and tokens, in a loop."""
    errors = [
        float((h[text, t] - g[text, t]).square().sum() / g[text, t].square().sum())
        for h, g in zip(ours.hidden, theirs.hidden, strict=True)
        for t in range(tokens)
    ]
    return sum(errors) / len(errors)


def test_a_model_without_a_head() -> None:
    ours, theirs = states(0), states(1)
    found = distances(ours, theirs, MASK)
    for text, tokens in enumerate((3, 2)):
        means = [s.hidden[-1][text, :tokens].mean(0) for s in (ours, theirs)]
        outputs = 1 - F.cosine_similarity(*means, dim=0)
        expected = hidden_part(ours, theirs, text, tokens) + float(outputs)
        assert found[text].item() == pytest.approx(expected, rel=1e-5)


def test_a_head_over_words_counts_the_words_of_the_text() -> None:
    generator = torch.Generator().manual_seed(2)
    p, q = (torch.randn(2, 4, 5, generator=generator) for _ in range(2))
    ours, theirs = states(0, q), states(1, p)
    found = distances(ours, theirs, MASK)
    for text, tokens in enumerate((3, 2)):
        share = p[text, :tokens].softmax(-1)
        ratio = p[text, :tokens].log_softmax(-1) - q[text, :tokens].log_softmax(-1)
        outputs = (share * ratio).sum(-1).mean()
        expected = hidden_part(ours, theirs, text, tokens) + float(outputs)
        assert found[text].item() == pytest.approx(expected, rel=1e-5)


def test_a_head_over_classes() -> None:
    p, q = torch.tensor([[1.0, -1.0], [0.0, 3.0]]), torch.tensor([[0.5, 0.0], [0.0, 3.0]])
    hidden = states(0)
    ours, theirs = hidden._replace(logits=q), hidden._replace(logits=p)
    ratio = p.log_softmax(-1) - q.log_softmax(-1)
    expected = (p.softmax(-1) * ratio).sum(-1)
    torch.testing.assert_close(distances(ours, theirs, MASK), expected)


def test_one_number() -> None:
    hidden = states(0)
    ours = hidden._replace(logits=torch.tensor([[1.0], [2.0]]))
    theirs = hidden._replace(logits=torch.tensor([[1.5], [2.0]]))
    torch.testing.assert_close(distances(ours, theirs, MASK), torch.tensor([0.25, 0.0]))


def test_padding_does_not_count() -> None:
    ours, theirs = states(0), states(1)
    before = distances(ours, theirs, MASK)
    for tensor in (*ours.hidden, *theirs.hidden):
        tensor[MASK == 0] = 1e3
    torch.testing.assert_close(distances(ours, theirs, MASK), before)


def test_states_of_a_model_in_half_precision_do_not_overflow() -> None:
    hidden = torch.full((1, 1, 4), 300.0, dtype=torch.float16)

    class Half(torch.nn.Module):
        def forward(self, scale: float, output_hidden_states: bool) -> SimpleNamespace:
            return SimpleNamespace(hidden_states=(hidden, scale * hidden), logits=None)

    ours, theirs = (states_of(Half(), {"scale": scale}) for scale in (1.5, 1.0))  # type: ignore[dict-item]
    assert distances(ours, theirs, torch.ones(1, 1)).item() == pytest.approx(0.25, abs=1e-6)
