"""What `record_attention` counts, beside the attention weights themselves."""

import gc
import math
import re
import weakref
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from sparse_attn import Mapping, load_pretrained, patch_model
from sparse_attn.hf.patching import is_patched
from sparse_attn.inspection import record, record_attention
from sparse_attn.inspection.recording import valid_queries
from sparse_attn.kernels import reference
from sparse_attn.kernels.inputs import AttentionInputs
from tests.hf.families import BY_NAME, FAMILIES, LLAMA, Family
from tests.inspection.tiny import IDS, MASK, bert, recorded, sharp_bert


def expected(weights: Tensor, queries: Tensor, keys: Tensor, special: Tensor) -> Tensor:
    """zeros, support, entropy, special of (B, H, Q, K), over these queries (B, Q), keys (B, K)."""
    rows = []
    for head in weights.double().unbind(1):
        p = torch.cat([head[b][queries[b]][:, keys[b]].flatten() for b in range(len(head))])
        count = queries.sum()
        mass = sum(head[b][queries[b]][:, special[b]].sum() for b in range(len(head)))
        rows.append(
            torch.stack(
                [
                    (p == 0).double().mean(),
                    (p > 0).sum() / count,
                    torch.special.entr(p).sum() / count,
                    mass / count,
                ]
            )
        )
    return torch.stack(rows)


def found(made: record.AttentionRecord) -> Tensor:
    return torch.stack([made.zeros, made.support, made.entropy, made.special], dim=-1)


@pytest.mark.parametrize("name", ["softmax", "r-softmax", None])
def test_numbers_are_those_of_the_weights(name: str | None) -> None:
    model = bert()
    if name is not None:
        patch_model(model, name)
    ids = torch.randint(5, 40, (3, 9))
    valid = torch.arange(9) < torch.tensor([9, 6, 2])[:, None]
    inputs = {"input_ids": ids, "attention_mask": valid.long()}
    with torch.no_grad(), record_attention(model, special_ids=[7, 8, 9]) as made:
        model(**inputs)
    model.set_attn_implementation("eager") if name is None else None
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).attentions
    special = torch.isin(ids, torch.tensor([7, 8, 9])) & valid
    for layer, p in enumerate(weights):
        torch.testing.assert_close(
            found(made)[layer], expected(p, valid, valid, special), atol=1e-5, rtol=1e-5
        )
    if name == "r-softmax":  # floor(0.15 (n - 1)) + 1 of n: 2 of 9, 1 of 6, 1 of 2
        assert made.zeros[0, 0] == pytest.approx((9 * 2 + 6 * 1 + 2 * 1) / (81 + 36 + 4))
        assert made.mean == pytest.approx(made.zeros.mean().item())


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("softmax", {"sink": 0.0}),
        ("sparsemax", {"sink": 0.3}),
        ("softpick", {}),
        ("clipped-softmax", {}),
        ("sigmoid", {}),
        ("relu", {}),
    ],
)
def test_rows_that_do_not_sum_to_one(name: str, values: dict[str, float], kept: bool) -> None:
    model = patch_model(sharp_bert(), name, **values)
    valid = MASK.bool()
    with torch.no_grad(), record_attention(model, special_ids=[5], weights=kept) as made:
        model(IDS, attention_mask=MASK)
    with torch.no_grad():
        weights = model(IDS, attention_mask=MASK, output_attentions=True).attentions
    for layer, p in enumerate(weights):
        q = p / p.sum(-1, keepdim=True).masked_fill(p.sum(-1, keepdim=True) == 0, 1)
        entropy = expected(q, valid, valid, IDS == 5)[:, 2]
        seen = expected(p, valid, valid, IDS == 5)
        seen[:, 2] = entropy
        torch.testing.assert_close(found(made)[layer], seen, atol=1e-5, rtol=1e-5)
        mass = (p.double().sum(-1) * valid[:, None]).sum((0, 2)) / valid.sum()
        torch.testing.assert_close(made.mass[layer], mass, atol=1e-5, rtol=1e-5)
    header, first, *_ = made.table().splitlines()
    assert header.split()[4:] == ["entropy", "mass", "special"]
    # no share: of weights that sum to 5, 1.1 may be on special tokens
    mass, special = made.mass[0].mean(), made.special[0].mean()
    assert first.split()[5:] == [f"{mass:.2f}", f"{special:.2f}"]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_patched_or_not(family: Family) -> None:
    model, inputs = family.build(), family.inputs()
    # the softcap of Gemma 2, which Transformers' SDPA leaves out
    if family.name == "gemma2":
        model.set_attn_implementation("eager")
    with torch.no_grad():
        plain, valid = family.run(model, inputs), family.hidden(model, inputs)
        with record_attention(model) as unpatched:
            recorded = family.hidden(model, inputs)
        assert torch.equal(family.run(model, inputs), plain)
        # at padding eager attention is uniform and ours 0
        torch.testing.assert_close(recorded, valid, atol=2e-4, rtol=2e-4)
        patch_model(model, "r-softmax", r=0.5)
        before = family.run(model, inputs)
        with record_attention(model) as patched:
            assert torch.equal(family.run(model, inputs), before)
    assert unpatched.layers == patched.layers
    assert len(patched.layers) == family.modules
    assert unpatched.mean == 0
    # half of the keys or one more, but none of a single key
    assert (patched.zeros > 0.4).all()
    assert (patched.support < unpatched.support).all()
    assert (patched.entropy < unpatched.entropy).all()


@pytest.mark.parametrize("rows", [2, 1000])
@pytest.mark.parametrize("name", ["softmax", "entmax", "sigmoid", None])
def test_mass_that_keys_receive(
    name: str | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "BLOCK", rows * 3 * 2 * 9)
    model = sharp_bert()
    if name is not None:
        patch_model(model, name)
    valid = torch.arange(9) < torch.tensor([9, 6, 2])[:, None]
    inputs = {"input_ids": torch.randint(5, 40, (3, 9)), "attention_mask": valid.long()}
    with torch.no_grad(), record_attention(model, received=True) as made:
        model(**inputs)
    model.set_attn_implementation("eager") if name is None else None
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).attentions
    for p, received in zip(weights, made.received, strict=True):
        assert received is not None
        queries = (p * valid[:, None, :, None]).sum(2)
        torch.testing.assert_close(received, queries, atol=1e-5, rtol=1e-5)


def test_special_tokens_of_two_stacks() -> None:
    family = BY_NAME["t5"]
    model, inputs = family.build(), family.inputs()
    inputs["input_ids"][:, 0], inputs["decoder_input_ids"][:, 0] = 8, 9
    for ids, seen in (([8], {"encoder", "EncDec"}), ([9], {"decoder"})):
        inputs["input_ids"].masked_fill_(inputs["input_ids"] == 9, 10)
        inputs["decoder_input_ids"].masked_fill_(inputs["decoder_input_ids"] == 8, 10)
        with torch.no_grad(), record_attention(model, special_ids=ids, weights=True) as made:
            model(**inputs)
        assert made.crosses == ["EncDec" in layer for layer in made.layers]
        for layer, mass, crosses in zip(made.layers, made.special, made.crosses, strict=True):
            own = "encoder" in seen if layer.startswith("encoder") or crosses else "decoder" in seen
            assert bool((mass > 0).all()) == own, layer


def test_infinity_in_a_bias_is_padding_as_a_mask_is() -> None:
    inputs = [torch.randn(1, 2, 6, 4) for _ in range(3)]
    mask = (torch.arange(6) < 4).expand(1, 1, 6, 6)
    bias = torch.zeros(1, 2, 6, 6).masked_fill(~mask, -math.inf)
    calls = [AttentionInputs(*inputs, Mapping("sparsemax"), mask=mask)]
    calls += [AttentionInputs(*inputs, Mapping("sparsemax"), bias=bias)]
    expected, found = (valid_queries(call) for call in calls)
    assert expected.expand(1, 2, 6).tolist() == found.tolist() == [[[True] * 4 + [False] * 2] * 2]


def test_what_is_not_known_is_nan() -> None:
    model = bert()
    with torch.no_grad(), record_attention(model, special_ids=[7]) as made:
        assert made.zeros.isnan().all()
        assert math.isnan(made.mean)
        model(inputs_embeds=torch.randn(2, 5, 16))
    assert made.special.isnan().all()
    assert made.zeros.eq(0).all()
    with torch.no_grad(), record_attention(model) as made:
        model(torch.randint(5, 40, (2, 5)))
    assert made.special.isnan().all()


def test_positions_of_a_cache() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA)).eval()
    with record_attention(model) as made:
        model.generate(torch.randint(5, 40, (1, 4)), max_new_tokens=3, min_new_tokens=3)
    # query i sees i + 1 keys: four of the prompt, and one for each new token but the last
    assert torch.equal(made.support_by_position[0, 0], torch.arange(1.0, 7.0).double())


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("weights", [True, False, "sparse"])
def test_gradient_checkpointing_counts_once(reentrant: bool, weights: bool | str) -> None:
    results = []
    for checkpointing in (False, True):
        model = patch_model(bert(), "t-softmax", t=2.0, learn="t").train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            # its newer name
            enable = getattr(
                model, "activation_checkpointing_enable", model.gradient_checkpointing_enable
            )
            enable({"use_reentrant": reentrant})
        ids = torch.arange(5, 23).view(2, 9)
        inputs = {"inputs_embeds": model.get_input_embeddings()(ids)}
        with record_attention(model, weights=weights) as made:
            model(**inputs).last_hidden_state.square().sum().backward()
        assert [len(calls) for calls in made.sparse.values()] == [1, 1] * (weights == "sparse")
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        results.append((made.zero_counts.counts, made.support, grads))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    for plain, again in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(plain, again)


def test_autocast_and_training() -> None:
    model = patch_model(bert(attention_probs_dropout_prob=0.5), "sparsemax").train()
    ids = torch.randint(5, 40, (2, 9))
    with torch.autocast("cpu", torch.bfloat16), record_attention(model) as made:
        model(ids).last_hidden_state.float().sum().backward()
    # dropped weights are no zeros of the mapping: sparsemax of small scores keeps all keys
    assert made.zeros.eq(0).all()
    assert made.support.eq(9).all()


def test_parameters_over_training() -> None:
    model = patch_model(bert(), "t-softmax", t=2.0, learn="t", per="head", layers=[0])
    patch_model(model, "r-softmax", r=0.2, layers=[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ids, seen = torch.randint(5, 40, (2, 9)), []
    with record_attention(model) as made:
        for _ in range(3):
            seen.append(model.encoder.layer[0].attention.self.sparse_attn.value("t").detach())
            model(ids).last_hidden_state.sum().backward()
            optimizer.step()
    assert made.calls == [1, 2, 3]
    values = made.parameters
    assert torch.equal(values["t"][:, 0], torch.stack(seen).double())
    assert values["t"][0, 0, 0] != values["t"][2, 0, 0]
    assert values["t"][:, 1].isnan().all()
    assert values["r"][:, 0].isnan().all()
    assert values["r"][:, 1].eq(0.2).all()


def test_snapshots_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_SNAPSHOTS", 4)
    model = patch_model(bert(num_hidden_layers=1), "r-softmax")
    with torch.no_grad(), record_attention(model) as made:
        for call in range(1, 21):
            model.encoder.layer[0].attention.self.sparse_attn.set_value("r", call / 100)
            model(torch.tensor([[5, 6]]))
    assert made.calls == [1, 9, 17]
    assert made.parameters["r"][:, 0, 0].tolist() == [0.01, 0.09, 0.17]


def test_weights_where_they_are_asked_for() -> None:
    model = patch_model(bert(), "r-softmax", r=0.5)
    ids, valid = torch.randint(5, 40, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    valid[1, 4:] = 0
    with torch.no_grad(), record_attention(model, weights=True) as made:
        model(ids, attention_mask=valid)
        output = model(ids, attention_mask=valid, output_attentions=True)
    for kept, mask, given in zip(made.weights, made.valid, output.attentions, strict=True):
        assert torch.equal(kept, given)
        assert torch.equal(mask.expand(2, 1, 9, 9)[:, 0, 0], valid.bool())
    with torch.no_grad(), record_attention(model) as made:
        assert model(ids, attention_mask=valid).attentions is None
        model(ids, attention_mask=valid, output_attentions=True)


def test_weights_by_layer() -> None:
    made = recorded(sharp_bert("sparsemax"), weights=True)
    tensors = [made.weights[number] for number in range(3)]
    for number, name in enumerate(made.layers):
        assert made.weights[name] is tensors[number]
    assert made.weights[-1] is tensors[2]
    assert list(dict(made.weights.items())) == made.weights.keys() == made.layers
    for wrong in (3, -4, "encoder.layer.3"):
        with pytest.raises(LookupError, match=rf"no layer {wrong!r}; .*names such as 'encoder\."):
            made.weights[wrong]
    with pytest.raises(LookupError, match=r"no received of encoder.*\(model, received=True\)"):
        made.received["encoder.layer.2.attention.self"]
    with pytest.raises(KeyError, match=r"no sparse rows of 'encoder.*weights='sparse'"):
        made.sparse["encoder.layer.2.attention.self"]


@pytest.mark.parametrize("name", [None, "r-softmax"])
def test_what_is_saved_or_copied_inside_a_block(name: str | None, tmp_path: Path) -> None:
    model, ids = bert(), torch.tensor([[5, 6, 7, 8]])
    if name is not None:
        patch_model(model, name, r=0.5)
    with torch.no_grad():
        before = model(ids).last_hidden_state
        with record_attention(model, special_ids=[7]) as made:
            model(ids)
            model.save_pretrained(tmp_path / "saved")
            torch.save(model, tmp_path / "pickled.pt")
            copied = deepcopy(model)
    # a plain model is saved as one
    plain, folder = name is None, tmp_path / "saved"
    saved = BertModel.from_pretrained(folder) if plain else load_pretrained(BertModel, folder)
    assert is_patched(saved) != plain
    pickled = torch.load(tmp_path / "pickled.pt", weights_only=False)
    calls = made.zero_counts.counts.clone()
    with torch.no_grad():
        for other in (saved.eval(), copied, pickled):
            torch.testing.assert_close(other(ids).last_hidden_state, before, atol=1e-5, rtol=1e-5)
            with record_attention(other) as again:
                other(ids)
            assert torch.equal(again.zero_counts.counts, calls)
    # calls of a copy are not counted
    assert torch.equal(made.zero_counts.counts, calls)


def test_a_block_leaves_nothing_behind() -> None:
    for model in (bert(), patch_model(bert(), "sparsemax")):
        names = [sorted(vars(module)) for module in model.modules()]
        hooks = [len(module._forward_pre_hooks) for module in model.modules()]
        config = model.config.to_dict()
        with pytest.raises(IndexError), record_attention(model, special_ids=[1]):
            model(torch.tensor([[10**6]]))
        assert [sorted(vars(module)) for module in model.modules()] == names
        assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
        assert model.config.to_dict() == config


def test_only_the_first_rows() -> None:
    model = patch_model(bert(), "r-softmax", r=0.5)
    ids, valid = torch.randint(5, 40, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    valid[0, 5:] = 0
    with torch.no_grad(), record_attention(model) as made:
        made.rows = 1
        model(ids, attention_mask=valid)
    assert made.zero_counts.counts[:, 0, 0].tolist() == [5 * 3, 25]
    assert made.zero_counts.per_layer == [0.6, 0.6]


def test_a_row_of_nan_is_seen() -> None:
    model = patch_model(bert(num_hidden_layers=1), "r-softmax")
    embedded = torch.randn(2, 5, 16)
    embedded[0, 2] = math.nan
    with torch.no_grad(), record_attention(model) as made:
        model(inputs_embeds=embedded)
    assert made.entropy.isnan().all()
    assert math.isnan(made.mean)
    assert math.isnan(made.zero_counts.per_layer[0])
    assert made.table().splitlines()[1].split()[2:] == ["nan%", "nan", "nan", "-"]


def test_inference_mode_and_training_in_one_record() -> None:
    model = patch_model(bert(), "r-softmax")
    ids = torch.randint(5, 40, (2, 9))
    with record_attention(model) as made:
        with torch.inference_mode():
            model(ids)
        model(ids).last_hidden_state.sum().backward()
        with torch.no_grad():
            model(ids)
    assert made.zero_counts.counts[:, 0, 0].tolist() == [3 * 2 * 9 * 2, 3 * 2 * 81]


def test_layers_with_other_numbers_of_heads() -> None:
    model = BY_NAME["bart"].build(encoder_attention_heads=2)
    patch_model(model, "entmax", alpha=1.5, learn="alpha", per="head")
    with torch.no_grad(), record_attention(model) as made:
        model(**BY_NAME["bart"].inputs())
    alpha = made.parameters["alpha"][0]
    assert alpha.isnan().tolist() == made.zeros.isnan().tolist()
    assert alpha[0, :2].eq(1.5).all()
    assert alpha[0, 2:].isnan().all()


def test_a_record_does_not_keep_the_model() -> None:
    model = patch_model(bert(), "r-softmax")
    with torch.no_grad(), record_attention(model) as made:
        model(torch.tensor([[5, 6]]))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    assert made.mean > 0


def test_table() -> None:
    model = patch_model(bert(), "r-softmax", r=0.5, layers=[1])
    with torch.no_grad(), record_attention(model, special_ids=[99]) as made:
        assert repr(made) == (
            "AttentionRecord(layers=2, mappings=['softmax', 'r-softmax'], calls=0, zeros=nan%)"
        )
        model(torch.randint(5, 40, (2, 9)))
    header, first, second = made.table().splitlines()
    assert header.split() == ["layer", "mapping", "zeros", "support", "entropy", "special"]
    assert first.split()[:4] == ["encoder.layer.0.attention.self", "softmax", "0.0%", "9.0"]
    assert second.split()[1:4] == ["r-softmax", "55.6%", "4.0"]
    assert second.split()[-1] == "0.0%"
    assert repr(made).endswith("calls=1, zeros=27.8%)")
    assert f"{made}" == made.table()
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", made._repr_html_())
    assert cells == made.table().split()
