"""generate acts on log p: greedy, sampling, beams, temperature, top-k and top-p, exact zeros."""

import copy
import inspect

import pytest
import torch
from torch.nn import functional as F
from transformers import ExponentialDecayLengthPenalty

from sparse_attn import patch_model
from sparse_attn.heads import patch_lm_head, unpatch_lm_head

from .families import padding, tokens
from .helpers import assert_near
from .lm_heads import BY_MODEL, GENERATING

NEW = 5
HEADS = {
    "sigsoftmax": {"mapping": "sigsoftmax"},
    "mixture": {"mapping": "softmax", "components": 3},
    "sparsemax": {"mapping": "sparsemax"},
    "entmax": {"mapping": "entmax", "alpha": 1.5},
    "top-p": {"mapping": "top-p-softmax", "p": 0.5},
}
STRATEGIES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9},
    "beams": {"do_sample": False, "num_beams": 3},
}


def generate(model, **options):
    torch.manual_seed(3)
    inputs = {"input_ids": tokens(), "attention_mask": padding().flip(-1)}
    if model.config.is_encoder_decoder:
        inputs["attention_mask"] = padding()
    return model.generate(
        **inputs, max_new_tokens=NEW, return_dict_in_generate=True, output_scores=True,
        output_logits=True, **options,
    )  # fmt: skip


# Heads with zeros go into the models that can train them.
CASES = [
    pytest.param(model, head, id=f"{model}-{head}")
    for model in GENERATING
    for head in HEADS
    if model.dispatches or head in ("sigsoftmax", "mixture")
]


def running(tokens_, eos):
    """Which new tokens (rows, NEW) were chosen, not filled in after the end of their text."""
    ended = (tokens_ == eos).long()
    return ended.cumsum(-1) - ended == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("model", "head"), CASES)
def test_every_strategy_gives_tokens_that_have_probability(model, head, strategy):
    result = generate(patch_lm_head(model.build(), **HEADS[head]), **STRATEGIES[strategy])
    logits = torch.stack(result.logits, dim=1)
    assert_near(logits.exp().sum(-1), torch.ones(logits.shape[:2]), 1e-5)
    if strategy == "beams":  # its rows of logits are not those of its texts
        assert result.sequences_scores.isfinite().all()
        return
    chosen = result.sequences[:, -len(result.logits) :]
    log_p = logits.gather(-1, chosen[..., None]).squeeze(-1)
    assert log_p[running(chosen, 2)].isfinite().all()


@pytest.mark.parametrize("head", HEADS)
def test_greedy_takes_the_most_probable_token_with_and_without_cache(head):
    model = patch_lm_head(BY_MODEL["gpt2"].build(), **HEADS[head])
    result = generate(model, do_sample=False)
    logits = torch.stack(result.logits, dim=1)
    chosen = result.sequences[:, -NEW:]
    counts = running(chosen, 2)
    assert torch.equal(chosen[counts], logits.argmax(-1)[counts])
    again = generate(model, do_sample=False, use_cache=False)
    assert torch.equal(again.sequences, result.sequences)


def test_top_p_in_the_head_is_nucleus_sampling():
    nucleus = generate(BY_MODEL["gpt2"].build(), do_sample=True, top_k=0, top_p=0.6)
    head = patch_lm_head(BY_MODEL["gpt2"].build(), "top-p-softmax", p=0.6)
    found = generate(head, do_sample=True, top_k=0)
    assert torch.equal(found.sequences, nucleus.sequences)
    for ours, exact in zip(found.logits, nucleus.scores, strict=True):
        assert torch.equal(ours == -torch.inf, exact == -torch.inf)
        assert_near(ours.exp(), exact.softmax(-1), 1e-6)


def test_temperature_acts_on_log_p():
    """p^(1/T), which for sigsoftmax is not sigsoftmax of scores / T."""
    model = patch_lm_head(BY_MODEL["gpt2"].build(), "sigsoftmax")
    result = generate(model, do_sample=True, temperature=0.5, top_k=0)
    p = result.logits[0].exp()
    assert_near(result.scores[0].softmax(-1), p.square() / p.square().sum(-1, keepdim=True), 1e-5)


def test_top_p_counts_probabilities_of_the_mapping():
    model = patch_lm_head(BY_MODEL["gpt2"].build(), "sigsoftmax")
    result = generate(model, do_sample=True, top_p=0.6, top_k=0)
    p, order = result.logits[0].exp().sort(dim=-1, descending=True)
    before = p.cumsum(-1) - p  # kept while those before it have not reached 0.6
    kept = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before < 0.6)
    assert torch.equal(result.scores[0].isfinite(), kept)


def test_beam_scores_are_sums_of_log_p():
    model = patch_lm_head(BY_MODEL["gpt2"].build(), "sparsemax")
    result = generate(model, do_sample=False, num_beams=4, length_penalty=0.0, eos_token_id=39)
    sequences = result.sequences
    mask = torch.cat([padding().flip(-1), torch.ones(len(sequences), NEW, dtype=torch.long)], -1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(sequences, attention_mask=mask, position_ids=positions).logits
    log_p = logits[:, -NEW - 1 : -1].gather(-1, sequences[:, -NEW:, None]).squeeze(-1)
    counts = running(sequences[:, -NEW:], 39)
    assert_near(result.sequences_scores, log_p.where(counts, 0.0).sum(-1), 1e-4)


def test_samples_follow_the_mapping():
    """In 2,000 draws no token outside the support of sparsemax, and frequencies within 5 sigma."""
    model = patch_lm_head(BY_MODEL["gpt2"].build(), "sparsemax")
    draws = 2000
    ids = tokens(rows=1)
    with torch.no_grad():
        p = model(ids).logits[0, -1].exp()
    assert 1 < (p > 0).sum() < 40
    drawn = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=1,
        num_return_sequences=draws,
    )[:, -1]  # fmt: skip
    counts = drawn.bincount(minlength=40)
    assert (counts[p == 0] == 0).all()
    sigma = (draws * p * (1 - p)).sqrt()
    assert ((counts - draws * p).abs() <= 5 * sigma + 1e-3).all()


SPARSE = ["sparsemax", "entmax", "top-p"]


@pytest.mark.parametrize("scale", [1.7, 0.5])
@pytest.mark.parametrize("head", SPARSE)
def test_guidance_is_refused_for_zeros(head, scale):
    """Log 0 minus log 0 is NaN, and p / 0 is no probability."""
    model = patch_lm_head(BY_MODEL["llama"].build(), **HEADS[head])
    with pytest.raises(ValueError, match=rf"guidance_scale={scale}: .*makes exactly 0 .*sigsoft"):
        generate(copy.deepcopy(model), do_sample=False, guidance_scale=scale)
    patch_lm_head(model, "sigsoftmax")
    result = generate(model, do_sample=False, guidance_scale=scale)
    assert torch.stack(result.scores).isfinite().all()
    unpatch_lm_head(patch_lm_head(model, "sparsemax"))
    generate(model, do_sample=False, guidance_scale=scale)


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


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("head", SPARSE)
def test_processors_keep_zeros(head, name):
    model = patch_lm_head(BY_MODEL["llama"].build(), **HEADS[head])
    options = {"do_sample": False, **PROCESSORS[name]}
    # before Transformers 5.20 or so it gave NaN
    if name == "decay" and "isfinite" not in inspect.getsource(ExponentialDecayLengthPenalty):
        with pytest.raises(ValueError, match="made NaN"):
            generate(model, **options)
        return
    result = generate(model, **options)
    assert not torch.stack(result.scores).isnan().any()
    chosen = result.sequences[:, -len(result.logits) :]
    log_p = torch.stack(result.logits, dim=1).gather(-1, chosen[..., None]).squeeze(-1)
    assert log_p[running(chosen, 2)].isfinite().all()


@pytest.mark.parametrize("beams", [1, 2])
def test_a_processor_that_makes_nan_of_zeros_is_an_error(beams):
    model = patch_lm_head(BY_MODEL["llama"].build(), "sparsemax")
    processors = [lambda ids, scores: scores - scores]
    with pytest.raises(ValueError, match=r"sparsemax gives tokens .* made NaN of its logarithm"):
        generate(model, do_sample=False, num_beams=beams, logits_processor=processors)


@pytest.mark.parametrize("renormalize", [False, True])
def test_no_token_left_is_an_error(renormalize):
    """Argmax of a row of -inf is token 0."""
    model = patch_lm_head(BY_MODEL["llama"].build(), "sparsemax")
    options = {"renormalize_logits": renormalize, "suppress_tokens": list(range(40))}
    with pytest.raises(ValueError, match=r"sparsemax gives few tokens a .* exclude all of them"):
        generate(model, do_sample=False, **options)
    # nothing is chosen after the end of a text
    generate(model, do_sample=False, eos_token_id=list(range(40)), **options)


def test_repetition_penalty_is_a_power_of_p():
    """Also of softmax, whose scores without a patch have another zero."""
    model = patch_lm_head(BY_MODEL["llama"].build(), "softmax")
    ids = tokens()
    result = model.generate(
        ids, do_sample=False, repetition_penalty=1.3, max_new_tokens=1, output_scores=True,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    seen = F.one_hot(ids, 40).any(1)
    assert_near(result.scores[0], result.logits[0] * torch.where(seen, 1.3, 1.0), 1e-6)


def test_head_and_attention_generate_together():
    model = patch_model(patch_lm_head(BY_MODEL["llama"].build(), "sparsemax"), "r-softmax", r=0.3)
    cached = generate(model, do_sample=False)
    plain = generate(model, do_sample=False, use_cache=False)
    assert torch.equal(cached.sequences, plain.sequences)
