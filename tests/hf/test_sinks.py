"""Sinks: of a mapping, fixed or learned, and those that a model has learned itself."""

import pytest
import torch
import transformers
from transformers import AutoModel

from sparse_attn import (
    Mapping,
    patch_model,
    unpatch_model,
)
from sparse_attn.hf.attention import sparse_attention
from sparse_attn.hf.patching import is_patched
from sparse_attn.inspection import record_attention
from sparse_attn.mappings import get_spec

from .families import BY_NAME, LLAMA, tokens
from .helpers import (
    CALM,
    SINKS,
    assert_near,
    gradients,
    mapping_id,
    mappings_of,
    patch,
)

BERT, GPT_OSS = BY_NAME["bert"], BY_NAME["gpt-oss"]
OTHERS = {"sparsemax": {}, "entmax": {"alpha": 1.5}, "r-softmax": {"r": 0.3}}
# classes that pass s_aux in all of their layers and in some: their config
OWN = {
    "GptOssModel": GPT_OSS.config,
    "MiMoV2FlashModel": {**LLAMA, "head_dim": 8, "v_head_dim": 4, "sliding_window": 4,
                         "layer_types": ["full_attention", "sliding_attention"]},
}  # fmt: skip


def build(name, **changes):
    if not hasattr(transformers, name):
        pytest.skip(f"Transformers {transformers.__version__} has no {name}")
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**{**OWN[name], **changes})).eval()
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in part:
                parameter.normal_(0, 0.4)
            elif part.endswith(".sinks"):
                parameter.normal_(mean=1.0)
    return model


def sinks_of(model):
    return {n: p for n, p in model.named_parameters() if n.endswith(".sinks")}


def run(model, ids):
    """Hidden states and every gradient of their projection."""
    model.zero_grad()
    hidden = model(input_ids=ids).last_hidden_state
    (hidden * torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)).sum().backward()
    return hidden.detach(), gradients(model)


@pytest.mark.parametrize("name", OWN)
def test_own_sinks_in_softmax_are_eager_with_gradients(name):
    ids = tokens(rows=2, length=12)
    model = build(name, attn_implementation="eager")
    expected, exact = run(model, ids)
    names = [*model.state_dict()]
    hidden, found = run(patch_model(model, "softmax"), ids)
    assert_near(hidden, expected, 1e-5)
    assert found.keys() == exact.keys() >= sinks_of(model).keys()
    for part, gradient in found.items():
        largest = exact[part].abs().max().clamp(min=0.1)
        assert (gradient - exact[part]).abs().max() <= 1e-4 * largest, part
    assert all(found[part].abs().sum() > 0 for part in sinks_of(model))
    assert torch.equal(run(unpatch_model(model), ids)[0], expected)
    assert [*model.state_dict()] == names


@pytest.mark.parametrize("mapping", OTHERS)
@pytest.mark.parametrize("name", OWN)
def test_own_sinks_in_another_mapping_are_those_of_the_reference(name, mapping):
    ids = tokens(rows=2, length=12)
    model = patch_model(build(name), mapping, **OTHERS[mapping])
    fused, gradient = run(model, ids)
    with torch.no_grad():
        output = model(input_ids=ids, output_attentions=True)
    assert_near(fused, output.last_hidden_state, 1e-5)
    assert any((weights.sum(-1) < 0.99).any() for weights in output.attentions)
    assert any(gradient[part].abs().sum() > 0 for part in sinks_of(model))


@pytest.mark.parametrize("mapping", [m for m in CALM if m not in SINKS], ids=mapping_id)
def test_every_mapping_takes_own_sinks_or_is_refused(mapping):
    model = GPT_OSS.build()
    spec = get_spec(mapping[0])
    if spec.mass == "free" or any(p.per_entry for p in spec.parameters):
        with pytest.raises(ValueError, match=r"layers\.0\.self_attn has attention sinks"):
            patch(model, mapping)
        assert not is_patched(model)
        return
    inputs = GPT_OSS.unmasked()
    fused = GPT_OSS.hidden(patch(model, mapping), inputs)
    assert_near(fused, GPT_OSS.hidden(model, {**inputs, "output_attentions": True}), 1e-5)


@pytest.mark.parametrize("mapping", ["softmax", *OTHERS])
def test_own_sinks_are_one_more_score(mapping):
    """p = map((z, s_aux)) without its last entry."""
    module = torch.nn.Module()
    module.sparse_attn = Mapping(mapping, **OTHERS.get(mapping, {}))
    query, key, sinks = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(4)
    keys = key.repeat_interleave(2, 1)
    column = sinks.view(1, 4, 1, 1).expand(2, 4, 5, 1)
    expected = module.sparse_attn(torch.cat([query @ keys.mT * 8**-0.5, column], -1))[..., :-1]
    output, weights = sparse_attention(
        module, query, key, key, None, s_aux=sinks, output_attentions=True
    )
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, (expected @ keys).transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_own_sinks_of_some_layers():
    """The others take any mapping."""
    model = build("MiMoV2FlashModel")
    assert model.layers[0].self_attn.sinks is None
    patch_model(model, "relu", layers=[0])
    patch_model(model, "softmax", sink=0.5, layers=[0])
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn has attention sinks"):
        patch_model(model, "relu")


@pytest.mark.parametrize("family", [BY_NAME[n] for n in ("bert", "gpt2", "t5")], ids=str)
@pytest.mark.parametrize("mapping", ["softmax", "scaled-softmax", "mixed-sparsemax", *OTHERS])
def test_a_sink_of_the_mapping_takes_mass(family, mapping):
    inputs = family.unmasked()
    model = patch_model(family.build(), mapping, **OTHERS.get(mapping, {}))
    before = family.hidden(model, inputs)
    if mapping != "r-softmax":  # where it counts as a key
        patch_model(model, mapping, **OTHERS.get(mapping, {}), sink=-1e4)
        assert_near(family.hidden(model, inputs), before, 1e-5)  # too low to take any
    values = [0.0, 0.5, 1.0, 1.5]
    patch_model(model, mapping, **OTHERS.get(mapping, {}), sink=values, per="head")
    fused = family.hidden(model, inputs)
    assert (fused - before).abs().max() > 1e-3
    assert_near(fused, family.hidden(model, {**inputs, "output_attentions": True}), 1e-5)
    assert torch.equal(next(mappings_of(model)).value("sink"), torch.tensor(values))


@pytest.mark.parametrize("name", ["sigmoid", "clipped-softmax"])
def test_values_that_rows_derive_are_saved_as_null(name, tmp_path):
    model = patch_model(BERT.build(), name)
    (empty,) = [p.name for p in get_spec(name).parameters if p.default is None]
    with record_attention(model) as record:
        BERT.hidden(model)
    assert empty not in record.parameters
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert next(mappings_of(loaded)).value(empty) is None
    assert torch.equal(BERT.hidden(loaded), BERT.hidden(model))
    given = BERT.hidden(patch_model(model, name, **{empty: -0.1}))
    assert (given - BERT.hidden(loaded)).abs().max() > 1e-3
