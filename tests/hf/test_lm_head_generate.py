"""generate acts on log p: greedy, sampling, beams, temperature, top-k and top-p, exact zeros."""

import inspect

import pytest
import torch
from torch.nn import functional as F
from transformers import ExponentialDecayLengthPenalty

from sparse_attn import patch_lm_head, unpatch_lm_head

from .families import padding, tokens
from .helpers import assert_near
from .lm_heads import BY_MODEL

NEW = 5
HEADS = {
    "sigsoftmax": {"mapping": "sigsoftmax"},
    "mixture": {"mapping": "softmax", "components": 3},
    "sparsemax": {"mapping": "sparsemax"},
    "entmax": {"mapping": "entmax", "alpha": 1.5},
    "top-p": {"mapping": "top-p-softmax", "p": 0.5},
}
SPARSE = ["sparsemax", "entmax", "top-p"]
CASES = [
    (BY_MODEL[name], head)
    for name in ("gpt2", "llama", "llama-tied", "bert-causal", "t5", "bart")
    for head in HEADS
    if BY_MODEL[name].dispatches or head not in SPARSE
]
STRATEGIES = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9},
    "beams": {"num_beams": 3},
}
PROCESSORS = {
    "typical": {"do_sample": True, "typical_p": 0.5},
    "min-p": {"do_sample": True, "min_p": 0.1},
    "top-h": {"do_sample": True, "top_h": 0.4},
    "epsilon": {"do_sample": True, "epsilon_cutoff": 0.05},
    "eta": {"do_sample": True, "eta_cutoff": 0.05},
    "watermark": {"watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"}},
    "bias": {"sequence_bias": [[[7], 5.0], [[9, 3], -3.0]]},
    "bad words": {"bad_words_ids": [[5], [6, 7]]},
    "decay": {"exponential_decay_length_penalty": (1, 1.5)},
    "repetition": {"repetition_penalty": 1.3},
    "renormalised": {"do_sample": True, "top_p": 0.5, "renormalize_logits": True},
    "finite": {"do_sample": True, "remove_invalid_values": True},
    "lengths": {"min_new_tokens": 5},
}


def patched(name, head):
    return patch_lm_head(BY_MODEL[name].build(), **HEADS[head])


def generate(model, **options):
    torch.manual_seed(3)
    usual = {
        "do_sample": False, "max_new_tokens": NEW, "return_dict_in_generate": True,
        "output_scores": True, "output_logits": True,
        "attention_mask": padding() if model.config.is_encoder_decoder else padding().flip(-1),
    }  # fmt: skip
    return model.generate(input_ids=tokens(), **{**usual, **options})


def log_p_of(result, eos=2):
    """log p of the chosen tokens, 0 after the end of a text."""
    chosen = result.sequences[:, -len(result.logits) :]
    ended = (chosen == eos).long()
    log_p = torch.stack(result.logits, dim=1).gather(-1, chosen[..., None]).squeeze(-1)
    return log_p.where(ended.cumsum(-1) - ended == 0, 0.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("model", "head"), CASES, ids=str)
def test_every_strategy_gives_tokens_that_have_probability(model, head, strategy):
    result = generate(patch_lm_head(model.build(), **HEADS[head]), **STRATEGIES[strategy])
    logits = torch.stack(result.logits, dim=1)
    assert_near(logits.exp().sum(-1), torch.ones(logits.shape[:2]), 1e-5)
    if strategy == "beams":  # its rows of logits are not those of its texts
        assert result.sequences_scores.isfinite().all()
        return
    assert log_p_of(result).isfinite().all()
    if strategy == "greedy" and model.dispatches:  # BART ends with a forced token
        best = logits.amax(-1)
        assert torch.equal(log_p_of(result), best.where(log_p_of(result) != 0, 0.0))


def test_top_p_in_the_head_is_nucleus_sampling():
    nucleus = generate(BY_MODEL["gpt2"].build(), do_sample=True, top_k=0, top_p=0.6)
    head = patch_lm_head(BY_MODEL["gpt2"].build(), "top-p-softmax", p=0.6)
    found = generate(head, do_sample=True, top_k=0)
    assert torch.equal(found.sequences, nucleus.sequences)
    for ours, exact in zip(found.logits, nucleus.scores, strict=True):
        assert torch.equal(ours == -torch.inf, exact == -torch.inf)
        assert_near(ours.exp(), exact.softmax(-1), 1e-6)


def test_temperature_and_top_p_and_repetition_penalty_act_on_p():
    """p^(1/T) of sigsoftmax is not sigsoftmax of scores / T; a penalty is a power of p."""
    model = patched("llama", "sigsoftmax")
    result = generate(model, do_sample=True, temperature=0.5, top_k=0)
    p = result.logits[0].exp()
    assert_near(result.scores[0].softmax(-1), p.square() / p.square().sum(-1, keepdim=True), 1e-5)
    result = generate(model, do_sample=True, top_p=0.6, top_k=0)
    p, order = result.logits[0].exp().sort(dim=-1, descending=True)
    before = p.cumsum(-1) - p  # kept while those before it have not reached 0.6
    kept = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before < 0.6)
    assert torch.equal(result.scores[0].isfinite(), kept)
    result = generate(model, repetition_penalty=1.3, max_new_tokens=1, attention_mask=None)
    seen = F.one_hot(result.sequences[:, :-1], 40).any(1)
    assert_near(result.scores[0], result.logits[0] * torch.where(seen, 1.3, 1.0), 1e-6)


def test_beam_scores_are_sums_of_log_p():
    model = patched("gpt2", "sparsemax")
    result = generate(model, num_beams=4, length_penalty=0.0, eos_token_id=39)
    mask = F.pad(padding().flip(-1), (0, NEW), value=1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(result.sequences, attention_mask=mask, position_ids=positions).logits
    result.logits = logits[:, -NEW - 1 : -1].unbind(1)
    assert_near(result.sequences_scores, log_p_of(result, eos=39).sum(-1), 1e-4)


@pytest.mark.parametrize("head", SPARSE)
def test_guidance_is_refused_for_zeros(head):
    """Log 0 minus log 0 is NaN, and p / 0 is no probability."""
    model = patched("llama", head)
    with pytest.raises(ValueError, match=r"guidance_scale=1.7: .*makes exactly 0 .*sigsoft"):
        generate(model, guidance_scale=1.7)
    patch_lm_head(model, "sigsoftmax")
    assert torch.stack(generate(model, guidance_scale=1.7).scores).isfinite().all()
    unpatch_lm_head(patch_lm_head(model, "sparsemax"))
    generate(model, guidance_scale=1.7)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("head", SPARSE)
def test_processors_keep_zeros(head, name):
    model, options = patched("llama", head), PROCESSORS[name]
    # before Transformers 5.20 or so it gave NaN
    if name == "decay" and "isfinite" not in inspect.getsource(ExponentialDecayLengthPenalty):
        with pytest.raises(ValueError, match="made NaN"):
            generate(model, **options)
        return
    result = generate(model, **options)
    assert not torch.stack(result.scores).isnan().any()
    assert log_p_of(result).isfinite().all()


def test_options_that_leave_no_token_raise():
    """Argmax of a row of -inf is token 0."""
    model = patched("llama", "sparsemax")
    for beams in (1, 2):
        with pytest.raises(ValueError, match=r"sparsemax gives tokens .* made NaN of its logarit"):
            generate(model, num_beams=beams, logits_processor=[lambda ids, scores: scores - scores])
    for renormalize in (False, True):
        options = {"renormalize_logits": renormalize, "suppress_tokens": list(range(40))}
        with pytest.raises(ValueError, match=r"sparsemax gives few tokens a .* exclude all of the"):
            generate(model, **options)
        # nothing is chosen after the end of a text
        generate(model, eos_token_id=list(range(40)), **options)
