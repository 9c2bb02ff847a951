"""Patched heads leave no trace when they are taken out; copies are patched too."""

import copy
import pickle

import pytest
import torch

from sparse_attn.hf.config import MULTILABEL

from . import lm_heads, multilabel_models
from .heads import fingerprint, run, shared, unlabelled
from .helpers import case_id
from .lm_heads import BY_MODEL
from .multilabel_models import BERT

MIXTURE = {"mapping": "plif", "knots": 8, "components": 2}
PREDICTED = {"mapping": "r-softmax", "sparsity": "predicted"}


@pytest.mark.parametrize("model", [*lm_heads.MODELS, *multilabel_models.MODELS], ids=case_id)
def test_unpatch_restores_everything(model):
    """Also after a second patch, which replaces the first."""
    inputs, plain = model.inputs(), model.build()
    if model.key == MULTILABEL:
        inputs = unlabelled(inputs)
        plain.config.problem_type = "regression"
    before, weight = fingerprint(plain, inputs), model.head(plain).weight
    for arguments in ({"mapping": "sigsoftmax"}, PREDICTED if model.key == MULTILABEL else MIXTURE):
        assert model.patch(plain, **arguments) is plain
        assert run(plain, model.inputs()).loss.isfinite()
        assert model.head(plain).weight is weight
        names = [name for name in plain.state_dict() if name in before["state"]]
        assert names == list(before["state"])
    assert model.unpatch(plain) is plain
    assert fingerprint(plain, inputs) == before
    with pytest.raises(ValueError, match=f"head of {model.cls} is not patched; call patch_"):
        model.unpatch(plain)


@pytest.mark.parametrize(
    ("model", "kind"),
    [(m, k) for m in (BY_MODEL["gpt2"], BY_MODEL["llama"], BERT) for k in m.kinds],
    ids=case_id,
)
def test_wrapped_and_copied_models_are_patched(model, kind):
    inputs, patched = model.inputs(), model.patched(kind)
    expected, ties = run(patched, inputs).loss, shared(patched)
    for twin in (copy.deepcopy(patched), pickle.loads(pickle.dumps(patched))):
        assert torch.equal(run(twin, inputs).loss, expected)
        assert shared(twin) == ties
        if model is BERT:
            twin.classifier.threshold = 0.7
            entries = [vars(m.config)[MULTILABEL]["head"] for m in (twin, patched)]
            assert entries[0]["threshold"] == 0.7 != entries[1]["threshold"]
        wrapped = torch.nn.DataParallel(twin)
        assert model.unpatch(wrapped) is wrapped
        assert type(model.head(twin)) is torch.nn.Linear
        model.patch(wrapped, **copy.deepcopy(model.kinds[kind]))
        assert type(model.head(twin)) is type(model.head(patched))
    assert torch.equal(run(patched, inputs).loss, expected)


LM, CLASSES = BY_MODEL["gpt2"], BERT


@pytest.mark.parametrize("before", [None, "sparsemax"])
@pytest.mark.parametrize(
    ("model", "arguments", "error", "message"),
    [
        (LM, {"mapping": "sigsotfmax"}, ValueError, "mapping='sigsotfmax' is unknown; did you"),
        (LM, {"mapping": "softmax", "prior": "softmax"}, ValueError, "prior='softmax': only a mix"),
        (LM, {"mapping": "sparsemax", "components": 2}, ValueError, "=sparsemax: it returns"),
        (LM, {"mapping": "softmax", "components": 2, "prior": "sparsemax"}, ValueError,
         "prior=sparsemax: it returns exact zeros"),
        (CLASSES, {"mapping": "sparsecone"}, ValueError, "mapping=sparsecone: it returns zeros"),
        (CLASSES, {"loss": "bce"}, ValueError, "loss='bce'"),
        (CLASSES, {"threshold": 2}, ValueError, "threshold=2"),
    ],
    ids=case_id,
)  # fmt: skip
def test_wrong_arguments_are_refused_and_change_nothing(model, before, arguments, error, message):
    inputs, plain = unlabelled(model.inputs()), model.build()
    if before is not None:
        model.patch(plain, before)
    state = fingerprint(plain, inputs)
    with pytest.raises(error, match=message):
        model.patch(plain, **arguments)
    assert fingerprint(plain, inputs) == state
