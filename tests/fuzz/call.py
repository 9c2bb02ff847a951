"""A call of several tensors, any of which may want a gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from tests.fuzz.strategies import lay_out, same, subsets


@dataclass
class Call:
    """A call of a mapping, a loss or a kernel, which subclasses make of `inputs` by `__call__`.

    Attributes:
        inputs: tensors, and parameters that may be numbers.
        mask: boolean, None for all.
    """

    inputs: dict[str, Any]
    mask: Tensor | None

    def __call__(self, *how: Any, **changed: Any) -> Tensor:
        raise NotImplementedError

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a gradient can go to."""
        return {name: value for name, value in self.inputs.items() if isinstance(value, Tensor)}

    @property
    def scores(self) -> Tensor:
        return self.inputs["scores"]

    def changed(self, **inputs: Any) -> Self:
        return replace(self, inputs={**self.inputs, **inputs})

    def solve(
        self, *how: Any, wanted: Sequence[str] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The result, and the gradients of a weighted sum of what is finite of it."""
        names = list(self.tensors) if wanted is None else wanted
        leaves = {name: self.tensors[name].detach().requires_grad_() for name in names}
        result = self(*how, **leaves)
        weights = torch.arange(1.0, 1 + result.numel()).cos().view(result.shape).to(result)
        weights = weights.masked_fill(~result.detach().isfinite(), 0.0)
        # a learned function, or weights of entries, see nothing of rows without positions
        empty = not result.numel()
        assert result.requires_grad or empty or not names
        if not names or not result.requires_grad:
            return result.detach(), {n: torch.zeros_like(leaf) for n, leaf in leaves.items()}
        found = torch.autograd.grad(
            result, list(leaves.values()), weights, allow_unused=empty, materialize_grads=empty
        )
        return result.detach(), dict(zip(names, found, strict=True))

    def check_views_and_subsets(
        self,
        layouts: dict[str, str],
        *how: Any,
        alike: Callable[[Tensor, Tensor], bool] = same,
    ) -> None:
        """Strides change no bit, and neither does what else a gradient is asked for.

        Args:
            layouts: of these tensors.
            *how: as of `__call__`.
            alike: whether two gradients are.
        """
        views = {name: lay_out(self.inputs[name], layout) for name, layout in layouts.items()}
        call = self.changed(**views)
        plain = self.changed(**{name: view.contiguous().clone() for name, view in views.items()})
        result, gradients = plain.solve(*how)
        for wanted in subsets(list(self.tensors)):
            again, some = call.solve(*how, wanted=wanted)
            assert same(again, result)
            for name, gradient in some.items():
                assert gradient.shape == call.tensors[name].shape
                assert alike(gradient, gradients[name]), name
