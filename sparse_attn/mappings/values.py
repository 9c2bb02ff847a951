"""Values of a mapping's parameters: fixed ones in buffers, learned ones in `nn.Parameter`s."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.mappings.base import softplus_inverse
from sparse_attn.mappings.changes import Changes
from sparse_attn.mappings.specs import MappingSpec, ParameterSpec


class Values(dict[str, Any]):
    """Values of a `Mapping`, which the config of its model lists: this object, not a copy."""


class _Seen(dict[str, tuple[Tensor, int]]):
    """Buffers and their versions when their numbers were read. Copies and pickles have none."""

    def note(self, name: str, buffer: Tensor) -> None:
        if not buffer.is_inference():
            self[name] = buffer, buffer._version

    def holds(self, name: str, buffer: Tensor) -> bool:
        """Whether the buffer is the one that was read, and has not been written to since."""
        seen = self.get(name)
        return seen is not None and seen[0] is buffer and seen[1] == buffer._version

    def __reduce__(self) -> tuple[type[_Seen], tuple[()]]:
        return _Seen, ()


class ParameterValues(nn.Module):
    """Values of the parameters of a `MappingSpec`.

    The number of a fixed parameter is kept with all its digits, beside its buffer, and read again
    if the buffer was written to, such as by an average of models.
    """

    name: str
    spec: MappingSpec
    num_heads: int | None
    learned: tuple[str, ...]
    options: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self._is_scheduled = False
        self._changes = Changes()
        self._numbers: dict[str, float] = {}  # single values with all their digits, but None
        self._values = Values()
        self._seen = _Seen()
        # start values of learned parameters without a usable default, to recreate the mapping
        self.starts: dict[str, Any] = {}

    @property
    def unused(self) -> list[str]:
        """Names of the parameters without effect, because another is given."""
        pairs = [(p.name, p.instead_of) for p in self.spec.parameters if p.instead_of is not None]
        return [n for n, other in pairs if other in self.learned or self.value(other) is not None]

    @property
    def was_set(self) -> bool:
        """Whether fixed values may change: by a schedule, or in a copy, which may be an average.

        A graph then reads the buffers, else the numbers are its constants.
        """
        return self._is_scheduled or self._changes.is_of_copy

    @property
    def fixed(self) -> list[str]:
        """Names of the parameters that are not learned."""
        return [p.name for p in self.spec.parameters if p.name not in self.learned]

    def value(self, name: str) -> Any:
        """Return the value of `name`: a float, or a tensor [1] or [num_heads] with its graph.

        None if each row derives it. A tensor without dimensions in a graph whose value may change.
        """
        if name in self.learned:
            return self._learned_value(name)
        buffer: Any = self._buffers[name]
        if torch.compiler.is_compiling():
            # a graph cannot see that a buffer has been written to
            moves = buffer.dim() or (self.was_set and name in self._numbered)
            return buffer if moves else self._numbers.get(name)
        # not `holds`, because every call of attention comes here
        seen = self._seen.get(name)
        if seen is None or seen[0] is not buffer or seen[1] != buffer._version:
            return self._read(name, buffer)
        if self._changes.states:
            self._changes.refuse_recomputation(self.name)
        return self._numbers.get(name)

    def _read(self, name: str, buffer: Tensor) -> Any:
        """Return several values, or a single one whose buffer was written to."""
        is_single = not buffer.dim() and not _is_transformed(buffer)
        if is_single:
            refresh([self])
        self._changes.refuse_recomputation(self.name)
        return self._numbers.get(name) if is_single else buffer

    def _learned_value(self, name: str) -> Tensor:
        raw: nn.Parameter = getattr(self, f"raw_{name}")
        # private: accelerate has no public way to its hooks
        hook = self.__dict__.get("_hf_hook") if raw.is_meta else None
        if hook is None:
            return into_range(self.spec.parameter(name), raw)
        hook.pre_forward(self)  # it is offloaded
        raw = getattr(self, f"raw_{name}")
        return hook.post_forward(self, into_range(self.spec.parameter(name), raw))

    def changed_buffers(self) -> list[tuple[str, Tensor]]:
        """Return the buffers of single values that were written to since they were read."""
        if torch.compiler.is_compiling():
            return []
        own = self.named_buffers("", False)
        new = [(n, b) for n, b in own if not (b.dim() or self._seen.holds(n, b))]
        return [(name, b) for name, b in new if not b.is_meta and not _is_transformed(b)]

    def _learn(self, parameter: ParameterSpec, value: float | Sequence[float] | None) -> None:
        if value is None:
            raise ValueError(
                f"learn={parameter.name!r}: give {parameter.name} a number to start from"
            )
        initial = _numbers(parameter.name, value).reshape(-1)
        if len(initial) not in (1, self.num_heads or 1):
            raise ValueError(self._wrong_number(parameter.name, len(initial)))
        raw = _into_reals(parameter, initial.expand(self.num_heads or 1).clone())
        if not raw.isfinite().all():
            middle = into_range(parameter, initial.new_zeros(()))
            raise ValueError(
                f"{parameter.name}={value}: a learned {parameter.name} must start strictly inside "
                f"{parameter.range}, such as at {middle:.2g}"
            )
        default = parameter.default
        if default is None or not _into_reals(parameter, initial.new_tensor(default)).isfinite():
            self.starts[parameter.name] = initial.tolist() if len(initial) > 1 else initial.item()
        raw = raw.to(torch.get_default_device(), torch.float32)
        self.register_parameter(f"raw_{parameter.name}", nn.Parameter(raw))

    def _checked(self, name: str, value: Any) -> float | Tensor | None:
        """Return a value in the range of the parameter: a number, or a tensor of several."""
        spec = self.spec.parameter(name)
        if value is None and spec.default is None:
            return None
        values = None if isinstance(value, float) else _numbers(name, value)
        if values is None or values.dim() == 0:
            spec.check(value)
            return float(value)
        for item in values.flatten().tolist():
            spec.check(item)
        if not spec.per_entry and values.shape != (self.num_heads,):
            raise ValueError(self._wrong_number(name, f"shape {tuple(values.shape)}"))
        return values

    def _wrong_number(self, name: str, got: object) -> str:
        if self.num_heads is None:
            remedy = 'for one a head set num_heads, which is per="head" in patch_model'
            return f"{name}: expected one value, got {got}; {remedy}"
        return f"{name}: expected one value or one for each of {self.num_heads} heads, got {got}"

    def _store(self, name: str, value: float | Tensor | None) -> None:
        """Write a value to its buffer, and a single one beside with all its digits."""
        # private: nn.Module has no faster way to its buffers
        held = self._buffers.get(name)
        content = value if isinstance(value, Tensor) else _rounded(value)
        with torch.inference_mode(False):  # whose tensors do not count their changes
            if held is None or held.dim() or content.dim() or held.is_inference():
                self.register_buffer(name, content.to("cpu" if held is None else held.device))
            else:  # in place, because DDP and CUDA graphs hold it
                held.copy_(content)
        if not content.dim():
            self._seen.note(name, self.get_buffer(name))
        self._keep(name, value if isinstance(value, float) else None)

    def _keep(self, name: str, number: float | None) -> None:
        """Keep the number of a single value; None for several and for None."""
        self._numbers.pop(name, None)
        if number is not None:
            self._numbers[name] = number
        # beside, because a graph of PyTorch 2.11 is of all values of a dict that it looks into
        self._numbered = tuple(self._numbers)

    def _accept(self, name: str, found: float, dtype: torch.dtype) -> None:
        """Take the number in a buffer, unless it is the present one after rounding."""
        if repr(found) == repr(_rounded(self._numbers.get(name)).to(dtype).item()):
            return
        short = float(f"{found:.7g}")  # 0.6 for float32's 0.6000000238
        number = short if _rounded(short).item() == found else found
        before = self._state()
        self._keep(name, None if math.isnan(found) else number)
        self._is_scheduled = True
        self._changes.add(before, self._state())
        self._describe_values()

    def take_back(self) -> None:
        """Take from the description the fixed values that a load has rounded or has not found.

        Raises:
            ValueError: it has loaded one out of range.
        """
        for name in self.fixed:
            if name in self.unused:
                continue
            buffer, given = self.get_buffer(name), self._checked(name, self._values[name])
            held = (given if isinstance(given, Tensor) else _rounded(given)).to("cpu", buffer.dtype)
            # private: Transformers marks what it has loaded
            is_lost = not hasattr(buffer, "_is_hf_initialized")
            if is_lost or torch.equal(buffer.cpu().nan_to_num(), held.nan_to_num()):
                self._store(name, given)
            elif not buffer.is_meta:
                found = buffer.tolist()
                is_none = found != found and self.spec.parameter(name).default is None
                self._checked(name, None if is_none else found)

    def _describe_values(self) -> None:
        """Bring `_values` up to date: what recreates the mapping, without learned values."""
        # not read, because under FSDP a process holds only a part of them
        fixed = [name for name in self.fixed if name not in self.unused]
        values = {name: as_plain(self.value(name)) for name in fixed}
        self._values.clear()
        self._values.update(values | self.starts | self.options)

    def _state(self) -> dict[str, Any]:
        own = self.named_buffers("", False)
        return {n: b.tolist() for n, b in own if b.dim() and not b.is_meta} | self._numbers

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move with the model but keep the precision: r = 0.15 would be 0.1504 in bfloat16.

        Fixed values survive the meta device and `to_empty`, because a state dict may lack them.
        """

        def move(tensor: Tensor) -> Tensor:
            fixed = any(tensor is buffer for buffer in self.buffers(recurse=False))
            moved = fn(tensor.float() if fixed else tensor)  # MPS has no float64
            if fixed and moved.is_meta:
                return tensor
            half = moved.dtype in (torch.float16, torch.bfloat16)
            widest = torch.float32 if moved.device.type == "mps" else tensor.dtype
            return tensor.to(moved.device, widest) if half or fixed else moved

        with torch.inference_mode(False):
            # private: a model does not call the public `to` of its modules
            return super()._apply(move, recurse)

    # private: a public hook would be pickled with the module
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():  # a state of before they were in it
            state.setdefault(prefix + name, buffer)
        super()._load_from_state_dict(state, prefix, *args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(copy.deepcopy(vars(self), memo))
        twin._changes.is_of_copy = True
        return twin


def refresh(mappings: Iterable[ParameterValues]) -> None:
    """Read the numbers whose buffers were written to: all at once, as a GPU is waited for."""
    stale = [(mapping, *one) for mapping in mappings for one in mapping.changed_buffers()]
    if not stale:
        return
    device = stale[0][2].device
    found = torch.stack([buffer.detach().to(device) for *_, buffer in stale]).tolist()
    for (mapping, name, buffer), number in zip(stale, found, strict=True):
        mapping._seen.note(name, buffer)
        mapping._accept(name, number, buffer.dtype)


def _is_transformed(tensor: Tensor) -> bool:
    """Whether the tensor is one of torch.func, such as one for each of several models."""
    # private: torch.func cannot be asked publicly
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _rounded(number: float | None) -> Tensor:
    """Return a number as its buffer holds it; NaN for None."""
    number = math.nan if number is None else number
    return torch.tensor(number, dtype=torch.float32, device="cpu")


def as_plain(value: Any) -> Any:
    """Return a value of a parameter as a number or list."""
    return value.tolist() if isinstance(value, Tensor) else value


def _numbers(name: str, value: Any) -> Tensor:
    """Return a number, or a sequence of numbers, as a float64 tensor."""
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        # values on the meta device could not be checked
        return torch.as_tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}={value!r}: expected a number, or one for each head") from None


def into_range(spec: ParameterSpec, raw: Tensor) -> Tensor:
    """Map the real line onto the open range of a parameter."""
    below, above = _ends(spec)
    if below and above:
        return spec.low + (spec.high - spec.low) * torch.sigmoid(raw)
    if below:
        return spec.low + F.softplus(raw)
    if above:
        return spec.high - F.softplus(raw)
    return raw


def _into_reals(spec: ParameterSpec, value: Tensor) -> Tensor:
    """Inverse of `into_range`; not finite at the ends of the range and beyond."""
    below, above = _ends(spec)
    if below and above:
        return torch.logit((value - spec.low) / (spec.high - spec.low))
    if below:
        return softplus_inverse(value - spec.low)
    if above:
        return softplus_inverse(spec.high - value)
    return value


def _ends(spec: ParameterSpec) -> tuple[bool, bool]:
    """Whether the range has a lower and an upper end."""
    # comparisons, because math.isfinite of a symbolic number does not compile
    return spec.low > -math.inf, spec.high < math.inf
