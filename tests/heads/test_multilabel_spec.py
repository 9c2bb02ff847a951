"""What a multi-label head promises, beside the formulas in plain loops and scikit-learn's F1."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from sparse_attn import Mapping, functional
from sparse_attn.heads import MultiLabelHead, search_threshold
from tests.losses import oracle

HIDDEN, LABELS = 6, 5
CANDIDATES = (0.05, 0.1, 0.15, 0.2, 0.3)
FINE = tuple(i / 40 for i in range(40))
ORACLES = {  # mapping, loss asked for: its oracle with the mapping's default parameters
    ("softmax", None): (oracle.nll, {"mapping": "softmax"}),
    ("sigsoftmax", "nll"): (oracle.nll, {"mapping": "sigsoftmax"}),
    ("taylor-softmax", None): (oracle.nll, {"mapping": "taylor-softmax"}),
    ("sparsemax", None): (oracle.sparsemax_loss, {}),
    ("sparsemax", "sparsegen-hinge"): (oracle.sparsegen_hinge, {}),
    ("entmax", None): (oracle.entmax_loss, {"alpha": 1.5}),
    ("sparsegen", None): (oracle.sparsegen_hinge, {"lam": 0.0}),
    ("sparsehourglass", None): (oracle.sparsehourglass_hinge, {"q": 10.0}),
    ("r-softmax", None): (oracle.r_softmax_loss, {"r": 0.15}),
    ("t-softmax", "r-softmax"): (oracle.t_softmax_loss, {"t": 1.0}),
}


def echo(labels, **options):
    """A head in float64 whose scores are the first `labels` entries of its hidden state."""
    head = MultiLabelHead(2 * labels + 1, labels, "r-softmax", **options).double()
    with torch.no_grad():
        head.weight.copy_(torch.eye(labels, 2 * labels + 1))
        head.bias.zero_()
    return head


def counting_head(labels):
    """`echo` with a count layer that answers what the further entries, one-hot, say."""
    head = echo(labels, sparsity="predicted")
    with torch.no_grad():
        head.predictor.weight.copy_(torch.eye(2 * labels + 1).roll(labels, 1)[: labels + 1])
        head.predictor.bias.zero_()
    return head


def batch(labels=LABELS, rows=(4,), hidden=HIDDEN, seed=0):
    rng = numpy.random.default_rng(seed)
    target = rng.random((*rows, labels)) < 0.5
    target[..., 0] |= ~target.any(-1)
    return torch.tensor(rng.normal(size=(*rows, hidden))), torch.tensor(target)


def random_head(mapping, **options):
    head = MultiLabelHead(HIDDEN, LABELS, mapping, **options).double()
    for parameter in (p for n, p in head.named_parameters() if not n.startswith("mapping")):
        torch.nn.init.normal_(parameter, std=0.7)
    return head


def assert_close(ours, exact, tolerance=1e-6):
    numpy.testing.assert_allclose(ours.detach().double(), exact, rtol=0, atol=tolerance)


# Predicted sparsity


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        (torch.bfloat16, range(2, 65)),
        (torch.float32, (*range(2, 66), 100, 128, 199, 200, 999)),
        (torch.float64, (1, 2, 3, 17, 64, 65, 100, 128, 199, 200, 999)),
    ],
)
def test_k_predicted_labels_are_exactly_the_k_largest(dtype, sizes):
    """r = 1 - k / n and its place in the row, r (n - 1), are rounded, not below k.

    All of them are one fewer: r = 0 drops the minimum.
    """
    for labels in sizes:
        head, scores = counting_head(labels).to(dtype), torch.randperm(labels)
        hidden = torch.cat([scores.expand(labels + 1, -1), torch.eye(labels + 1)], -1).to(dtype)
        kept = [max(k, 1) if k < labels or labels == 1 else k - 1 for k in range(labels + 1)]
        assert torch.equal(head.predict(hidden), scores >= labels - torch.tensor(kept)[:, None])


@pytest.mark.parametrize("labels", [1, 2, 5, 64])
def test_r_is_between_0_and_all_but_one(labels):
    """A row as far apart as can be shows its r in p: w_i is the distance to the quantile."""
    head = counting_head(labels)
    z = torch.linspace(-1, 0, labels, dtype=torch.float64)
    hidden = torch.cat([z.expand(labels + 1, -1), torch.eye(labels + 1).double()], -1)
    for k, log_p in enumerate(head(hidden)):
        r = 1 - max(k, 1) / labels
        assert 0 <= r <= 1 - 1 / labels
        assert_close(log_p.exp(), oracle.probabilities("r-softmax", z.tolist(), r), 1e-9)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_loss_with_predicted_r_is_that_of_the_true_count_plus_its_cross_entropy(seed):
    head = random_head("r-softmax", sparsity="predicted")
    hidden, target = batch(seed=seed)
    y = target.double().numpy()
    scores, counts = head.scores(hidden), head.predictor(hidden)
    exact = [
        oracle.r_softmax_loss(z.tolist(), row, 1 - sum(row) / LABELS)
        + oracle.label_count_loss(c.tolist(), row)
        for z, c, row in zip(scores, counts, y, strict=True)
    ]
    assert_close(head.loss(hidden, target, reduction="none"), exact)


def test_the_count_layer_learns_from_its_loss_alone_and_nothing_else_does():
    head = random_head("r-softmax", sparsity="predicted")
    hidden, target = batch(rows=(16,))
    head.loss(hidden, target).backward()
    counts = torch.nn.functional.linear(hidden, head.predictor.weight, head.predictor.bias)
    own = torch.nn.functional.cross_entropy(counts, target.sum(-1))
    parameters = list(head.predictor.parameters())
    for parameter, expected in zip(parameters, torch.autograd.grad(own, parameters), strict=True):
        assert_close(parameter.grad, expected)
    gradient = head.weight.grad.clone()
    with torch.no_grad():  # another count layer, another prediction
        for parameter in head.predictor.parameters():
            parameter.normal_(std=9)
    head.zero_grad()
    head.loss(hidden, target).backward()
    assert_close(head.weight.grad, gradient, 1e-12)
    head.zero_grad()  # rows without labels teach the count layer alone
    head.loss(hidden, torch.zeros_like(target)).backward()
    assert (head.weight.grad == 0).all()
    assert (head.bias.grad == 0).all()
    assert head.predictor.bias.grad[0] < 0
    assert (head.predictor.bias.grad[1:] > 0).all()


def test_the_loss_has_the_true_count_and_the_prediction_never():
    """In evaluation too."""
    head = counting_head(4)
    z = torch.tensor([[0.1, 0.9, 0.4, 0.6]], dtype=torch.float64)
    says_one = torch.nn.functional.one_hot(torch.tensor([1]), 5)
    hidden = torch.cat([z, says_one], -1)
    target = torch.tensor([[0, 1, 1, 1]])
    exact = oracle.r_softmax_loss(z[0].tolist(), target[0].tolist(), 0.25)
    exact += oracle.label_count_loss([0.0, 1.0, 0.0, 0.0, 0.0], target[0].tolist())
    for training in (True, False):
        assert_close(head.train(training).loss(hidden, target), exact)
        assert head.predict(hidden).tolist() == [[False, True, False, False]]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_predicted_t_is_softplus_of_a_linear_layer(seed):
    head = random_head("t-softmax", sparsity="predicted")
    hidden, target = batch(seed=seed)
    a, b = head.predictor.weight.double(), head.predictor.bias.double()
    ts = torch.nn.functional.softplus(hidden @ a.T + b).squeeze(-1).tolist()
    exact = [
        oracle.probabilities("t-softmax", z.tolist(), t)
        for z, t in zip(head.scores(hidden), ts, strict=True)
    ]
    assert_close(head(hidden).exp(), exact)
    losses = [
        oracle.t_softmax_loss(z.tolist(), y.double().numpy(), t)
        for z, y, t in zip(head.scores(hidden), target, ts, strict=True)
    ]
    assert_close(head.loss(hidden, target, reduction="none"), losses)
    head.loss(hidden, target).backward()
    assert head.predictor.weight.grad.isfinite().all()


@pytest.mark.parametrize("start", [0.3, 8.0])
def test_predicted_t_starts_at_the_t_of_the_mapping(start):
    head = MultiLabelHead(HIDDEN, LABELS, Mapping("t-softmax", t=start), sparsity="predicted")
    hidden = torch.randn(5, HIDDEN)
    p = functional.t_softmax(head.scores(hidden), start)
    torch.testing.assert_close(head(hidden).exp(), p)


# Losses


@pytest.mark.parametrize(("mapping", "loss"), ORACLES)
@pytest.mark.parametrize("rows", [(), (4,), (2, 3)])
def test_loss_of_every_mapping(mapping, loss, rows):
    exact, parameters = ORACLES[mapping, loss]
    head = random_head(mapping, loss=loss)
    hidden, target = batch(rows=rows)
    expected = oracle.each_row(exact, head.scores(hidden).detach(), target.numpy(), **parameters)
    assert_close(head.loss(hidden, target, reduction="none"), expected)
    assert_close(head.loss(hidden, target), expected.mean())
    assert_close(head.loss(hidden, target.long(), reduction="sum"), expected.sum())


@pytest.mark.parametrize(("mapping", "loss"), ORACLES)
def test_a_sink_is_one_more_label_of_rows_without_any(mapping, loss):
    exact, parameters = ORACLES[mapping, loss]
    head = random_head(Mapping(mapping, sink=-0.3), loss=loss)
    hidden, target = batch()
    target[::2] = False
    scores = torch.nn.functional.pad(head.scores(hidden).detach(), (0, 1), value=-0.3)
    with_none = torch.cat([target, ~target.any(-1, keepdim=True)], -1)
    expected = oracle.each_row(exact, scores, with_none.numpy(), **parameters)
    assert_close(head.loss(hidden, target, reduction="none"), expected)
    own = {n: value for n, value in parameters.items() if n != "mapping"}
    p = [numpy.exp(oracle.log_probabilities(mapping, z, **own)) for z in scores]
    assert_close(head(hidden).exp(), numpy.stack(p)[:, :-1])


@pytest.mark.parametrize(("mapping", "loss"), ORACLES)
def test_rows_without_labels_have_no_gradient(mapping, loss):
    head = random_head(mapping, loss=loss)
    hidden, target = batch()
    hidden.requires_grad_()
    target[::2] = False
    rows = head.loss(hidden, target, reduction="none")
    rows.sum().backward()
    assert (rows[::2] == 0).all()
    assert_close(head.loss(hidden, target), rows.sum().item() / len(rows))  # they count
    assert (hidden.grad[::2] == 0).all()
    assert (hidden.grad[1::2] != 0).any()


# Predictions


PREDICTIONS = {
    "sparsemax": lambda z: functional.sparsemax(z) > 0,
    "entmax": lambda z: functional.entmax(z, 1.5) > 0,
    "sparsegen": lambda z: functional.sparsegen(z, 0.0) > 0,
    "r-softmax": lambda z: functional.r_softmax(z, 0.15) > 0,
    "t-softmax": lambda z: functional.t_softmax(z, 1.0) > 0,
    "softmax": lambda z: functional.softmax(z) > 0.1,
}


@pytest.mark.parametrize("mapping", PREDICTIONS)
def test_prediction_is_the_support_or_what_is_above_a_threshold(mapping):
    head = random_head(mapping)
    hidden, _ = batch(rows=(50,))
    expected = PREDICTIONS[mapping](head.scores(hidden))
    assert head.threshold == (0.1 if mapping == "softmax" else 0)
    assert (head.predict(hidden) == expected).all()
    assert (head.decide(head(hidden)) == expected).all()
    assert not expected.all()
    head.threshold = 0.3
    assert (head.predict(hidden) == (head(hidden).exp() > 0.3)).all()


def test_log_p_of_half_precision_does_not_lose_the_support():
    """p = 1e-6 is a label of a sparse mapping, whatever the dtype of the hidden state."""
    head = echo(2).half()
    head.mapping = Mapping("t-softmax", t=20.0).half()
    hidden = torch.tensor([[12.0, 0, 0, 0, 0]], dtype=torch.float16)
    assert head.predict(hidden).tolist() == [[True, True]]


@given(
    seed=st.integers(0, 2**32 - 1),
    average=st.sampled_from(["micro", "macro", "samples"]),
    candidates=st.sampled_from([CANDIDATES, (0.3, 0.05, 0.2), (0.25,), FINE]),
)
def test_threshold_search_is_brute_force(seed, average, candidates):
    rng = numpy.random.default_rng(seed)
    rows = int(rng.integers(1, 12))
    scores = torch.tensor(rng.normal(0, 2, (rows, 6)))
    target = rng.random((rows, 6)) < rng.choice([0, 0.2, 0.6])
    log_p = functional.sparsemax(scores).log() if seed % 2 else functional.softmax(scores).log()
    predictions = [(log_p.exp() > c).numpy() for c in candidates]
    f1 = [f1_score(target, p, average=average, zero_division=0) for p in predictions]
    best = next(c for c, score in zip(candidates, f1, strict=True) if score > max(f1) - 1e-12)
    assert search_threshold(log_p, torch.tensor(target), candidates, average) == best


def test_threshold_search_takes_the_first_of_equals():
    log_p = torch.tensor([[0.96, 0.04]]).log()
    assert search_threshold(log_p, torch.tensor([[1, 0]])) == 0.05
    assert search_threshold(log_p, torch.tensor([[1, 0]]), candidates=(0.3, 0.05)) == 0.3
