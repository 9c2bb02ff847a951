"""Tensors and sparse rows of a record, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from sparse_attn.kernels.sparse_rows import SparseRows


class LayerError(LookupError, ValueError):
    """The model or the record does not have this layer."""


def layer_number(layer: str | int, names: Sequence[str]) -> int:
    """Return the number of a layer, given by name or number; negative ones count from the end.

    Raises:
        LayerError: there is no such layer.
    """
    if layer in names:
        return names.index(str(layer))
    if isinstance(layer, Integral) and -len(names) <= layer < len(names):
        return int(layer) % len(names)
    raise LayerError(
        f"layers: there is no layer {layer!r}; give numbers below {len(names)}, or names such as "
        f"{names[0]!r}"
    )


class LayerTensors:
    """One tensor per layer: `weights["encoder.layer.1.attention.self"]` or `weights[1]`.

    Iterates over the tensors of all layers, in model order. `keys`, `items` and `in` leave out the
    layers that did not run.

    Args:
        kind: the option of `record_attention` that keeps them.
        layers: names of the layers, in model order.

    Raises:
        LookupError: there is no such layer, it did not run, or nothing was kept.
    """

    def __init__(self, kind: str, layers: Sequence[str]) -> None:
        self._kind, self._layers = kind, layers
        self._kept: dict[str, Tensor] = {}

    def __getitem__(self, layer: str | int) -> Tensor:
        name = self._layers[layer_number(layer, self._layers)]
        if name in self._kept:
            return self._kept[name]
        remedy = f"use record_attention(model, {self._kind}=True) and call the model inside"
        why = f"only {', '.join(self._kept)} ran" if self._kept else remedy
        raise LayerError(f"record: has no {self._kind} of {name}; {why}")

    def __setitem__(self, layer: int, tensor: Tensor) -> None:
        self._kept[self._layers[layer]] = tensor

    def __iter__(self) -> Iterator[Tensor]:
        return (self[layer] for layer in range(len(self)))

    def __len__(self) -> int:
        return len(self._layers)

    def __contains__(self, layer: str | int) -> bool:
        try:
            return self._layers[layer_number(layer, self._layers)] in self._kept
        except LayerError:
            return False

    def __repr__(self) -> str:
        return f"LayerTensors({self._kind} of {len(self._kept)} of {len(self)} layers)"

    def keys(self) -> list[str]:
        """Return the names of the layers that ran, in model order."""
        return [name for name in self._layers if name in self._kept]

    def items(self) -> list[tuple[str, Tensor]]:
        """Return (name, tensor) of each layer that ran, in model order."""
        return [(name, self._kept[name]) for name in self.keys()]


class LayerRows(dict[str, list[SparseRows]]):
    """The `SparseRows` of every call of each layer that was chosen, by its name.

    `rows[layer]` and `in` also take the layer's number in the model.

    Args:
        layers: names of all layers, in model order.

    Raises:
        KeyError: there is no such layer, or it was not chosen.
    """

    def __init__(self, layers: Sequence[str]) -> None:
        super().__init__()
        self._layers = layers

    def __getitem__(self, layer: str | int) -> list[SparseRows]:
        if layer in self:
            return super().__getitem__(self._name(layer))
        remedy = "use record_attention(model, weights='sparse')"
        why = f"the layers are {', '.join(self)}" if self else remedy
        raise KeyError(f"record: has no sparse rows of {layer!r}; {why}")

    def __contains__(self, layer: object) -> bool:
        return super().__contains__(self._name(layer))

    def get(self, layer: str | int, default: Any = None) -> Any:
        return super().get(self._name(layer), default)

    def _name(self, layer: Any) -> Any:
        try:
            return self._layers[layer_number(layer, self._layers)]
        except LayerError:
            return layer
