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

from .families import BY_NAME, tokens
from .helpers import assert_near
from .lm_heads import BY_MODEL, run


def small(cls, **changes):
    config = {**BY_NAME["llama"].config, "head_dim": 8, **changes}
    return getattr(transformers, cls)(getattr(transformers, cls).config_class(**config)).eval()


@pytest.mark.parametrize(
    ("cls", "on", "off", "line"),
    [
        ("Gemma2ForCausalLM", {"final_logit_softcapping": 30.0}, {"final_logit_softcapping": None},
         "final_logit_softcapping"),
        ("Gemma3ForCausalLM", {"final_logit_softcapping": 30.0}, {}, "final_logit_softcapping"),
        ("GraniteForCausalLM", {"logits_scaling": 8.0}, {"logits_scaling": 1.0}, "logits_scaling"),
        ("CohereForCausalLM", {"logit_scale": 0.0625}, {"logit_scale": 1.0}, "logit_scale"),
    ],
)  # fmt: skip
def test_models_that_change_their_logits_are_refused(cls, on, off, line):
    with pytest.raises(ValueError, match=rf"{cls} changes its logits after the head \(.*{line}"):
        patch_lm_head(small(cls, **on), "sigsoftmax")
    model = small(cls, **off)
    ids = tokens()
    before = run(model, {"input_ids": ids}).logits
    after = run(patch_lm_head(model, "softmax"), {"input_ids": ids}).logits
    assert_near(after, before.log_softmax(-1))


def test_soft_cap_without_a_switch_is_refused():
    model = small("RecurrentGemmaForCausalLM", num_hidden_layers=3, attention_window_size=8)
    with pytest.raises(ValueError, match=r"RecurrentGemmaForCausalLM changes its logits.*tanh"):
        patch_lm_head(model, "sigsoftmax")


def test_bias_on_the_logits_is_refused():
    model = BY_MODEL["bart"].build()
    model.final_logits_bias[0, 3] = 1.0
    with pytest.raises(ValueError, match="adds its final_logits_bias to the logits"):
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
        ("MobileBertForMaskedLM", MOBILE, r"MobileBertLMPredictionHead does not call.*decoder\)"),
        ("MobileBertForPreTraining", MOBILE, r"MobileBertLMPredictionHead does not call"),
        ("EsmForMaskedLM", ESM, r"EsmLMHead changes.*\(x = self\.decoder\(x\) \+ self\.bias\)"),
        ("ChameleonForConditionalGeneration", CHAMELEON, r"changes.*\(logits\[:, :, image_tokens"),
    ],
)
def test_logits_from_elsewhere_than_the_head_are_refused(cls, config, message):
    cls = getattr(transformers, cls)
    model = cls(cls.config_class(**config))
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        patch_lm_head(model, "sigsoftmax")
    assert list(model.state_dict()) == keys


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
    """What the classes below do with its hidden states is read from their source."""

    def states(self, input_ids):
        return self.model(input_ids).last_hidden_state


class Factor(Llama):
    """A factor that the config switches off does not excuse another line."""

    def forward(self, input_ids):
        logits = self.lm_head(self.states(input_ids))
        logits = logits * self.config.logits_scaling
        logits = logits.to(logits.dtype) * 2.0
        return CausalLMOutput(logits=logits)


class InPlace(Llama):
    def forward(self, input_ids):
        logits = self.lm_head(self.states(input_ids))
        logits /= 2.0
        return CausalLMOutput(logits=logits)


class Returned(Llama):
    def forward(self, input_ids):
        return self.lm_head(self.states(input_ids)) - 1.0


class OtherName(Llama):
    def forward(self, input_ids):
        words = self.lm_head(self.states(input_ids))
        words[..., 0] = 0.0
        return CausalLMOutput(logits=words)


class Harmless(Llama):
    """Arithmetic with hidden states, with the loss, and where the config says None."""

    def forward(self, input_ids):
        logits = self.lm_head(0.5 * self.states(input_ids)).float()
        if (cap := self.config.cap) is not None:
            logits = torch.tanh(logits / cap)
            logits = logits * cap
        logits = logits * self.config.logits_scaling
        return CausalLMOutput(loss=logits.mean() * 2.0, logits=logits)


class Hidden(Llama):
    """Changes its logits where no reader of the source would find it."""

    def forward(self, input_ids):
        return CausalLMOutput(logits=self.later(self.lm_head(self.states(input_ids))))

    def later(self, logits):
        return logits * 0.5


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
    config = {**BY_NAME["llama"].config, "logits_scaling": 1.0, "cap": None}
    return cls(transformers.LlamaConfig(**config)).eval()


@pytest.mark.parametrize(
    ("cls", "line"),
    [
        (Factor, r"logits = logits.to\(logits.dtype\) \* 2.0"),
        (InPlace, "logits /= 2.0"),
        (Returned, r"return self.lm_head\(.*\) - 1.0"),
        (OtherName, r"words\[..., 0\] = 0.0"),
    ],
)
def test_every_line_that_changes_logits_is_found(cls, line):
    with pytest.raises(ValueError, match=rf"{cls.__name__} changes its logits .*\({line}\)"):
        patch_lm_head(own(cls), "sigsoftmax")


def test_arithmetic_with_anything_else_is_not():
    logits = patch_lm_head(own(Harmless), "sigsoftmax")(tokens()).logits
    assert_near(logits.exp().sum(-1), torch.ones(logits.shape[:2]), 1e-5)


def test_a_change_that_the_source_hides_raises_at_every_forward():
    model = patch_lm_head(own(Hidden), "sigsoftmax")
    for twin in (model, copy.deepcopy(model), model):
        with pytest.raises(RuntimeError, match=r"Hidden changes its logits.*sums to p = \d"):
            twin(tokens())
    unpatch_lm_head(model)(tokens())


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


def test_guard_does_not_break_the_graph():
    inputs = BY_MODEL["llama"].inputs()
    model = patch_lm_head(BY_MODEL["llama"].build(num_hidden_layers=1), "sigsoftmax")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_near(run(compiled, inputs).logits, run(model, inputs).logits)


# torch's compiler looks at .grad of what crosses a break of the graph.
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
