"""patch_lm_head: logits become log p, the model's loss is -log p, unpatching leaves no trace."""

import copy
import pickle

import pytest
import torch
import transformers
from torch.nn import functional as F

from sparse_attn.heads import LinearHead, MixtureHead, patch_lm_head, unpatch_lm_head
from sparse_attn.hf.config import HEAD

from .families import BY_NAME
from .heads import fingerprint
from .helpers import assert_near
from .lm_heads import BY_MODEL, MODELS, run, scored, scores_and_hidden


def sigsoftmax(scores):
    weights = (scores - scores.amax(-1, keepdim=True)).exp() * torch.sigmoid(scores)
    return weights / weights.sum(-1, keepdim=True)


def weighted_abs(scores):
    weights = scores.abs().exp()
    return weights / weights.sum(-1, keepdim=True)


REFERENCES = {
    "softmax": lambda scores: scores.softmax(-1),
    "sigsoftmax": sigsoftmax,
    "softmax-abs": weighted_abs,
}


@pytest.mark.parametrize("mapping", REFERENCES)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_logits_are_log_p_and_the_loss_is_its_nll(model, mapping):
    inputs = model.inputs()
    plain = model.build()
    before = run(plain, inputs).loss
    scores, _ = scores_and_hidden(plain, inputs)
    expected = REFERENCES[mapping](scores.double()).log()
    chosen, labels = scored(expected, inputs["labels"], model.shift)
    nll = -chosen.gather(-1, labels[:, None]).mean()
    patched = patch_lm_head(plain, mapping)
    assert patched is plain
    labelled = run(patched, inputs)
    assert_near(labelled.loss, nll.float())
    if mapping == "softmax":
        assert_near(labelled.loss, before)
    logits = run(patched, {n: t for n, t in inputs.items() if n != "labels"}).logits
    assert_near(logits, expected.float())


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_mixture_is_the_mixture_of_its_parts(model):
    inputs = model.inputs()
    patched = patch_lm_head(model.build(), "sigsoftmax", components=3)
    head = patched.get_output_embeddings()
    assert isinstance(head, MixtureHead)
    assert head.prior_mapping.name == "sigsoftmax"
    _, hidden = scores_and_hidden(patched, inputs)
    latents = torch.tanh(F.linear(hidden, head.latent.weight, head.latent.bias))
    prior = sigsoftmax(F.linear(hidden, head.prior.weight).double())
    p = sum(
        prior[..., [k]] * sigsoftmax(F.linear(latent, head.weight, head.bias).double())
        for k, latent in enumerate(latents.chunk(3, dim=-1))
    )
    chosen, labels = scored(p, inputs["labels"], model.shift)
    assert_near(run(patched, inputs).loss, -chosen.gather(-1, labels[:, None]).log().mean().float())


def embeddings(model):
    """The parameters that must stay one: weight of the head and of the embedding, bias twice."""
    head = model.get_output_embeddings()
    shared = [n for n, p in model.named_parameters(remove_duplicate=False) if p is head.bias]
    return head.weight is model.get_input_embeddings().weight, shared


@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_weights_are_the_same_tensors_under_the_same_names(model, components):
    plain = model.build()
    weight = plain.get_output_embeddings().weight
    names, tied = list(plain.state_dict()), embeddings(plain)
    assert tied[0] == model.tied
    patched = patch_lm_head(plain, "plif", knots=8, components=components)
    head = patched.get_output_embeddings()
    assert head.weight is weight
    new = [name for name in patched.state_dict() if name not in names]
    assert [name for name in patched.state_dict() if name in names] == names
    assert any(name.endswith(".mapping.raw_slopes") for name in new)
    assert any(name.endswith(".mapping.bound") for name in new)
    assert len(new) == (2 if components is None else 5)
    for moved in (lambda: patched.tie_weights(), lambda: patched.to(torch.bfloat16)):
        moved()
        assert head.weight is weight
        assert embeddings(patched) == tied
    assert head.mapping.raw_slopes.dtype == torch.float32
    for twin in (copy.deepcopy(patched), pickle.loads(pickle.dumps(patched))):
        assert embeddings(twin) == tied
        assert twin.get_output_embeddings().weight is not weight


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_unpatch_restores_everything(model):
    inputs = model.inputs()
    plain = model.build()
    before = fingerprint(plain, inputs)
    patch_lm_head(plain, "sigsoftmax", learn="bias")
    assert fingerprint(plain, inputs) != before
    assert unpatch_lm_head(plain) is plain
    assert fingerprint(plain, inputs) == before
    if model.dispatches:
        patch_lm_head(plain, "sparsemax")
    patch_lm_head(plain, mapping="softmax", components=2)
    assert fingerprint(unpatch_lm_head(plain), inputs) == before
    with pytest.raises(ValueError, match=f"head of {model.cls} is not patched; call patch_lm_head"):
        unpatch_lm_head(plain)


def test_second_call_replaces_the_mapping():
    model = patch_lm_head(BY_MODEL["gpt2"].build(), "plif", knots=8)
    weight = model.get_output_embeddings().weight
    patch_lm_head(model, "sigsoftmax", learn="bias")
    head = model.get_output_embeddings()
    assert isinstance(head, LinearHead)
    assert head.weight is weight
    assert getattr(model.config, HEAD) == {
        "version": 1, "mapping": "sigsoftmax", "params": {}, "learn": ["bias"],
        "components": None, "prior": None,
    }  # fmt: skip
    assert [name for name in model.state_dict() if "lm_head" in name] == [
        "lm_head.weight",
        "lm_head.mapping.raw_bias",
    ]


def test_head_takes_device_dtype_and_mode_of_the_model():
    model = BY_MODEL["llama"].build().to(torch.bfloat16).train()
    patch_lm_head(model, "sigsoftmax", learn="bias", components=2)
    head = model.get_output_embeddings()
    assert head.training
    assert head.latent.weight.dtype == torch.bfloat16
    assert head.mapping.raw_bias.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_log_p_once(dtype):
    inputs = BY_MODEL["llama"].inputs()
    model = BY_MODEL["llama"].build().to(dtype)
    scores, _ = scores_and_hidden(model, inputs)
    logits = run(patch_lm_head(model, "sigsoftmax"), inputs).logits
    assert logits.dtype == dtype
    assert torch.equal(logits, sigsoftmax(scores.double()).log().to(dtype))


@pytest.mark.parametrize("size", [52, 31])
@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_resized_vocabulary(model, components, size):
    """Against the plain model resized: kept tokens have the same weights, new ones have some."""
    plain, patched = model.build(), model.build()
    patch_lm_head(patched, "sigsoftmax", learn="bias", components=components)
    for twin in (plain, patched):
        torch.manual_seed(1)
        twin.resize_token_embeddings(size, mean_resizing=False)
    head = patched.get_output_embeddings()
    assert isinstance(head, LinearHead if components is None else MixtureHead)
    assert embeddings(patched) == embeddings(plain)
    inputs = {n: t.clamp(max=size - 1) for n, t in model.inputs().items()}
    assert run(patched, inputs).logits.shape[-1] == size
    assert torch.equal(head.weight, plain.get_output_embeddings().weight)
    unpatch_lm_head(patched)
    assert torch.equal(run(patched, inputs).logits, run(plain, inputs).logits)


def test_resizing_a_copy_leaves_the_model_alone():
    model = patch_lm_head(BY_MODEL["gpt2"].build(), "sigsoftmax")
    twin = copy.deepcopy(model)
    twin.resize_token_embeddings(50, mean_resizing=False)
    assert twin.get_output_embeddings().vocab == 50
    assert model.get_output_embeddings().vocab == 40
    twin.resize_token_embeddings()
    assert twin.get_output_embeddings().vocab == 50


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mapping": "sigsotfmax"}, ValueError, "mapping='sigsotfmax' is unknown; did you"),
        ({"mapping": "softmax", "knots": 3}, TypeError, "knots=3: unknown parameter; softmax"),
        ({"mapping": "softmax", "learn": "r"}, TypeError, "learn='r': softmax can learn sink"),
        ({"mapping": "softmax", "components": 0}, ValueError, "components=0: expected at least 1"),
        ({"mapping": "softmax", "prior": "softmax"}, ValueError, "prior='softmax': only a mixture"),
        ({"mapping": "sparsemax", "components": 2}, ValueError, "mapping=sparsemax: it returns ex"),
        ({"mapping": "softmax", "components": 2, "prior": "sparsemax"}, ValueError,
         "prior=sparsemax: it returns exact zeros"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("before", [None, "sparsemax"])
def test_wrong_arguments_are_refused_and_change_nothing(before, arguments, error, message):
    inputs = BY_MODEL["gpt2"].inputs()
    model = BY_MODEL["gpt2"].build()
    if before is not None:
        patch_lm_head(model, before)
    state = fingerprint(model, inputs)
    with pytest.raises(error, match=message):
        patch_lm_head(model, **arguments)
    assert fingerprint(model, inputs) == state


# The DeBERTa of Transformers 5.17 scripts functions, which torch 2.11 deprecates.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_model_that_a_plain_load_would_not_stop_is_refused():
    config = transformers.DebertaV2Config(**BY_NAME["bert"].config)
    with pytest.raises(
        ValueError, match=r"DebertaV2ForMaskedLM does not dispatch.*from_pretrained"
    ):
        patch_lm_head(transformers.DebertaV2ForMaskedLM(config), "sigsoftmax")


def test_part_of_a_patched_model_is_refused():
    config = BY_NAME["bert"].make_config(is_decoder=True, add_cross_attention=True)
    decoder = transformers.BertLMHeadModel(config)
    model = transformers.EncoderDecoderModel(encoder=BY_NAME["bert"].build(), decoder=decoder)
    with pytest.raises(ValueError, match=r"'sparsemax': it returns zeros.*EncoderDecoderModel"):
        patch_lm_head(model, "sparsemax")
    for whole, part in ((model, decoder), (decoder, model)):
        patch_lm_head(whole, "sigsoftmax")
        with pytest.raises(
            ValueError, match="is, or contains, a part whose head is already patched"
        ):
            patch_lm_head(part, "softmax")
        with pytest.raises(ValueError, match="is not patched"):
            unpatch_lm_head(part)
        unpatch_lm_head(whole)
