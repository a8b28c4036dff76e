"""The true power of the fake GPUs: said here, so that what sensors and estimators make of it can be checked."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.fakes.nvml_mapping import NS, Mapped, ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.fakes import nvml_layout as layout
    from tests.fakes.nvml_specs import Sensor


class Segment(NamedTuple):
    """What a GPU draws from a time on, and at which clock."""

    t_s: float
    t_ns: int
    demand_w: float
    power_w: float
    sm_mhz: int
    capped: bool


class Power(Mapped):
    """Power over time, for each GPU. Any process that has the scenario mapped may add to it.

    A *demand* is what a load would draw at the highest clock; power limit and clocks make the true power of it.
    """

    def set_power(self, gpu: int, watts: float, at_s: float | None = None) -> None:
        """Let a GPU's demand be `watts` from `at_s` (by default now) until the next change that is known."""
        at_ns = self._time_ns(at_s)
        self._check(self._functions.assay_fake_set_power(ctypes.byref(self._scenario), gpu, at_ns, watts), gpu)

    def add_load(self, gpu: int, watts: float, from_s: float, until_s: float) -> None:
        """Add `watts` to a GPU's demand for a time, on top of idle power and what others add."""
        if until_s <= from_s:
            raise ValueError("a load ends after it begins")
        reference = ctypes.byref(self._scenario)
        self._check(self._functions.assay_fake_add_load(reference, gpu, ns(from_s), ns(until_s), watts), gpu)

    def truncate(self, gpu: int, from_s: float) -> None:
        """Forget every change of a GPU's demand at or after `from_s`."""
        with self.locked():
            state = self.gpu(gpu)
            kept = sum(state.segments[i].t_ns < ns(from_s) for i in range(state.segment_count))
            state.segment_count = max(1, kept)
            state.segments[0].t_ns = min(state.segments[0].t_ns, ns(from_s))

    def replay(self, gpu: int, trace: Iterable[tuple[float, float]], start_s: float | None = None) -> None:
        """Make a recorded trace of (seconds, watts) a GPU's demand; its first sample falls on `start_s` or now."""
        samples = list(trace)
        begin_s = self._time_ns(start_s) / NS
        self.truncate(gpu, begin_s)
        for t_s, watts in samples:
            self.set_power(gpu, watts, begin_s + t_s - samples[0][0])

    def square_wave(
        self,
        gpu: int,
        *,
        low_w: float,
        high_w: float,
        period_s: float,
        from_s: float,
        until_s: float,
        duty: float = 0.5,
    ) -> None:
        """Let a GPU's demand alternate, high first, and stay low at the end."""
        self.truncate(gpu, from_s)
        for period in range(round((until_s - from_s) / period_s)):
            begin_s = from_s + period * period_s
            self.set_power(gpu, high_w, begin_s)
            self.set_power(gpu, low_w, begin_s + duty * period_s)

    def set_power_limit(self, gpu: int, watts: float) -> None:
        """Change a GPU's limit as some other administrator would: from now on, unlogged, unasked."""
        with self.locked():
            self.gpu(gpu).power_limit_mw = round(watts * 1e3)
            self.settle(gpu)

    def settle(self, gpu: int) -> None:
        """Make power and clock follow limits or clock locks that were set directly in `gpu(i)`, from now on."""
        self._check(self._functions.assay_fake_settle(ctypes.byref(self._scenario), gpu), gpu)

    def set_sensor(self, gpu: int, sensor: Sensor) -> None:
        """Change how a GPU's sensor sees; its counter goes on counting."""
        with self.locked():
            write_sensor(self.gpu(gpu).sensor, sensor)

    def reset_counter(self, gpu: int, to_mj: float = 0.0) -> None:
        """Let a GPU's energy counter begin anew from `to_mj`, as after a driver reload."""
        with self.locked():
            sensor = self.gpu(gpu).sensor
            sensor.counter_base_mj = to_mj
            sensor.counter_since_ns = self.now_ns()

    def step_counter(self, gpu: int, by_mj: float) -> None:
        """Let a GPU's energy counter jump; below zero, it goes back."""
        with self.locked():
            self.gpu(gpu).sensor.counter_base_mj += by_mj

    def segments(self, gpu: int) -> list[Segment]:
        """Return all that is known of a GPU's power, in order; the first holds before itself too."""
        with self.locked():
            state = self.gpu(gpu)
            known = state.segments[: state.segment_count]
            return [Segment(s.t_ns / NS, s.t_ns, s.demand_w, s.power_w, s.sm_mhz, bool(s.capped)) for s in known]

    def true_energy_j(self, gpu: int, from_s: float, until_s: float) -> float:
        """Return what a GPU truly spent between two times: the sum over its segments, without any sensor."""
        segments = self.segments(gpu)
        begin, end = ns(from_s), ns(until_s)
        if self.gpu(gpu).segments_dropped and begin < segments[0].t_ns:
            raise ValueError(f"power before {segments[0].t_s} s is forgotten: the scenario keeps the last segments")
        starts = [begin, *(min(max(segment.t_ns, begin), end) for segment in segments[1:]), end]
        lengths = (after - before for before, after in pairwise(starts))
        return sum(segment.power_w * length / NS for segment, length in zip(segments, lengths, strict=True))

    def true_power_w(self, gpu: int, at_s: float | None = None) -> float:
        """Return what a GPU truly draws at a time, by default now."""
        return self._at(gpu, at_s).power_w

    def true_clock_mhz(self, gpu: int, at_s: float | None = None) -> int:
        """Return the SM clock that a GPU truly has at a time, by default now."""
        return self.gpu(gpu).sm_forced_mhz or self._at(gpu, at_s).sm_mhz

    def _at(self, gpu: int, at_s: float | None) -> Segment:
        at_ns = self._time_ns(at_s)
        segments = self.segments(gpu)
        return next((segment for segment in reversed(segments) if segment.t_ns <= at_ns), segments[0])

    @staticmethod
    def _check(code: int, gpu: int) -> None:
        if code != 0:
            raise IndexError(f"the scenario has no GPU {gpu}")


def write_sensor(state: layout.Sensor, sensor: Sensor) -> None:
    """Write how a sensor sees; what its counter has counted stays."""
    counter_phase_ms = sensor.phase_ms if sensor.counter_phase_ms is None else sensor.counter_phase_ms
    state.period_ns = ns(sensor.period_ms / 1e3)
    state.phase_ns = ns(sensor.phase_ms / 1e3)
    state.lag_ns = ns(sensor.lag_ms / 1e3)
    state.average_window_ns = ns(sensor.average_window_ms / 1e3)
    state.instant_window_ns = ns(sensor.instant_window_ms / 1e3)
    state.usage_window_ns = state.average_window_ns if sensor.usage == "average" else state.instant_window_ns
    state.counter_period_ns = ns(sensor.counter_period_ms / 1e3)
    state.counter_phase_ns = ns(counter_phase_ms / 1e3)
    state.counter_quantum_mj = sensor.counter_quantum_mj
    state.gain = sensor.gain
