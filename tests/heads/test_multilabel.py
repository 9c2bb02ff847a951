"""MultiLabelHead: precision, exact supports, gradients, learned sparsity, copies, its record."""

import copy
import pickle

import pytest
import torch

from sparse_attn import Mapping, SparsitySchedule
from sparse_attn.heads import MultiLabelHead, parameter_groups, search_threshold

HIDDEN, LABELS = 6, 7
KINDS = {
    "softmax": {"mapping": "softmax"},
    "plif": {"mapping": Mapping("plif", knots=20)},
    "sparsemax": {"mapping": "sparsemax"},
    "sparsemax-hinge": {"mapping": "sparsemax", "loss": "sparsegen-hinge"},
    "entmax": {"mapping": Mapping("entmax", learn="alpha")},
    "sparsegen": {"mapping": Mapping("sparsegen", lam=0.3)},
    "sparsehourglass": {"mapping": Mapping("sparsehourglass", q=0.5)},
    "r-softmax": {"mapping": Mapping("r-softmax", r=0.4)},
    "r-softmax-predicted": {"mapping": "r-softmax", "sparsity": "predicted"},
    "detached-r-softmax-predicted": {"mapping": "detached-r-softmax", "sparsity": "predicted"},
    "t-softmax-learned": {"mapping": Mapping("t-softmax", t=1.5, learn="t")},
    "softmax-sink": {"mapping": Mapping("softmax", learn="sink")},
    "sparsemax-sink": {"mapping": Mapping("sparsemax", sink=0.5)},
    "t-softmax-predicted": {"mapping": "t-softmax", "sparsity": "predicted"},
}


def make(kind, dtype=torch.float64):
    """A head whose scores are wide apart, and every parameter random."""
    head = MultiLabelHead(HIDDEN, LABELS, **copy.deepcopy(KINDS[kind])).to(dtype)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if not name.startswith("mapping"):
                parameter.normal_()
    return head


def batch(*rows, dtype=torch.float64):
    """Hidden states, and targets with at least one label each."""
    target = torch.rand(*rows, LABELS) < 0.4
    target[..., 2] |= ~target.any(-1)
    return torch.randn(*rows, HIDDEN, dtype=dtype), target


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_rounded_in_its_inputs_alone(kind, dtype):
    """W h + b, the mapping and the loss are those of float32; autocast, None here, does nothing."""
    head = make(kind, dtype or torch.float32)
    hidden, target = batch(9, dtype=dtype or torch.float32)
    full = copy.deepcopy(head).float()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is None):
        log_p, loss, labels = head(hidden), head.loss(hidden, target), head.predict(hidden)
    hidden = hidden.float()
    assert log_p.dtype == loss.dtype == torch.float32
    assert torch.equal(log_p, full(hidden))
    assert torch.equal(loss, full.loss(hidden, target))
    assert torch.equal(labels, full.predict(hidden))
    loss.backward()
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in head.parameters())


# a detached gradient is not that of the loss
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "detached" not in kind])
def test_gradients_of_the_loss(kind):
    head = make(kind)
    hidden, target = batch(3)

    def loss(hidden, *parameters):
        return head.loss(hidden, target, reduction="none")

    parameters = [p for n, p in head.named_parameters() if n != "mapping.raw_slopes"]
    for parameter in parameters:
        parameter.data = parameter.data.double()  # a mapping stays in float32 under .double()
    assert torch.autograd.gradcheck(loss, (hidden.requires_grad_(), *parameters))


@pytest.mark.parametrize("kind", KINDS)
def test_descent_finds_the_labels(kind):
    """Four rows, each with labels of its own, with a sink also none; what learns moves."""
    head = MultiLabelHead(HIDDEN, LABELS, **copy.deepcopy(KINDS[kind]))
    before = {n: p.detach().clone() for n, p in head.named_parameters()}
    hidden = torch.eye(4, HIDDEN)
    target = torch.tensor([[1, 0, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0],
                           [0, 0, 0, 0, 1, 0, 1]])  # fmt: skip
    if "sink" in kind:
        target[::2] = 0
    optimizer = torch.optim.Adam(parameter_groups(head, lr=0.1, mapping_lr=0.02))
    for _ in range(200):
        optimizer.zero_grad()
        head.loss(hidden, target).backward()
        optimizer.step()
    if kind != "r-softmax":  # a fixed share of zeros is no number of labels
        candidates = (0.05, 0.1) if head.criterion == "nll" else (0.0, 0.05, 0.1)
        head.threshold = search_threshold(head(hidden), target, candidates)
        assert torch.equal(head.predict(hidden), target == 1)
    assert not [n for n, p in head.named_parameters() if torch.equal(p, before[n])]


def test_one_label_is_certain():
    head = MultiLabelHead(HIDDEN, 1, sparsity="predicted")
    hidden = torch.randn(5, HIDDEN)
    assert (head(hidden) == 0).all()
    assert head.predict(hidden).all()
    assert head.loss(hidden, torch.tensor([[1], [0]] * 2 + [[1]])).isfinite()


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_records_make_the_head_again(kind):
    """They compute the same, and go their own way."""
    head = make(kind)
    head.threshold = 0.22
    if kind == "r-softmax":
        assert SparsitySchedule("r", 0.0, 0.8).apply(head, 0.5) == head.mapping.value("r") == 0.4
        assert head.describe()["params"] == {"r": 0.4}
    made = head.describe()
    mapping = Mapping(made.pop("mapping"), learn=made.pop("learn"), **made.pop("params"))
    again = MultiLabelHead(HIDDEN, LABELS, mapping, **made).double()
    again.load_state_dict(head.state_dict())
    hidden, target = batch(5)
    for twin in (again, copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(twin(hidden), head(hidden))
        assert torch.equal(twin.loss(hidden, target), head.loss(hidden, target))
        assert twin.describe() == head.describe()
        assert twin.threshold == 0.22
        twin.threshold = 0.25
        assert head.threshold == 0.22


@pytest.mark.parametrize(
    ("arguments", "parameter", "value", "message"),
    [
        ({}, "t", 1.0, "parameter='t': r-softmax with sparsity='fixed' has no such fixed"),
        ({}, "r", 1.5, r"r=1\.5 is out of range"),
        ({"sparsity": "predicted"}, "r", 0.5, "'r': r-softmax with sparsity='predicted' has no"),
        ({"mapping": Mapping("t-softmax", learn="t")}, "t", 0.5, "has no such fixed parameter"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be_scheduled(arguments, parameter, value, message):
    head = MultiLabelHead(HIDDEN, LABELS, **arguments)
    before = head.describe()
    with pytest.raises(ValueError, match=message):
        SparsitySchedule(parameter, value, value).apply(head, 0.5)
    assert head.describe() == before


# the compiler looks at the gradient of what it hands on where checks on the CPU break its graph
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("kind", ["softmax", "r-softmax-predicted", "t-softmax-learned"])
def test_compiled(kind):
    head = make(kind, torch.float32)
    hidden, target = batch(5, dtype=torch.float32)
    compiled = torch.compile(head, backend="eager")
    assert torch.equal(compiled(hidden), head(hidden))
    loss = torch.compile(head.loss, backend="eager")
    assert torch.equal(loss(hidden, target), head.loss(hidden, target))
    assert torch.equal(torch.compile(head.predict, backend="eager")(hidden), head.predict(hidden))
    decide, log_p = torch.compile(head.decide, backend="eager", fullgraph=True), head(hidden)
    assert torch.equal(decide(log_p), head.decide(log_p))
