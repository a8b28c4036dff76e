"""Is the clock itself right here? Spins of known duration, timed as anything else is, on the host and on a GPU."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from assay.core.checks import check
from assay.core.values import Value
from assay.timing.wall import quiet_collector
from assay.timing.wallclock import WallClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from assay.core.results import Finding
    from assay.timing.instrument import Samples

HOST_SPINS_US = (5.0, 50.0, 500.0)
GPU_SPINS_US = (1.0, 2.0, 5.0, 20.0, 200.0)
SPINS = 60
READS = 2000
TIMER_STEP_NS = 32.0  # of NVIDIA's global timer
STRAY = 0.05
"""A spin that took this share longer than most was disturbed."""
NOISY_SHARE = 0.05
HOST_ERROR_US, GPU_ERROR_US, ERROR_SHARE = 1.0, 0.2, 0.01
"""How far a clock may be off: on the host a call of an interpreted function counts in."""


class Spun(Value):
    """A spin of known duration: how long it took in truth, and what the clock read."""

    true_us: float
    read_us: float = Field(description="Median.")
    low_us: float = Field(description="First quartile.")
    high_us: float = Field(description="Third quartile.")
    disturbed_share: float = Field(description="Of the spins, that took 5 % longer than most.")

    @property
    def error_us(self) -> float:
        """How much longer than it was the clock says it was."""
        return self.read_us - self.true_us


class Calibration(Value):
    """What a clock showed of itself.

    ``floor_us`` is the least it can tell: what reading it costs on the host, what an empty kernel takes on a GPU.
    """

    clock: str
    step_ns: float
    floor_us: float
    event_overhead_us: float | None = Field(
        default=None, description="What a pair of CUDA events adds to a spin; null on the host."
    )
    spins: tuple[Spun, ...]


def of_host() -> Calibration:
    """Calibrate the host's clock, in a few hundredths of a second."""
    with quiet_collector():
        reads = [time.perf_counter_ns() for _ in range(READS)]
        spins = tuple(_spun(true_us, _host_spins(true_us)) for true_us in HOST_SPINS_US)
    steps = np.diff(np.array(reads))
    return Calibration(
        clock="host",
        step_ns=float(steps[steps > 0].min()),
        floor_us=float(np.median(steps)) / 1000,
        spins=spins,
    )


def _host_spins(true_us: float) -> Samples:
    """Time spins, less what each overshot: what it was meant to take comes out if the clock is right."""
    own_us: list[float] = []

    def spin() -> None:
        begin = now = time.perf_counter_ns()
        until = begin + int(true_us * 1000)
        while now < until:
            now = time.perf_counter_ns()
        own_us.append((now - begin) / 1000)

    clock = WallClock(spin, alone=True)
    own_us.clear()
    read = np.array([clock.sample_us() for _ in range(SPINS)])
    return np.asarray(read - np.array(own_us) + true_us, dtype=np.float64)


def of_gpu(index: int) -> Calibration:
    """Calibrate a GPU's clocks with spins on its own timer: by stamps in a graph, and by CUDA events.

    A spin's true time is what it spins, and what a kernel takes that spins for no time.
    """
    from assay.timing.cuda.bench import bench
    from assay.timing.cuda.calibrate import calibrate
    from assay.timing.cuda.stamped import GraphClock
    from assay.timing.cuda.work import Work

    device = bench(index)
    calibrate(device)

    def launching(true_us: float) -> Callable[[], None]:
        launch = device.kernels.launch("spin", int(true_us * 1000))
        return lambda: launch(int(device.torch.cuda.current_stream(index).cuda_stream))

    spins = []
    for true_us in GPU_SPINS_US:
        clock = GraphClock(device, Work(launching(true_us), "warm", 16))
        batches = [clock.take().quantities["span_us"] for _ in range(6)]
        clock.close()
        spins.append(_spun(true_us, np.concatenate(batches[2:]) - device.known.empty_us))
    return Calibration(
        clock=f"cuda:{index}",
        step_ns=TIMER_STEP_NS,
        floor_us=device.known.empty_us,
        event_overhead_us=_event_overhead_us(device.torch, launching(20.0), 20.0 + device.known.empty_us),
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


def _spun(true_us: float, read_us: Samples) -> Spun:
    low, middle, high = (float(q) for q in np.quantile(read_us, [0.25, 0.5, 0.75]))
    disturbed = float(np.mean(read_us > middle * (1 + STRAY) + GPU_ERROR_US))
    return Spun(true_us=true_us, read_us=middle, low_us=low, high_us=high, disturbed_share=disturbed)


def checks(calibrations: Iterable[Calibration]) -> list[Finding]:
    """Return for each clock whether it is right and whether it is quiet."""
    return [finding for calibration in calibrations for finding in _judged(calibration)]


def _judged(calibration: Calibration) -> list[Finding]:
    error_us = HOST_ERROR_US if calibration.clock == "host" else GPU_ERROR_US
    worst = max(calibration.spins, key=lambda s: abs(s.error_us) / max(error_us, ERROR_SHARE * s.true_us))
    right = all(abs(s.error_us) <= max(error_us, ERROR_SHARE * s.true_us) for s in calibration.spins)
    disturbed = max(spun.disturbed_share for spun in calibration.spins)
    named = "The host's clock" if calibration.clock == "host" else f"The clock of {calibration.clock}"
    shown = ", ".join(f"{s.true_us:g} µs reads {s.read_us:.2f}" for s in calibration.spins)
    least = f"steps of {calibration.step_ns:.0f} ns, floor {calibration.floor_us:.2f} µs"
    if calibration.event_overhead_us is not None:
        least += f"; a pair of CUDA events adds {calibration.event_overhead_us:.1f} µs"
    return [
        check(
            f"{named} reads spins of known duration right (±1 %, or {error_us:g} µs)",
            "yes" if right else "no",
            f"{shown}; {least}",
            fix=None if right else f"close other programs and look again; {worst.true_us:g} µs is the worst",
            topic="clock",
            error_us=worst.error_us,
            floor_us=calibration.floor_us,
            event_overhead_us=calibration.event_overhead_us,
        ),
        check(
            f"{named} is not disturbed",
            "yes" if disturbed <= NOISY_SHARE else "no",
            f"{disturbed:.0%} of the spins took 5 % longer than most",
            fix=None if disturbed <= NOISY_SHARE else "see what else runs (assay run --strangers refuse does)",
            topic="clock",
            disturbed_share=disturbed,
        ),
    ]
