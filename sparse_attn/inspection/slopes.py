"""The function that a monotone mapping has learned."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from sparse_attn.mappings import Mapping

LEARNED = ("plif", "monotone")  # softmax(f(z)) with a learned f


def slope_statistics(mapping: Mapping) -> dict[str, float]:
    """Return mean, std, min and max of a PLIF's slopes s_i = softplus(raw_slopes) over its K bins.

    Source: Ganea et al. 2019, table 2.

    Raises:
        ValueError: the mapping is not a PLIF.
    """
    if mapping.name != "plif":
        raise ValueError(f"mapping={mapping.name}: expected plif, which alone has slopes")
    slopes = F.softplus(torch.as_tensor(mapping.arguments()["raw_slopes"]).detach().double())
    return {
        "mean": slopes.mean().item(),
        "std": slopes.std(correction=0).item(),
        "min": slopes.min().item(),
        "max": slopes.max().item(),
    }


def learned_function(mapping: Mapping, points: int = 101) -> list[tuple[float, float]]:
    """Return `points` numbers z on [-bound, bound] and f(z) - f(0) of a learned p = softmax(f(z)).

    The constant of f does not change p. Source: Ganea et al. 2019, figure 4.

    Raises:
        ValueError: the mapping is not a PLIF or a monotone network.
    """
    log_g = mapping.spec.log_g
    if mapping.name not in LEARNED or log_g is None:
        raise ValueError(f"mapping={mapping.name}: expected plif or monotone, which learn f")
    bound = mapping.parameter_values()["bound"]
    device = next(mapping.parameters()).device
    z = torch.linspace(-bound, bound, points, dtype=torch.float64, device=device)
    with torch.no_grad():
        f, zero = (log_g(x, **mapping.arguments()) for x in (z, z.new_zeros(1)))
    return list(zip(z.tolist(), (f - zero).tolist(), strict=True))
