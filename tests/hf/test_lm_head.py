"""patch_lm_head: logits become log p, and the model's loss -log p."""

import copy

import pytest
import torch
import transformers
from torch.nn import functional as F

from sparse_attn import patch_lm_head, unpatch_lm_head
from sparse_attn.heads import LinearHead, MixtureHead

from .families import BY_NAME
from .heads import run, shared, unlabelled
from .helpers import assert_near
from .lm_heads import BY_MODEL, MODELS, scored, scores_and_hidden

models = pytest.mark.parametrize("model", MODELS, ids=str)


def normalised(weights):
    return weights / weights.sum(-1, keepdim=True)


def sigsoftmax(scores):
    return normalised((scores - scores.amax(-1, keepdim=True)).exp() * torch.sigmoid(scores))


REFERENCES = {
    "softmax": lambda scores: scores.softmax(-1),
    "sigsoftmax": sigsoftmax,
    "softmax-abs": lambda scores: normalised(scores.abs().exp()),
}


@pytest.mark.parametrize("mapping", REFERENCES)
@models
def test_logits_are_log_p_and_the_loss_is_its_nll(model, mapping):
    inputs, plain = model.inputs(), model.build()
    before, (scores, _) = run(plain, inputs).loss, scores_and_hidden(plain, inputs)
    expected = REFERENCES[mapping](scores.double()).log()
    chosen, labels = scored(expected, inputs["labels"], model.shift)
    nll = -chosen.gather(-1, labels[:, None]).mean()
    patched = patch_lm_head(plain, mapping)
    loss = run(patched, inputs).loss
    assert_near(loss, nll.float())
    if mapping == "softmax":
        assert_near(loss, before)
    assert_near(run(patched, unlabelled(inputs)).logits, expected.float())


@models
def test_mixture_is_the_mixture_of_its_parts(model):
    inputs = model.inputs()
    patched = patch_lm_head(model.build(), "sigsoftmax", components=3)
    head = patched.get_output_embeddings()
    _, hidden = scores_and_hidden(patched, inputs)
    latents = torch.tanh(F.linear(hidden, head.latent.weight, head.latent.bias))
    prior = sigsoftmax(F.linear(hidden, head.prior.weight).double())
    p = sum(
        prior[..., [k]] * sigsoftmax(F.linear(latent, head.weight, head.bias).double())
        for k, latent in enumerate(latents.chunk(3, dim=-1))
    )
    chosen, labels = scored(p, inputs["labels"], model.shift)
    assert_near(run(patched, inputs).loss, -chosen.gather(-1, labels[:, None]).log().mean().float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_log_p_once(dtype):
    inputs, model = BY_MODEL["llama"].inputs(), BY_MODEL["llama"].build().to(dtype).train()
    scores, _ = scores_and_hidden(model, inputs)
    logits = run(patch_lm_head(model, "sigsoftmax"), inputs).logits
    assert torch.equal(logits, sigsoftmax(scores.double()).log().to(dtype))
    head = patch_lm_head(model, "sigsoftmax", learn="bias", components=2).get_output_embeddings()
    assert head.training
    assert head.latent.weight.dtype == dtype
    assert head.mapping.raw_bias.dtype == torch.float32


@pytest.mark.parametrize("size", [52, 31])
@pytest.mark.parametrize("components", [None, 2])
@models
def test_resized_vocabulary(model, components, size, tmp_path):
    """Against the plain model resized: kept tokens have the same weights, new ones have some."""
    plain, patched = model.build(), model.build()
    patch_lm_head(patched, "sigsoftmax", learn="bias", components=components)
    if size == 52:
        patched.save_pretrained(tmp_path)
        patched = model.auto.from_pretrained(tmp_path)
    before = copy.deepcopy(patched)
    for twin in (plain, patched):
        torch.manual_seed(1)
        twin.resize_token_embeddings(size, mean_resizing=False)
    assert len(before.get_output_embeddings().weight) == 40
    head = patched.get_output_embeddings()
    assert isinstance(head, LinearHead if components is None else MixtureHead)
    inputs = {n: t.clamp(max=size - 1) for n, t in model.inputs().items()}
    assert run(patched, inputs).logits.shape[-1] == size
    unpatch_lm_head(patched)
    assert shared(patched) == shared(plain)
    assert torch.equal(run(patched, inputs).logits, run(plain, inputs).logits)


# The DeBERTa of Transformers 5.17 scripts functions, which torch 2.11 deprecates.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_model_that_does_not_dispatch_its_attention_is_refused():
    config = transformers.DebertaV2Config(**BY_NAME["bert"].config)
    with pytest.raises(ValueError, match=r"DebertaV2ForMaskedLM does not dispatch"):
        patch_lm_head(transformers.DebertaV2ForMaskedLM(config), "sigsoftmax")


def test_part_of_a_patched_model_is_refused():
    config = BY_NAME["bert"].make_config(is_decoder=True, add_cross_attention=True)
    decoder = transformers.BertLMHeadModel(config)
    model = transformers.EncoderDecoderModel(encoder=BY_NAME["bert"].build(), decoder=decoder)
    with pytest.raises(ValueError, match=r"'sparsemax': it returns zeros.*EncoderDecoderModel"):
        patch_lm_head(model, "sparsemax")
    patch_lm_head(decoder, "sigsoftmax")
    with pytest.raises(ValueError, match="is, or contains, a part whose head is already patched"):
        patch_lm_head(model, "softmax")
    with pytest.raises(ValueError, match="is not patched"):
        unpatch_lm_head(model)
