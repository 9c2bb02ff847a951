"""Loss of any mapping, -log p for mappings without zeros, and the squared error."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from sparse_attn.losses.row_blocks import labelled_rows
from sparse_attn.mappings import Mapping, MappingSpec, get_spec
from sparse_attn.mappings.variants import SINK


def mapping_loss(
    scores: Tensor,
    target: Tensor,
    mapping: str | Mapping,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
    **parameters: Any,
) -> Tensor:
    """L = the mapping's own loss, `MappingSpec.own_loss`, or `mapping_nll` if it has none.

    Source: none; the loss that trains a classifier with this mapping.
    Arguments, returns and errors as `mapping_nll`.
    """
    spec, arguments = _resolved(mapping, parameters)
    loss = spec.own_loss or partial(spec_nll, spec)
    return loss(scores, target, **arguments, mask=mask, reduction=reduction)


def mapping_nll(
    scores: Tensor,
    target: Tensor,
    mapping: str | Mapping,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
    **parameters: Any,
) -> Tensor:
    """L = -sum_i eta_i log p_i, p = map(z), in nats; for one label -log p_c.

    Source: none; the likelihood, for any mapping without zeros.

    Args:
        scores, target, mask, reduction: as `sparsemax_loss`, as are returns and errors.
        mapping: a registered name, or a `Mapping` with its parameters.
        **parameters: parameters of a mapping given by name, floats or tensors; defaults from the
            registry.

    Raises:
        ValueError: a mapping that may return zeros, whose -log p is infinite, or whose rows need
            not sum to one; on the CPU also a row without labels, which has no distribution.
        TypeError: an unknown parameter, or any beside a `Mapping`.
    """
    spec, arguments = _resolved(mapping, parameters)
    return spec_nll(spec, scores, target, **arguments, mask=mask, reduction=reduction)


def spec_nll(
    spec: MappingSpec,
    scores: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
    **arguments: Any,
) -> Tensor:
    """Compute `mapping_nll` for a record, with all arguments of its function."""
    rows = labelled_rows(scores, target, mask, distribution=True)
    log_p = spec.log_function(rows.scores, **arguments, mask=rows.valid)
    if not is_positive(spec, arguments):
        losses = [getattr(loss, "__name__", name) for name, loss in spec.losses.items()]
        own = losses[0] if losses else "a mapping without zeros"
        raise ValueError(
            f"mapping={spec.name!r}: it may return exact zeros, whose -log p is infinite; use {own}"
        )
    return rows.reduced(-rows.labels.dot(log_p), reduction)


def squared_error(
    scores: Tensor, target: Tensor, *, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """L = |z - eta|^2 / 2.

    Source: de Brebisson & Vincent 2016, tables 1 and 3 (MSE).

    Args:
        scores, target, mask, reduction: as `sparsemax_loss`, as are returns and errors.

    Raises:
        ValueError: on the CPU also a row without labels.
    """
    rows = labelled_rows(scores, target, mask, distribution=True)
    return rows.reduced((rows.scores - rows.eta).square().sum(-1) / 2, reduction)


def is_positive(spec: MappingSpec, arguments: dict[str, Any]) -> bool:
    """Whether p > 0 at every score, so that -log p is finite."""
    if not spec.zeros:
        return True
    return spec.dense is not None and spec.dense(**arguments)


def check_distribution(name: str, spec: MappingSpec, needed_by: str) -> None:
    """Raise ValueError unless the rows of the mapping given as the argument `name` sum to one."""
    if spec.mass == "one":
        return
    remedy = "leave `sink` out"
    if SINK not in spec.parameters:
        remedy = "use it in attention, and here a mapping such as softmax or sparsemax"
    sums = "to at most one" if spec.mass == "at most one" else "to anything"
    raise ValueError(
        f"{name}={spec.name!r}: its rows may sum {sums}, and {needed_by} needs a distribution; "
        f"{remedy}"
    )


def _resolved(
    mapping: str | Mapping, parameters: dict[str, Any]
) -> tuple[MappingSpec, dict[str, Any]]:
    """Return the record of a mapping, and all arguments of its function."""
    if isinstance(mapping, Mapping):
        if parameters:
            raise TypeError(
                f"{', '.join(parameters)}: the Mapping given has its own parameters; set them "
                "there, or pass its name"
            )
        check_distribution("mapping", mapping.spec, "a loss")
        return mapping.spec, mapping.arguments()
    spec = get_spec(mapping, sink=SINK.name in parameters)
    check_distribution("mapping", spec, "a loss")
    if spec.weights is not None:
        raise TypeError(
            f"mapping={mapping!r}: it is a learned function; pass the sparse_attn.Mapping that "
            "holds its weights"
        )
    defaults = {parameter.name: parameter.default for parameter in spec.parameters}
    for name in parameters:
        if name not in defaults:
            takes = ", ".join(defaults) or "no parameters"
            raise TypeError(f"{name}: unknown parameter; {mapping} takes {takes}")
    return spec, {**defaults, **parameters}
