"""Check the host's and the GPU's clocks with spins of known duration, timed like any other call."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from assay.core.results import make_check
from assay.core.values import Value
from assay.timing.wall import WallTimer, gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from assay.core.results import Finding
    from assay.timing.sampling import Samples

HOST_SPINS_US = (5.0, 50.0, 500.0)
GPU_SPINS_US = (1.0, 2.0, 5.0, 20.0, 200.0)
SPINS = 60
READS = 2000
TIMER_STEP_NS = 32.0  # of NVIDIA's global timer
DISTURBED_FACTOR = 0.05
"""A spin that took longer than the median by more than this share was disturbed."""
NOISY_SHARE = 0.05
HOST_ERROR_US, GPU_ERROR_US, ERROR_SHARE = 1.0, 0.2, 0.01
"""Tolerated clock error: on the host it includes the call of an interpreted function."""


class SpinTiming(Value):
    """A spin of known duration: its true duration, and what the clock measured."""

    true_us: float
    read_us: float = Field(description="Median.")
    low_us: float = Field(description="First quartile.")
    high_us: float = Field(description="Third quartile.")
    disturbed_share: float = Field(description="Share of the spins that took 5 % longer than most.")

    @property
    def error_us(self) -> float:
        """Measured minus true duration."""
        return self.read_us - self.true_us


class ClockCalibration(Value):
    """The result of checking a clock.

    ``floor_us`` is the least it can measure: the cost of reading it on the host, the time of an empty kernel on a GPU.
    """

    clock: str
    step_ns: float
    floor_us: float
    event_overhead_us: float | None = Field(
        default=None, description="What a pair of CUDA events adds to a spin; null on the host."
    )
    spins: tuple[SpinTiming, ...]


def calibrate_host_clock() -> ClockCalibration:
    """Calibrate the host's clock, in a few hundredths of a second."""
    with gc_paused():
        reads = [time.perf_counter_ns() for _ in range(READS)]
        spins = tuple(_summarize_spins(true_us, _host_spins(true_us)) for true_us in HOST_SPINS_US)
    steps = np.diff(np.array(reads))
    return ClockCalibration(
        clock="host",
        step_ns=float(steps[steps > 0].min()),
        floor_us=float(np.median(steps)) / 1000,
        spins=spins,
    )


def _host_spins(true_us: float) -> Samples:
    """Time spins, corrected for how much each overshot: the result is the nominal duration if the clock is right."""
    actual_us: list[float] = []

    def spin() -> None:
        begin = now = time.perf_counter_ns()
        until = begin + int(true_us * 1000)
        while now < until:
            now = time.perf_counter_ns()
        actual_us.append((now - begin) / 1000)

    clock = WallTimer(spin, single_calls=True)
    actual_us.clear()
    read = np.array([clock.sample_us() for _ in range(SPINS)])
    return np.asarray(read - np.array(actual_us) + true_us, dtype=np.float64)


def calibrate_gpu_clock(index: int) -> ClockCalibration:
    """Calibrate a GPU's clocks with spins on its own timer: with stamps in a graph, and with CUDA events.

    A spin's true time is its nominal duration plus that of a kernel that spins for no time.
    """
    from assay.timing.cuda.device import gpu_timing_device
    from assay.timing.cuda.timers import GpuCallBatch, GraphTimer, calibrate_device

    device = gpu_timing_device(index)
    calibrate_device(device)

    def launching(true_us: float) -> Callable[[], None]:
        launch = device.kernels.launch("spin", int(true_us * 1000))
        return lambda: launch(int(device.torch.cuda.current_stream(index).cuda_stream))

    spins = []
    for true_us in GPU_SPINS_US:
        clock = GraphTimer(device, GpuCallBatch(launching(true_us), "warm", 16))
        batches = [clock.take().quantities["span_us"] for _ in range(6)]
        clock.close()
        spins.append(_summarize_spins(true_us, np.concatenate(batches[2:]) - device.calibration.empty_us))
    return ClockCalibration(
        clock=f"cuda:{index}",
        step_ns=TIMER_STEP_NS,
        floor_us=device.calibration.empty_us,
        event_overhead_us=_event_overhead_us(device.torch, launching(20.0), 20.0 + device.calibration.empty_us),
        spins=tuple(spins),
    )


def _event_overhead_us(torch: Any, spin: Callable[[], None], true_us: float) -> float:
    cuda = torch.cuda
    read = []
    for _ in range(SPINS):
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        first.record()
        spin()
        last.record()
        cuda.synchronize()
        read.append(first.elapsed_time(last) * 1000)
    return float(np.median(read)) - true_us


def _summarize_spins(true_us: float, read_us: Samples) -> SpinTiming:
    low, middle, high = (float(q) for q in np.quantile(read_us, [0.25, 0.5, 0.75]))
    disturbed = float(np.mean(read_us > middle * (1 + DISTURBED_FACTOR) + GPU_ERROR_US))
    return SpinTiming(true_us=true_us, read_us=middle, low_us=low, high_us=high, disturbed_share=disturbed)


def check_clocks(calibrations: Iterable[ClockCalibration]) -> list[Finding]:
    """Return for each clock whether it is accurate and whether it is undisturbed."""
    return [finding for calibration in calibrations for finding in _check_clock(calibration)]


def _check_clock(calibration: ClockCalibration) -> list[Finding]:
    error_us = HOST_ERROR_US if calibration.clock == "host" else GPU_ERROR_US
    worst = max(calibration.spins, key=lambda s: abs(s.error_us) / max(error_us, ERROR_SHARE * s.true_us))
    right = all(abs(s.error_us) <= max(error_us, ERROR_SHARE * s.true_us) for s in calibration.spins)
    disturbed = max(spin.disturbed_share for spin in calibration.spins)
    named = "The host's clock" if calibration.clock == "host" else f"The clock of {calibration.clock}"
    shown = ", ".join(f"{s.true_us:g} µs reads {s.read_us:.2f}" for s in calibration.spins)
    least = f"steps of {calibration.step_ns:.0f} ns, floor {calibration.floor_us:.2f} µs"
    if calibration.event_overhead_us is not None:
        least += f"; a pair of CUDA events adds {calibration.event_overhead_us:.1f} µs"
    return [
        make_check(
            f"{named} reads spins of known duration right (±1 %, or {error_us:g} µs)",
            "yes" if right else "no",
            f"{shown}; {least}",
            fix=None if right else f"close other programs and look again; {worst.true_us:g} µs is the worst",
            topic="clock",
            error_us=worst.error_us,
            floor_us=calibration.floor_us,
            event_overhead_us=calibration.event_overhead_us,
        ),
        make_check(
            f"{named} is not disturbed",
            "yes" if disturbed <= NOISY_SHARE else "no",
            f"{disturbed:.0%} of the spins took 5 % longer than most",
            fix=None if disturbed <= NOISY_SHARE else "see what else runs (assay run --on-interference refuse does)",
            topic="clock",
            disturbed_share=disturbed,
        ),
    ]
