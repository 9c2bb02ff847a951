"""Interleaved timing: every contestant runs once per round.

The speed of a shared machine varies by the minute, so both sides of a ratio run in the same round.
The median over rounds ignores outliers.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

Clock = Callable[[Callable[[], object]], float]  # runs the call, returns milliseconds
Row = dict[str, Any]
LONGEST_LEAD = 0.01  # seconds
MANY_SHARES = 4
LATE = "no time left"
MIB = 1 << 20


class DeviceLostError(RuntimeError):
    """A kernel left the GPU unusable for the rest of this process."""


@dataclass(frozen=True)
class Task:
    """A timed call, its untimed preparation, and its facts.

    `note` returns more facts, given the peak memory in MiB.
    """

    run: Callable[[], object]
    prepare: Callable[[], None] = lambda: None
    facts: Mapping[str, Any] = field(default_factory=dict)
    note: Callable[[float], Mapping[str, Any]] = lambda mib: {}


@dataclass(frozen=True)
class Effort:
    """How much to measure: at least `least` rounds, until `seconds` are used in all.

    No round or contestant starts after `deadline` (time.perf_counter).
    """

    seconds: float
    least: int = 5
    most: int = 200
    deadline: float = float("inf")

    def enough(self, samples: int, spent: float, share: float) -> bool:
        """Return whether a task with these samples and seconds spent needs no more rounds."""
        slow = 0 < MANY_SHARES * share < spent
        return samples >= (min(3, self.least) if slow else self.least) and spent >= share

    @property
    def over(self) -> bool:
        """Return whether the deadline has passed."""
        return time.perf_counter() > self.deadline


@dataclass
class Measurement:
    """Milliseconds by round or the reason for their absence, and facts."""

    samples: dict[int, float] = field(default_factory=dict)
    reason: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def summarise(values: Iterable[float]) -> dict[str, float] | None:
    """Return median, quartiles and number of values, to five digits; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    # quantiles needs at least two values
    cuts = statistics.quantiles(ordered * 2 if len(ordered) == 1 else ordered, method="inclusive")
    q1, median, q3 = map(rounded, cuts)
    return {"median": median, "q1": q1, "q3": q3, "n": len(ordered)}


def rounded(value: float) -> float:
    """Round to five significant digits."""
    return float(f"{value:.5g}")


def ratio(one: Measurement, other: Measurement) -> dict[str, float] | None:
    """Summarise one / other over the rounds in which both ran."""
    both = one.samples.keys() & other.samples.keys()
    return summarise(one.samples[number] / other.samples[number] for number in both)


def measure(
    tasks: Mapping[str, Task], clock: Clock, effort: Effort, base: str, seed: int = 0
) -> dict[str, Measurement]:
    """Time every task in interleaved rounds, shuffled in each.

    A task runs until it has `effort.least` samples and has used its share of the time; three
    samples suffice if it has used a multiple of that. `base` runs in every round. A task that
    raises is dropped with the reason.

    Raises:
        DeviceLostError: the GPU no longer responds.
    """
    quick = effort.seconds / max(1, len(tasks))
    found = {name: _warm_up(task, clock, effort, quick) for name, task in tasks.items()}
    share = effort.seconds / max(1, sum(m.reason is None for m in found.values()))
    spent = dict.fromkeys(tasks, 0.0)
    rng = random.Random(seed)
    for number in range(effort.most):
        active = [
            name
            for name, m in found.items()
            if m.reason is None and not effort.enough(len(m.samples), spent[name], share)
        ]
        if not active or effort.over or (number >= effort.least and active == [base]):
            break
        if base in found and found[base].reason is None and base not in active:
            active.append(base)
        rng.shuffle(active)
        for name in active:
            begun = time.perf_counter()
            _sample(tasks[name], clock, found[name], number)
            spent[name] += time.perf_counter() - begun
    for result in found.values():
        if not result.samples and result.reason is None:
            result.reason = LATE
    return found


def _warm_up(task: Task, clock: Clock, effort: Effort, quick: float) -> Measurement:
    """Warm up by two calls, because the first compiles and tunes, or by one if it was slow."""
    result = Measurement()
    for number in (-2, -1):
        if effort.over:
            result.reason = LATE
        long = result.samples and 0 < 1e3 * quick < result.samples[-2]
        if result.reason is None and not long:
            _sample(task, clock, result, number)
    result.samples.clear()
    return result


def _sample(task: Task, clock: Clock, result: Measurement, number: int) -> None:
    try:
        task.prepare()
        result.samples[number] = clock(task.run)
    except Exception as error:
        result.samples.clear()
        result.reason = reason(error)


def reason(error: Exception) -> str:
    """Return an exception as one line, after checking that the GPU still works.

    Raises:
        DeviceLostError: the GPU no longer works.
    """
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
    if isinstance(error, torch.OutOfMemoryError):
        text = "out of memory"
    if isinstance(error, NotImplementedError | ModuleNotFoundError) and lines:
        text = lines[0][:200]
    if torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise DeviceLostError(text) from lost
        torch.cuda.empty_cache()
    return text


def wall_clock(call: Callable[[], object]) -> float:
    """Return the milliseconds from call to result, synchronised on the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun)


class DeviceClock:
    """Clock of GPU time in milliseconds, without launch overhead.

    The same call runs just before. The GPU first spins for as long as the last launch took, so that
    the whole call is queued.
    """

    def __init__(self) -> None:
        self.launch: dict[Callable[[], object], float] = {}

    def __call__(self, call: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        lead = min(LONGEST_LEAD, 2.5 * self.launch.get(call, LONGEST_LEAD) + 2e-4)
        # private: torch.cuda has no public way to keep a GPU busy
        torch.cuda._sleep(int(lead * 2e9))  # cycles, at about 2 GHz
        call()
        begun = time.perf_counter()
        start.record()
        call()
        end.record()
        self.launch[call] = time.perf_counter() - begun
        torch.cuda.synchronize()
        return start.elapsed_time(end)


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """Return the peak memory in MiB that a call allocates beyond earlier allocations.

    It counts tensors in PyTorch's allocator, which is reproducible: the high-water mark on the GPU,
    the sum of torch.profiler's events on the CPU. Resident memory would include the allocator's
    cache and depend on earlier calls.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        result = call()
    del result
    assert record.profiler is not None
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak / MIB


def weigh(task: Task, measured: Measurement, device: torch.device) -> None:
    """Measure the peak memory of a timed task; if it fails, its times are dropped too."""
    try:
        task.prepare()
        mib = peak_memory(task.run, device)
        measured.facts |= {"memory_mib": mib, **task.note(mib)}
    except Exception as error:
        measured.samples.clear()
        measured.reason = reason(error)


@dataclass(frozen=True)
class Contestant:
    """A row: its name, its mapping, and whether it is our code as users run it.

    Ours is compared with all peers of the same mapping, and every row with the base of the case.
    """

    name: str
    mapping: str
    ours: bool


T = TypeVar("T", bound=Contestant)


@dataclass(frozen=True)
class Race(Generic[T]):
    """The contestants of a case, the base of its ratios, the device and the effort."""

    contestants: Sequence[T]
    base: str
    device: torch.device
    effort: Effort

    def rows(
        self,
        make: Callable[[T], Task],
        which: str,
        clock: Clock = wall_clock,
        memory: bool = True,
    ) -> list[Row]:
        """Measure time in interleaved rounds, then memory; a row per contestant.

        If `make(contestant)` or its task raises, the error becomes the reason in its row.
        """
        tasks, measured = {}, {}
        for entry in self.contestants:
            try:
                if self.effort.over:
                    raise NotImplementedError(LATE)
                tasks[entry.name] = make(entry)
            except Exception as error:
                measured[entry.name] = Measurement(reason=reason(error))
        measured |= measure(tasks, clock, self.effort, self.base)
        for name, task in tasks.items():
            measured[name].facts = dict(task.facts)
            if memory and measured[name].reason is None and not self.effort.over:
                weigh(task, measured[name], self.device)
        return [{**self._row(entry, measured), "pass": which} for entry in self.contestants]

    def _row(self, entry: T, measured: Mapping[str, Measurement]) -> Row:
        own = measured[entry.name]
        row = {"name": entry.name, "mapping": entry.mapping, "ours": entry.ours}
        if own.reason is not None:
            return {**row, "reason": own.reason}
        rivals = [
            other.name
            for other in self.contestants
            if entry.ours and not other.ours and entry.mapping == other.mapping
        ]
        to = {
            other: ratio(own, measured[other])
            for other in dict.fromkeys([self.base, *rivals])
            if other in measured and measured[other].reason is None
        }
        times = summarise(own.samples.values())
        return {**row, "reason": None, "ms": times, "to": to, **own.facts}
