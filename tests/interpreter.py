"""Triton's interpreter, faster: most of its time goes where no kernel computes anything."""

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, ReduceOps

scalar_type = functools.cache(interpreter._get_np_dtype)
generic_reduce, patch_language = ReduceOps.generic_reduce, interpreter._patch_lang
# what our kernels see, and what the functions of Triton see that they call
LANGUAGE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})


def reduce_by_halves(self: ReduceOps, given: tuple[Any]) -> list[Any]:
    """Combine the halves of a block, as a GPU does, not one pair of numbers after another."""
    assert not self.keep_dims
    (tensor,), axis = self.unravel(given, self.axis)
    values = tensor.handle.data
    while values.shape[axis] > 1:
        halves = (self.to_tensor(half, tensor.dtype) for half in np.split(values, 2, axis))
        values = self.combine_fn.fn(*halves).handle.data
    values = values.squeeze(axis)
    return [self.to_tensor(values if self.axis is not None else values.item(), tensor.dtype)]


def numpy_type(kind: Any) -> np.dtype[Any]:
    """Look a type up, where Triton makes the table again for each number."""
    scalar = kind.scalar
    return np.dtype(np.uint64) if scalar.is_ptr() else scalar_type(scalar)


def call_patched(self: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a function of a kernel, whose launch has patched the language for all of them."""
    return self.rewrite()(*args, **kwargs)


def patched_language(kernel: Any) -> Any:
    """Patch the language, once for all functions of a kernel."""
    scope = patch_language(LANGUAGE)
    # Triton 3.6 calls int() on arrays of one number, which NumPy 2.4 refuses
    scope.set_attr(tl.tensor, "__index__", lambda self: self.handle.data.item())
    return scope


def speed_up(overflow: bool) -> None:
    """Use all of this for the rest of this process.

    Args:
        overflow: check every operation of integers for overflow, which a GPU does not.
    """
    options = interpreter.InterpreterOptions(sanitize_overflow=overflow)
    interpreter.interpreter_builder.options = options
    interpreter._get_np_dtype = numpy_type
    ReduceOps.generic_reduce = reduce_by_halves
    InterpretedFunction.__call__ = call_patched
    interpreter._patch_lang = patched_language
