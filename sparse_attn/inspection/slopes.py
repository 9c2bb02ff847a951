"""The slopes of a learned piecewise linear map."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from sparse_attn.mappings import Mapping


def slope_statistics(mapping: Mapping) -> dict[str, float]:
    """mean, std, min and max of the slopes s_i = softplus(raw_slopes) of a PLIF over its K bins.

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
