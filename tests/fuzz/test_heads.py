"""What output layers promise of hidden states that are extreme, in any batch and any chunk."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sparse_attn import Mapping
from sparse_attn.heads import (
    AdaptiveHead,
    FactoredSphericalHead,
    LinearHead,
    MixtureHead,
    MultiLabelHead,
)
from tests.fuzz.strategies import (
    DTYPES,
    LAYOUTS,
    SPOILING,
    examples,
    lay_out,
    same,
    subsets,
    tensors,
    unchanged,
)

HIDDEN, VOCAB, IGNORED = 3, 5, -100
KINDS = ("tied", "plain", "tiny", "large", "finite")
SHAPES = ((), (1,), (0,), (4,), (2, 0), (2, 3))
DENSE = {
    "softmax": lambda: Mapping("softmax"),
    "sigsoftmax": lambda: Mapping("sigsoftmax", learn="bias"),
    "taylor-softmax": lambda: Mapping("taylor-softmax"),
    "spherical-softmax": lambda: Mapping("spherical-softmax", learn="eps"),
    "softmax-abs": lambda: Mapping("softmax-abs"),
    "normalized-sigmoid": lambda: Mapping("normalized-sigmoid"),
    "temperature-softmax": lambda: Mapping("temperature-softmax", learn="temperature"),
    "plif": lambda: Mapping("plif", knots=4, bound=2.0),
    "monotone": lambda: Mapping("monotone", units=3),
    "mixed-r-softmax": lambda: Mapping("mixed-r-softmax", mix=0.5, learn=("r", "mix")),
    "entmax at 1": lambda: Mapping("entmax", alpha=1.0),
}
SPARSE = {
    "sparsemax": lambda: Mapping("sparsemax"),
    "entmax": lambda: Mapping("entmax", learn="alpha"),
}
HEADS: dict[str, Callable[[], nn.Module]] = {
    **{n: lambda make=m: LinearHead(HIDDEN, VOCAB, make()) for n, m in (DENSE | SPARSE).items()},
    "no bias": lambda: LinearHead(HIDDEN, VOCAB, "sigsoftmax", bias=False),
    "mixture": lambda: MixtureHead(HIDDEN, VOCAB, "sigsoftmax", components=2),
    "mixture of plif": lambda: MixtureHead(HIDDEN, VOCAB, DENSE["plif"](), components=3, latent=2),
    "adaptive": lambda: AdaptiveHead(HIDDEN, VOCAB, [2, 3], "softmax", div_value=1.5),
}
LABELS: dict[str, Callable[[], nn.Module]] = {
    "r": lambda: MultiLabelHead(HIDDEN, VOCAB, Mapping("r-softmax", r=0.6)),
    "r predicted": lambda: MultiLabelHead(HIDDEN, VOCAB, "r-softmax", sparsity="predicted"),
    "t learned": lambda: MultiLabelHead(HIDDEN, VOCAB, Mapping("t-softmax", learn="t")),
    "t predicted": lambda: MultiLabelHead(HIDDEN, VOCAB, "t-softmax", sparsity="predicted"),
    "sparsemax": lambda: MultiLabelHead(HIDDEN, VOCAB, "sparsemax"),
    "sparsemax hinge": lambda: MultiLabelHead(HIDDEN, VOCAB, "sparsemax", loss="sparsegen-hinge"),
    "entmax": lambda: MultiLabelHead(HIDDEN, VOCAB, Mapping("entmax", learn="alpha")),
    "sparsehourglass": lambda: MultiLabelHead(HIDDEN, VOCAB, "sparsehourglass"),
    "sigsoftmax": lambda: MultiLabelHead(HIDDEN, VOCAB, "sigsoftmax"),
}
# a PLIF warns of the scores that these tests are about
pytestmark = pytest.mark.filterwarnings("ignore:.*of the scores lie outside")


@dataclass
class Case:
    """A head with hidden states and classes, some of them ignored."""

    head: nn.Module
    hidden: Tensor
    targets: Tensor

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a gradient can go to."""
        return {"hidden": self.hidden, **dict(self.head.named_parameters())}

    def solve(self, wanted: Sequence[str] | None = None, **options: Any) -> tuple[Tensor, dict]:
        """The loss, and the gradients of its sum, of hidden and the parameters that are wanted."""
        leaves = {**self.tensors, "hidden": self.hidden.detach()}
        names = list(leaves) if wanted is None else list(wanted)
        for name, leaf in leaves.items():
            leaf.requires_grad_(name in names)
        loss = self.head.loss(leaves["hidden"], self.targets, **options)
        asked = [leaves[name] for name in names]
        found = torch.autograd.grad(loss.sum(), asked) if names else ()
        return loss.detach(), dict(zip(names, found, strict=True))


@st.composite
def heads(draw: Any, make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """A head with random parameters, of several sizes."""
    head = make().to(dtype)
    random = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    scale = draw(st.sampled_from([0.0, 1e-3, 1.0, 10.0]))
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "mapping" not in name:
                values = torch.rand(parameter.shape, generator=random) * 2 - 1
                parameter.copy_(values * scale)
    return head


@st.composite
def states(draw: Any, dtype: torch.dtype, kinds: Sequence[str], largest: float) -> Tensor:
    """Hidden states whose scores are finite, or that are not finite themselves."""
    shape = (*draw(st.sampled_from(SHAPES)), HIDDEN)
    hidden = draw(tensors(shape, dtype, kinds))
    # an adaptive head has two layers of up to 3 weights of up to 10
    largest = min(largest, torch.finfo(dtype).max / 2048)
    return hidden.where((hidden.abs() <= largest) | ~hidden.isfinite(), hidden.sign())


@st.composite
def cases(draw: Any, name: str, kinds: Sequence[str]) -> Case:
    dtype = draw(st.sampled_from(DTYPES))
    head = draw(heads(HEADS[name], dtype))
    hidden = draw(states(dtype, kinds, 1e30))
    return Case(head, hidden, draw(classes(hidden.shape[:-1])))


@st.composite
def classes(draw: Any, shape: Sequence[int]) -> Tensor:
    """A class for every token, or that it is ignored."""
    words = st.sampled_from([*range(VOCAB), IGNORED])
    count = math.prod(shape)
    drawn = draw(st.lists(words, min_size=count, max_size=count))
    return torch.tensor(drawn, dtype=torch.long).view(shape)


every_head = pytest.mark.parametrize("name", HEADS)


@every_head
@given(data=st.data(), chunk=st.sampled_from([1, 2, 3, 256]))
@examples(0.4)
def test_nll_is_log_prob(name: str, data: Any, chunk: int) -> None:
    """-log p of the target, of a p that sums to 1; NaN for the tokens that hold NaN, alone."""
    case = data.draw(cases(name, KINDS + SPOILING))
    with torch.no_grad(), unchanged(case.hidden, *case.head.parameters()):
        losses = case.head.nll(case.hidden, case.targets, reduction="none", chunk=chunk)
        log_p = case.head.log_prob(case.hidden)
    assert losses.shape == case.targets.shape
    assert log_p.shape == (*case.targets.shape, VOCAB)
    good, kept = case.hidden.isfinite().all(-1), case.targets != IGNORED
    assert (losses[~kept] == 0).all()
    assert losses[case.hidden.isnan().any(-1) & kept].isnan().all()
    assert not losses[good].isnan().any()
    assert not log_p[good].isnan().any()
    # log p is rounded to the dtype, an error of p in proportion
    eps, rounding = torch.finfo(log_p.dtype).eps, torch.finfo(losses.dtype).eps
    total = log_p.double().exp().sum(-1)
    assert ((total - 1).abs() <= VOCAB * (4 * eps + 64 * rounding))[good].all(), "wrong mass"
    assert (losses[good] >= -64 * rounding).all()
    chosen = case.targets.where(kept, 0).unsqueeze(-1)
    expected = -log_p.gather(-1, chosen).squeeze(-1).double()
    # float16 ends log p at -65504
    there = good & kept & (expected < torch.finfo(log_p.dtype).max)
    wrong = (losses.double() - expected).abs()
    # products of other shapes add in another order
    largest = 1 + max(parameter.abs().max().item() for parameter in case.head.parameters())
    size = largest**2 * (1 + case.hidden.double().abs().sum(-1)) + expected
    assert (wrong <= (16 * torch.finfo(case.hidden.dtype).eps + 64 * rounding) * size)[there].all()
    case.hidden = case.hidden.masked_fill(~good.unsqueeze(-1), 0.25)
    with torch.no_grad():
        others = case.head.nll(case.hidden, case.targets, reduction="none", chunk=chunk)
    assert same(others[good], losses[good])


@every_head
@given(data=st.data(), chunk=st.sampled_from([1, 2, 3]))
@examples(0.2)
def test_loss_and_gradients(name: str, data: Any, chunk: int) -> None:
    """One value whatever the strides, the chunk, the reduction and what else wants a gradient."""
    case = data.draw(cases(name, KINDS))
    case.hidden = lay_out(case.hidden, data.draw(st.sampled_from(LAYOUTS)))
    losses, gradients = case.solve(reduction="none")
    assert losses.isfinite().all()
    assert (losses >= -64 * torch.finfo(losses.dtype).eps).all()
    assert (gradients["hidden"][case.targets == IGNORED] == 0).all()
    for n, gradient in gradients.items():
        assert gradient.isfinite().all(), n
        assert gradient.dtype == case.tensors[n].dtype
    wanted = data.draw(st.sampled_from(subsets(list(gradients))))
    again, some = case.solve(wanted, reduction="none")
    assert same(again, losses)
    for n, gradient in some.items():
        assert same(gradient, gradients[n]), n
    plain = replace(case, hidden=case.hidden.contiguous().clone())
    total, others = plain.solve(reduction="sum", chunk=chunk)
    torch.testing.assert_close(total, losses.sum())
    mean = case.head.loss(case.hidden, case.targets).detach()
    count = (case.targets != IGNORED).sum()
    torch.testing.assert_close(mean, losses.sum() / count, equal_nan=True)
    # scores that are sums of larger terms keep no digits where these cancel
    if (case.hidden.abs() < 1e6).all():
        for n, gradient in others.items():
            assert_rounded(gradient, gradients[n], case.hidden.dtype, n)


def assert_rounded(gradient: Tensor, expected: Tensor, dtype: torch.dtype, name: str) -> None:
    """Equal but for sums in another order, of terms that are rounded to the dtype."""
    eps = torch.finfo(dtype).eps
    size = expected.double().abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(
        gradient.double(), expected.double(), rtol=16 * eps, atol=16 * eps * (1 + size), msg=name
    )


@pytest.mark.parametrize("name", LABELS)
@given(data=st.data(), reduction=st.sampled_from(["mean", "sum", "none"]))
@examples(0.4)
def test_labels(name: str, data: Any, reduction: str) -> None:
    """Losses of any set of labels, p that sums to 1, and the labels that p names."""
    dtype = data.draw(st.sampled_from(DTYPES))
    head = data.draw(heads(LABELS[name], dtype))
    hidden = data.draw(states(dtype, KINDS + SPOILING, 1e15)).requires_grad_()
    shape = (*hidden.shape[:-1], VOCAB)
    count = math.prod(shape)
    bits = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    target = torch.tensor(bits, dtype=torch.bool).view(shape)
    parameters = dict(head.named_parameters())
    with unchanged(hidden, *parameters.values()):
        losses = head.loss(hidden, target, reduction="none")
        log_p = head(hidden)
    assert losses.shape == shape[:-1]
    assert log_p.shape == shape
    good = hidden.detach().isfinite().all(-1)
    size = head.scores(hidden).detach().abs().amax(-1)
    rounding = 64 * VOCAB * torch.finfo(losses.dtype).eps
    assert losses[good].isfinite().all()
    assert (losses >= -rounding * (1 + size))[good].all()
    assert ((log_p.double().exp().sum(-1) - 1).abs() <= 2 * rounding)[good].all(), "wrong mass"
    if head.threshold == 0:
        assert head.predict(hidden)[good].any(-1).all()
    wanted = {"hidden": hidden, **parameters}
    found = torch.autograd.grad(losses[good].sum(), list(wanted.values()))
    if good.all():
        for n, gradient in zip(wanted, found, strict=True):
            assert gradient.isfinite().all(), n


@pytest.mark.parametrize("objective", ["spherical", "taylor", "mse", "bouchard"])
@given(data=st.data())
@examples(0.4)
def test_factored(objective: str, data: Any) -> None:
    """The loss is that of the dense rows, and a step leaves finite weights or says why not."""
    dtype = data.draw(st.sampled_from(DTYPES))
    head = FactoredSphericalHead(HIDDEN, VOCAB, objective, bias=data.draw(st.booleans()))
    hidden = data.draw(states(dtype, KINDS, 1e6)).requires_grad_()
    targets = data.draw(classes(hidden.shape[:-1]))
    loss = head(hidden, targets)
    counted = targets != IGNORED
    assert loss.isnan() == (not counted.any())
    if not counted.any():
        return
    assert loss.isfinite()
    loss.backward()
    assert hidden.grad.isfinite().all()
    assert (hidden.grad[~counted] == 0).all()
    before = head.W
    try:
        head.step(1e-3)
    except ValueError as error:
        assert "hidden" in str(error)  # noqa: PT017
        assert same(head.W, before)
    assert head.W.isfinite().all()
