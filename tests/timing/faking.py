"""Instruments whose truth is known, on a clock that the tests turn: nothing here waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from assay.timing import compare, conditions, interleaved, measure, pick, sampling
from assay.timing import setup as timing_setup
from assay.timing.conditions import ContextSwitchCounter
from assay.timing.sampling import SampleBatch, Samples
from assay.timing.setup import FirstCalls, TimedCall

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from assay.timing.options import ClockReader, TimingOptions
    from assay.timing.results import TimeQuantity
    from assay.timing.sampling import Instrument
    from assay.timing.setup import BoundCall

PER_BATCH = 8
BATCH_S = 0.001


class VirtualTime:
    """Time that passes only when an instrument samples."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let all that decides when to stop read this clock; nobody else wants the core in this time."""
        for module in (sampling, conditions, compare, measure, pick, interleaved):
            patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now_s))
        patch.setattr(ContextSwitchCounter, "notes", lambda _: ())


@dataclass
class Known:
    """An instrument that draws its samples: ``draw`` gets the number of the first one, and how many."""

    time: VirtualTime
    draw: Callable[[int, int], Samples]
    mhz: Callable[[int], float] | None = None
    primary: str = "call_us"
    method: str = "known"
    calls_per_sample: int = 1
    batches: int = 0
    closed: bool = False

    def take(self) -> SampleBatch:
        values = self.draw(self.batches * PER_BATCH, PER_BATCH)
        self.batches += 1
        self.time.now_s += BATCH_S
        if self.mhz is None:
            return SampleBatch({self.primary: values})
        mhz = self.mhz(self.batches)
        return SampleBatch({self.primary: values, "cycles": values * mhz}, mhz)

    def replan(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def noisy(middle: float, spread: float = 0.01, seed: int = 0) -> Callable[[int, int], Samples]:
    """Draw independent samples around a middle, with a relative spread."""
    rng = np.random.default_rng(seed)
    return lambda _, n: middle * (1 + spread * rng.standard_normal(n))


def between(low: float, high: float, every: int = 20, seed: int = 0) -> Callable[[int, int], Samples]:
    """Draw samples that stay on one of two levels for a while each."""
    rng = np.random.default_rng(seed)

    def draw(first: int, n: int) -> Samples:
        upper = (np.arange(first, first + n) // every) % 2 == 1
        return np.asarray(np.where(upper, high, low) * (1 + 0.001 * rng.standard_normal(n)), dtype=np.float64)

    return draw


@dataclass
class KnownRig:
    """A rig that gives each function, by name, an instrument of known truth."""

    instruments: dict[str, Instrument]
    decisive: TimeQuantity = "call_us"
    device: str = "cpu"
    notes: tuple[str, ...] = ()
    set_ups: list[str] = field(default_factory=list)

    def first_calls(self, bound: BoundCall, options: TimingOptions) -> FirstCalls:
        return FirstCalls(steady=True, least_us=1.0)

    def set_up(self, bound: BoundCall, options: TimingOptions, first: FirstCalls) -> TimedCall:
        self.set_ups.append(bound.name)
        instrument = self.instruments[bound.name]
        return TimedCall(bound, instrument, self.decisive, self.device, "it is known", notes=self.notes)

    def reader(self) -> ClockReader | None:
        return None

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Be the rig of every device."""
        patch.setattr(timing_setup, "select_timer_setup", lambda _options: self)


def nothing() -> None:
    """Stands for a function that a known instrument times."""
