"""Language models against independent forms of the same thing."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from experiments.language_modeling.corpus import EOS, UNK, Corpus
from experiments.language_modeling.models import LanguageModel, build_model
from experiments.language_modeling.models.lstm import DropConnectLSTM, embed, locked_dropout
from experiments.language_modeling.models.transformer import positions
from experiments.language_modeling.sections import HeadConfig, ModelConfig
from sparse_attn import Mapping
from tests.experiments.language_modeling.toys import stream

LSTM = ModelConfig(embedding=6, hidden=8, layers=3)
FEED_FORWARD = ModelConfig(kind="feed-forward", embedding=4, hidden=8, layers=2, context=3)
TRANSFORMER = ModelConfig(kind="transformer", embedding=8, hidden=16, layers=2, heads=2)
MODELS = {"lstm": LSTM, "feed-forward": FEED_FORWARD, "transformer": TRANSFORMER}
UNTIED = HeadConfig(tie=False)


def corpus(words: int = 11) -> Corpus:
    vocabulary = (EOS, UNK, *(f"w{number}" for number in range(words - 2)))
    train = torch.cat([torch.arange(words), stream(200, words)])
    return Corpus(vocabulary, train, stream(50), stream(50))


def model(config: ModelConfig, head: HeadConfig = UNTIED) -> LanguageModel:
    return build_model(config, head, corpus())


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_depend_on_the_past_alone(name: str):
    net = model(MODELS[name]).eval()
    tokens = torch.randint(11, (2, 9))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    hidden, _ = net(tokens, net.initial_state(2))
    other, _ = net(changed, net.initial_state(2))
    assert hidden.shape == (2, 9, net.head.hidden)
    assert torch.equal(hidden[:, :5], other[:, :5])
    assert not torch.isclose(hidden[:, 5], other[:, 5]).all()


@pytest.mark.parametrize("name", ["lstm", "feed-forward"])
def test_the_state_carries_a_text_over_from_segment_to_segment(name: str):
    net = model(MODELS[name]).eval()
    tokens = torch.randint(11, (2, 9))
    whole, _ = net(tokens, net.initial_state(2))
    state, parts = net.initial_state(2), []
    for part in tokens.split([1, 2, 5, 1], dim=1):
        hidden, state = net(part, state)
        parts.append(hidden)
        assert not any(tensor.requires_grad for tensor in state)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_without_dropout_a_layer_is_torchs_lstm():
    ours = DropConnectLSTM(5, 7, 0.0)
    theirs = nn.LSTM(5, 7, batch_first=True)
    names = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0"}
    names |= {"bias_ih": "bias_ih_l0", "bias_hh": "bias_hh_l0"}
    theirs.load_state_dict({names[name]: value for name, value in ours.state_dict().items()})
    x, h, c = torch.randn(3, 4, 5), torch.randn(3, 7), torch.randn(3, 7)
    out, (h_new, c_new) = theirs(x, (h[None], c[None]))
    found = ours(x, h, c)
    for ours_, theirs_ in zip(found, (out, h_new[0], c_new[0]), strict=True):
        torch.testing.assert_close(ours_, theirs_)


def test_weight_drop_is_one_mask_on_the_recurrent_weights_alone():
    layer = DropConnectLSTM(5, 7, 0.4)
    x, h, c = torch.randn(3, 4, 5), torch.randn(3, 7), torch.randn(3, 7)
    torch.manual_seed(3)
    dropped = layer(x, h, c)[0]
    torch.manual_seed(3)
    weight = F.dropout(layer.weight_hh, 0.4)
    assert 0.2 < (weight == 0).float().mean() < 0.6
    expected = []
    for step in x.unbind(1):
        gates = step @ layer.weight_ih.T + layer.bias_ih + h @ weight.T + layer.bias_hh
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        expected.append(h)
    torch.testing.assert_close(dropped, torch.stack(expected, 1))


def test_locked_dropout_has_one_mask_for_all_positions():
    x = torch.ones(3, 50, 40)
    dropped = locked_dropout(x, 0.25, True)
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 4 / 3]))
    assert locked_dropout(x, 0.25, False) is x


def test_embedding_dropout_leaves_out_whole_words():
    weight = torch.ones(100, 5)
    tokens = torch.arange(100).repeat(2, 1)
    found = embed(tokens, weight, 0.3, True)  # (2, 100, 5)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found.amin(-1), found.amax(-1))
    assert 0.1 < (found == 0).float().mean() < 0.5
    torch.testing.assert_close(found.amax(), torch.tensor(1 / 0.7))
    assert torch.equal(embed(tokens, weight, 0.3, False), torch.ones(2, 100, 5))


def test_activation_regularization_is_as_the_paper_says():
    config = dataclasses.replace(LSTM, dropout=0.5, alpha=2.0, beta=3.0)
    net = model(config)
    tokens = torch.randint(11, (2, 6))
    torch.manual_seed(5)
    hidden, penalty, _ = net.regularized(tokens, net.initial_state(2))
    plain = model(dataclasses.replace(config, dropout=0.0))
    plain.load_state_dict(net.state_dict())
    raw, _ = plain(tokens, plain.initial_state(2))
    expected = 2 * (hidden**2).mean() + 3 * ((raw[:, 1:] - raw[:, :-1]) ** 2).mean()
    torch.testing.assert_close(penalty, expected)
    # of one token there is no change
    assert net.regularized(tokens[:, :1], net.initial_state(2))[1].isfinite()
    feed_forward = model(FEED_FORWARD)
    assert feed_forward.regularized(tokens, feed_forward.initial_state(2))[1] == 0


def test_awd_lstm_has_the_published_number_of_parameters():
    config = ModelConfig(embedding=400, hidden=1150, layers=3)
    vocabulary = tuple(map(str, range(10_000)))
    with torch.device("meta"):
        net = build_model(config, HeadConfig(), Corpus(vocabulary, *[torch.zeros(9)] * 3))
    # 24.22M in Parthiban et al. 2021, table 2
    assert sum(parameter.numel() for parameter in net.parameters()) == 24_221_600
    assert net.head.weight is net.embedding.weight


def test_the_feed_forward_model_is_its_formula():
    net = model(FEED_FORWARD)
    tokens = torch.tensor([[4, 7, 2, 9]])
    hidden, (state,) = net(tokens, net.initial_state(1))
    x = net.embedding(torch.tensor([7, 2, 9])).flatten()
    first, second = (layer for layer in net.layers if isinstance(layer, nn.Linear))
    torch.testing.assert_close(hidden[0, 3], F.relu(second(F.relu(first(x)))))
    assert state.tolist() == [[2, 9]]
    # <eos> stands before the first word
    before = net.embedding(torch.tensor([0, 0, 4])).flatten()
    torch.testing.assert_close(hidden[0, 0], F.relu(second(F.relu(first(before)))))


def test_the_feed_forward_model_starts_at_zero_and_without_layers_is_linear():
    net = model(dataclasses.replace(FEED_FORWARD, layers=0))
    assert net.head.hidden == 12
    assert not net.head.weight.any()
    tokens = torch.tensor([[4, 7, 2]])
    hidden, _ = net(tokens, net.initial_state(1))
    torch.testing.assert_close(hidden[0, 2], net.embedding(tokens).flatten())
    started = model(dataclasses.replace(FEED_FORWARD, output_std=0.1))
    assert 0.05 < started.head.weight.std() < 0.2


@pytest.mark.parametrize("mapping", ["spherical-softmax", "softmax-abs"])
def test_a_start_that_never_moves_is_refused(mapping: str):
    head = HeadConfig(mapping=mapping, tie=False)
    with pytest.raises(ValueError, match="has gradient 0 at scores of 0"):
        model(FEED_FORWARD, head)
    for net in (
        model(dataclasses.replace(FEED_FORWARD, output_std=0.1), head),
        model(FEED_FORWARD, dataclasses.replace(head, start="prior")),
    ):
        hidden, _ = net(stream(20)[None], net.initial_state(1))
        net.head.loss(hidden, stream(20, seed=2)[None]).backward()
        assert net.head.weight.grad.any()


@pytest.mark.parametrize("mapping", ["softmax", "sigsoftmax", "taylor-softmax", "softmax-abs"])
def test_the_prior_start_predicts_each_word_by_its_frequency(mapping: str):
    net = model(FEED_FORWARD, HeadConfig(mapping=mapping, tie=False, start="prior"))
    log_p = net.head.log_prob(torch.zeros(1, 8))[0]
    counts = corpus().counts()
    torch.testing.assert_close(log_p.exp(), counts / counts.sum(), rtol=1e-3, atol=0)


def test_positions_are_those_of_vaswani():
    found = positions(7, 6, torch.zeros(1))
    rate = 10_000 ** (-4 / 6)
    expected = [torch.tensor(5 * rate).sin(), torch.tensor(5 * rate).cos()]
    torch.testing.assert_close(found[5, [2, 5]], torch.stack(expected))


def test_relu_eps_is_its_formula():
    z = torch.tensor([1.0, 0.2, -1.5, 0.7], dtype=torch.float64)
    relu = Mapping("relu-eps")
    expected = torch.tensor([0.526316, 0.105263, 0.0, 0.368421], dtype=torch.float64)
    torch.testing.assert_close(relu(z), expected, rtol=0, atol=1e-6)
    assert relu.log(z)[2].item() == pytest.approx(torch.log(torch.tensor(1e-8 / 1.9)).item())
    torch.testing.assert_close(relu.log(z).exp(), relu(z))
