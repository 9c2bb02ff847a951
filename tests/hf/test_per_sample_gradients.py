"""Per-sample gradients of learned parameters, as Opacus finds them.

It keeps the one argument of each module with parameters and the gradient of its output, and runs
the module again under vmap.
"""

import pytest
import torch
from torch.func import functional_call, grad, vmap

from sparse_attn import Mapping, patch_model

from .families import BY_NAME, text_inputs
from .helpers import learned

BERT = BY_NAME["bert"]


def samples(mapping, scores, slopes):
    """The gradient of each parameter for every sample, stacked."""

    def loss(parameters, scores, slopes):
        return (functional_call(mapping, parameters, scores[None]) * slopes[None]).sum()

    return vmap(grad(loss), in_dims=(None, 0, 0))(dict(mapping.named_parameters()), scores, slopes)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("t-softmax", {"t": 2.0, "learn": "t", "per": "head"}),
        ("entmax", {"alpha": 1.4, "learn": "alpha"}),
        ("softmax", {"sink": 0.5, "learn": "sink"}),
        ("scaled-sparsemax", {"beta": 0.5, "learn": "beta"}),
        ("plif", {"knots": 10}),
    ],
)
def test_one_argument_and_the_slopes_are_enough(name, options, padded):
    model = patch_model(BERT.build(), name, **options)
    inputs = text_inputs()
    if not padded:
        del inputs["attention_mask"]
    seen, slopes, hooks = {}, {}, []
    mappings = {n: m for n, m in model.named_modules() if isinstance(m, Mapping)}
    for place, mapping in mappings.items():
        hooks += [
            mapping.register_forward_hook(
                lambda m, args, out, place=place: seen.update({place: args})
            ),
            mapping.register_full_backward_hook(
                lambda m, given, arrived, place=place: slopes.update({place: arrived[0]})
            ),
        ]
    model(**inputs).last_hidden_state.square().sum().backward()
    for hook in hooks:
        hook.remove()
    found = {}
    for place, mapping in mappings.items():
        (scores,) = seen[place]
        each = samples(mapping, scores.detach(), slopes[place])
        found |= {f"{place}.{n}": value for n, value in each.items()}
    for row in range(3):
        model.zero_grad()
        one = {key: tensor[row : row + 1] for key, tensor in inputs.items()}
        model(**one).last_hidden_state.square().sum().backward()
        for n, parameter in learned(model).items():
            torch.testing.assert_close(found[n][row], parameter.grad, rtol=1e-4, atol=1e-5)
