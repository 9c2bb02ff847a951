"""The logits of a patched model are the output of its head, or an error says that they are not."""

import copy
import pickle
import types

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from sparse_attn.heads import patch_lm_head, unpatch_lm_head
from tests.marks import first

from .families import BY_NAME, tokens
from .helpers import assert_near
from .lm_heads import BY_MODEL, run


def small(cls, **changes):
    config = {**BY_NAME["llama"].config, "head_dim": 8, **changes}
    return getattr(transformers, cls)(getattr(transformers, cls).config_class(**config)).eval()


@pytest.mark.parametrize(
    ("cls", "name", "on", "off"),
    [
        ("Gemma2ForCausalLM", "final_logit_softcapping", 30.0, None),
        ("Gemma3ForCausalLM", "final_logit_softcapping", 30.0, None),
        ("GraniteForCausalLM", "logits_scaling", 8.0, 1.0),
        ("CohereForCausalLM", "logit_scale", 0.0625, 1.0),
    ],
)
def test_models_whose_config_changes_their_logits_are_refused(cls, name, on, off):
    message = rf"{cls} changes its logits after the head \(config\.{name}={on}\).*set that to"
    with pytest.raises(ValueError, match=message):
        patch_lm_head(small(cls, **{name: on}), "sigsoftmax")
    model = small(cls, **{name: off})
    ids = tokens()
    before = run(model, {"input_ids": ids}).logits
    after = run(patch_lm_head(model, "softmax"), {"input_ids": ids}).logits
    assert_near(after, before.log_softmax(-1))


def test_soft_cap_without_a_switch_is_refused():
    model = small("RecurrentGemmaForCausalLM", num_hidden_layers=3, attention_window_size=8)
    with pytest.raises(ValueError, match=r"RecurrentGemmaForCausalLM changes.*logits_soft_cap=30"):
        patch_lm_head(model, "sigsoftmax")


def test_bias_on_the_logits_is_refused():
    model = BY_MODEL["bart"].build()
    model.final_logits_bias[0, 3] = 1.0
    with pytest.raises(ValueError, match="adds its final_logits_bias to the logits"):
        patch_lm_head(model, "sigsoftmax")
    model = transformers.EsmForMaskedLM(transformers.EsmConfig(**ESM))
    with pytest.raises(ValueError, match="EsmForMaskedLM adds its bias to the logits"):
        patch_lm_head(model, "sigsoftmax")


MOBILE = {**BY_NAME["bert"].config, "embedding_size": 8, "true_hidden_size": 16,
          "intra_bottleneck_size": 16, "num_feedforward_networks": 1}  # fmt: skip
ESM = {**BY_NAME["bert"].config, "pad_token_id": 1, "mask_token_id": 3, "rope_theta": 1e4,
       "position_embedding_type": "rotary"}  # fmt: skip
CHAMELEON = {
    **BY_NAME["llama"].config,
    "vq_config": {"embed_dim": 8, "num_embeddings": 4, "latent_channels": 8, "base_channels": 32,
                  "channel_multiplier": [1], "num_res_blocks": 1, "resolution": 8,
                  "attn_resolutions": []},
    "vocabulary_map": {"<image>": 4, "IMGIMGAZ": 5, "IMGIMGBZ": 6},
}  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "config", "message"),
    [
        ("MobileBertForMaskedLM", MOBILE, "without calling its patched head"),
        ("MobileBertForPreTraining", MOBILE, "without calling its patched head"),
        ("ChameleonForConditionalGeneration", CHAMELEON, "changes its logits after the patched"),
    ],
)
@pytest.mark.parametrize("return_dict", [True, False])
def test_logits_from_elsewhere_than_the_head_raise(cls, config, message, return_dict):
    cls = getattr(transformers, cls)
    model = patch_lm_head(cls(cls.config_class(**config)), "sigsoftmax")
    with pytest.raises(RuntimeError, match=f"{cls.__name__} .*{message}"):
        model(tokens(), return_dict=return_dict)
    unpatch_lm_head(model)(tokens())


@pytest.mark.parametrize(
    ("family", "cls"),
    [
        ("mistral", "MistralForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
        ("gemma3", "Gemma3ForCausalLM"),
        ("gpt-neox", "GPTNeoXForCausalLM"),
        ("opt", "OPTForCausalLM"),
        ("electra", "ElectraForMaskedLM"),
        ("albert", "AlbertForMaskedLM"),
        ("distilbert", "DistilBertForMaskedLM"),
        ("xlm-roberta", "XLMRobertaForMaskedLM"),
        ("layoutlm", "LayoutLMForMaskedLM"),
        ("whisper", "WhisperForConditionalGeneration"),
    ],
)
def test_models_that_leave_logits_alone_are_patched(family, cls):
    """Beside those that test_lm_head.py runs over."""
    inputs = BY_NAME[family].inputs()
    model = BY_NAME[family].build(cls)
    before = run(model, inputs).logits
    assert_near(run(patch_lm_head(model, "softmax"), inputs).logits, before.log_softmax(-1))


class Llama(transformers.LlamaForCausalLM):
    """What follows its head is `after`, which the classes below change."""

    def states(self, input_ids):
        return self.model(input_ids).last_hidden_state

    def forward(self, input_ids):
        return CausalLMOutput(logits=self.after(self.lm_head(self.states(input_ids))))


class Factor(Llama):
    def after(self, logits):
        return logits * 0.5


class InPlace(Llama):
    def after(self, logits):
        logits /= 2.0
        return logits


class OneWord(Llama):
    """Its p still sums to about 1."""

    def after(self, logits):
        logits[..., 0] -= 1e-3
        return logits


class Returned(Llama):
    """As with return_dict=False."""

    def forward(self, input_ids):
        return (self.lm_head(self.states(input_ids)) - 1.0,)


class Harmless(Llama):
    """Arithmetic with hidden states and with the loss; logits of some tokens, in another type."""

    def forward(self, input_ids):
        logits = self.lm_head(0.5 * self.states(input_ids)).double()[:, 2:]
        return CausalLMOutput(loss=logits.mean() * 2.0, logits=logits)


class Skipping(Llama):
    """Calls its head sometimes."""

    def forward(self, input_ids, skip="no"):
        states = self.states(input_ids)
        if skip == "logits":
            return CausalLMOutput(logits=F.linear(states, self.lm_head.weight))
        if skip == "tuple":
            return (F.linear(states, self.lm_head.weight),)
        if skip == "all":
            return BaseModelOutput(last_hidden_state=states)
        return CausalLMOutput(logits=self.lm_head(states))


def own(cls):
    torch.manual_seed(0)
    return cls(transformers.LlamaConfig(**BY_NAME["llama"].config)).eval()


@pytest.mark.parametrize("compiled", first(False, True))
@pytest.mark.parametrize("cls", [Factor, InPlace, OneWord, Returned])
def test_changed_logits_raise_at_every_forward(cls, compiled):
    model = patch_lm_head(own(cls), "sigsoftmax")
    for twin in (model, copy.deepcopy(model), model):
        call = torch.compile(twin, backend="eager", fullgraph=True) if compiled else twin
        message = rf"{cls.__name__} changes its logits after the patched head"
        with torch.no_grad(), pytest.raises(RuntimeError, match=message):
            call(tokens())
    unpatch_lm_head(model)(tokens())


def test_arithmetic_with_anything_else_is_not():
    logits = patch_lm_head(own(Harmless), "sigsoftmax")(tokens()).logits
    assert_near(logits.exp().sum(-1), torch.ones_like(logits[..., 0]), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("skip", ["logits", "tuple"])
def test_logits_without_a_call_of_the_head_raise(skip):
    model = patch_lm_head(own(Skipping), "sigsoftmax")
    model(tokens())
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(RuntimeError, match="Skipping computed its output without calling"):
            twin(tokens(), skip)
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(RuntimeError, match="without calling its patched head"):
        compiled(tokens(), skip)
    unpatch_lm_head(model)(tokens(), skip)


def test_a_call_without_logits_needs_no_head():
    model = patch_lm_head(own(Skipping), "sigsoftmax")
    model(tokens(), "all")
    model.model(tokens())


def test_forward_of_an_instance_that_skips_the_head_raises():
    """As Liger's does in training: the loss comes from the head's weight, without logits."""

    def fused(self, input_ids, labels):
        scores = F.linear(self.model(input_ids).last_hidden_state, self.lm_head.weight)
        return CausalLMOutput(loss=F.cross_entropy(scores.flatten(0, 1), labels.flatten()))

    ids = tokens()
    model = patch_lm_head(BY_MODEL["llama"].build(), "sigsoftmax")
    model(ids)
    model.forward = types.MethodType(fused, model)
    with pytest.raises(RuntimeError, match="such as use_liger_kernel"):
        model(ids, labels=ids)


def test_nan_and_half_precision_pass_the_guard():
    for dtype in (torch.bfloat16, torch.float16):
        model = BY_MODEL["llama"].build(vocab_size=100_000).to(dtype)
        patch_lm_head(model, "sigsoftmax")(tokens())
    model.get_output_embeddings().weight.data.fill_(torch.nan)
    assert copy.deepcopy(model)(tokens()).logits.isnan().all()
    patch_lm_head(model, "softmax")
    assert model(tokens()).logits.isnan().all()


@pytest.mark.slow
def test_guard_does_not_break_the_graph():
    inputs = BY_MODEL["llama"].inputs()
    model = patch_lm_head(BY_MODEL["llama"].build(num_hidden_layers=1), "sigsoftmax")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_near(run(compiled, inputs).logits, run(model, inputs).logits)


# torch's compiler looks at .grad of what crosses a break of the graph.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_model_computes_the_same():
    inputs = BY_MODEL["llama"].inputs()
    model = BY_MODEL["llama"].build(num_hidden_layers=1)
    compiled = torch.compile(model, backend="eager")
    assert patch_lm_head(compiled, "sparsemax") is compiled
    expected = model(**inputs)
    actual = compiled(**inputs)
    assert_near(actual.loss, expected.loss)
    torch.testing.assert_close(actual.logits, expected.logits)
