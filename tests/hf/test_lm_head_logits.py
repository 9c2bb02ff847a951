"""The logits of a patched model are the output of its head, or an error says that they are not."""

import copy
import types

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from sparse_attn import patch_lm_head, patch_multilabel_head, unpatch_lm_head
from tests.marks import first

from .families import BY_NAME, tokens
from .heads import run, unlabelled
from .helpers import assert_near
from .lm_heads import BY_MODEL
from .multilabel_models import BERT as CLASSIFIER

LLAMA, BERT = {**BY_NAME["llama"].config, "head_dim": 8}, BY_NAME["bert"].config
MOBILE = {**BERT, "embedding_size": 8, "true_hidden_size": 16, "intra_bottleneck_size": 16,
          "num_feedforward_networks": 1}  # fmt: skip


def small(cls, config=LLAMA, **changes):
    cls = getattr(transformers, cls)
    return cls(cls.config_class(**{**config, **changes})).eval()


@pytest.mark.parametrize(
    ("cls", "name", "on", "off"),
    [
        ("Gemma2ForCausalLM", "final_logit_softcapping", 30.0, None),
        ("GraniteForCausalLM", "logits_scaling", 8.0, 1.0),
        ("CohereForCausalLM", "logit_scale", 0.0625, 1.0),
    ],
)
def test_models_whose_config_changes_their_logits_are_refused(cls, name, on, off):
    message = rf"{cls} changes its logits after the head \(config\.{name}={on}\).*set that to"
    with pytest.raises(ValueError, match=message):
        patch_lm_head(small(cls, **{name: on}), "sigsoftmax")
    model, inputs = small(cls, **{name: off}), {"input_ids": tokens()}
    before = run(model, inputs).logits
    assert_near(run(patch_lm_head(model, "softmax"), inputs).logits, before.log_softmax(-1))


def test_what_cannot_be_switched_off_is_refused():
    capped = small("RecurrentGemmaForCausalLM", num_hidden_layers=3, attention_window_size=8)
    bart = BY_MODEL["bart"].build()
    bart.final_logits_bias[0, 3] = 1.0
    esm = small("EsmForMaskedLM", BERT, pad_token_id=1, mask_token_id=3, rope_theta=1e4,
                position_embedding_type="rotary")  # fmt: skip
    for model, message in (
        (capped, r"RecurrentGemmaForCausalLM changes.*logits_soft_cap=30"),
        (bart, "adds its final_logits_bias to the logits"),
        (esm, "EsmForMaskedLM adds its bias to the logits"),
    ):
        with pytest.raises(ValueError, match=message):
            patch_lm_head(model, "sigsoftmax")


@pytest.mark.parametrize("cls", ["MobileBertForMaskedLM", "MobileBertForPreTraining"])
@pytest.mark.parametrize("return_dict", [True, False])
def test_logits_from_elsewhere_than_the_head_raise(cls, return_dict):
    model = patch_lm_head(small(cls, MOBILE), "sigsoftmax")
    with pytest.raises(RuntimeError, match=f"{cls} .*without calling its patched head"):
        model(tokens(), return_dict=return_dict)
    unpatch_lm_head(model)(tokens())


@pytest.mark.parametrize(
    ("family", "cls"),
    [
        ("mistral", "MistralForCausalLM"), ("qwen3", "Qwen3ForCausalLM"),
        ("gemma3", "Gemma3ForCausalLM"), ("gpt-neox", "GPTNeoXForCausalLM"),
        ("gpt-oss", "GptOssForCausalLM"), ("opt", "OPTForCausalLM"),
        ("electra", "ElectraForMaskedLM"), ("albert", "AlbertForMaskedLM"),
        ("distilbert", "DistilBertForMaskedLM"), ("layoutlm", "LayoutLMForMaskedLM"),
        ("whisper", "WhisperForConditionalGeneration"),
    ],
)  # fmt: skip
def test_models_that_leave_logits_alone_are_patched(family, cls):
    """Beside those that test_lm_head.py runs over."""
    inputs, model = BY_NAME[family].inputs(), BY_NAME[family].build(cls)
    before = run(model, inputs).logits
    assert_near(run(patch_lm_head(model, "softmax"), inputs).logits, before.log_softmax(-1))


def in_place(model, states):
    logits = model.lm_head(states)
    logits /= 2.0
    return CausalLMOutput(logits=logits)


def one_word(model, states):
    """Its p still sums to about 1."""
    logits = model.lm_head(states)
    logits[..., 0] -= 1e-3
    return CausalLMOutput(logits=logits)


def harmless(model, states):
    """Arithmetic with hidden states and with the loss; logits of some tokens, in another type."""
    logits = model.lm_head(0.5 * states).double()[:, 2:]
    return CausalLMOutput(loss=logits.mean() * 2.0, logits=logits)


def subtract(model, states):
    """As with return_dict=False."""
    return (model.lm_head(states) - 1.0,)


def states_alone(model, states):
    return BaseModelOutput(last_hidden_state=states)


class Own(transformers.LlamaForCausalLM):
    """It makes its output of hidden states by one of these."""

    def forward(self, input_ids):
        return self.finish(self, self.model(input_ids).last_hidden_state)


def own(finish):
    torch.manual_seed(0)
    model = Own(transformers.LlamaConfig(**LLAMA)).eval()
    model.finish = finish
    return patch_lm_head(model, "sigsoftmax")


@pytest.mark.parametrize("compiled", first(False, True))
@pytest.mark.parametrize("finish", [in_place, one_word, subtract])
def test_changed_logits_raise_at_every_forward(finish, compiled):
    model = own(finish)
    for twin in (model, copy.deepcopy(model), model):
        call = torch.compile(twin, backend="eager", fullgraph=True) if compiled else twin
        message = "Own changes its logits after the patched head"
        with torch.no_grad(), pytest.raises(RuntimeError, match=message):
            call(tokens())
    unpatch_lm_head(model)(tokens())


def test_changed_logits_of_a_classifier_raise():
    model = patch_multilabel_head(CLASSIFIER.build(), "softmax")
    model.classifier.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(RuntimeError, match="changes its logits after the patched head"):
        run(model, unlabelled(CLASSIFIER.inputs()))


def test_what_is_not_about_logits_does_not_raise():
    logits = own(harmless)(tokens()).logits
    assert_near(logits.exp().sum(-1), torch.ones_like(logits[..., 0]), 1e-5)
    own(states_alone)(tokens())


def test_a_forward_of_an_instance_that_skips_the_head_raises():
    """As Liger's does in training: the loss comes from the head's weight, without logits."""

    def fused(self, input_ids, labels):
        scores = F.linear(self.model(input_ids).last_hidden_state, self.lm_head.weight)
        return CausalLMOutput(loss=F.cross_entropy(scores.flatten(0, 1), labels.flatten()))

    ids, model = tokens(), patch_lm_head(BY_MODEL["llama"].build(), "sigsoftmax")
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
