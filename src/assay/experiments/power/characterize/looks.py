"""The sensors laid over kernels: what a card was seen to do while each of them ran.

kernels  ├──── 0 ────┤├──── 1 ────┤├─2─┤├─3─┤
looks      ·    ·    ·    ·    ·     ·           a mean over those that fell within; else the nearest, if it is near

Readings are as they were read: an average of the last second is one, and nothing is shifted for a sensor's lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.monitor.lines import GpuSample, Header

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from assay.monitor.lines import Line

    Floats = NDArray[np.float64]
    Moments = NDArray[np.int64]

SENSORS = (
    "sm_mhz",
    "memory_mhz",
    "temperature_c",
    "power_instant_w",
    "power_average_w",
    "power_usage_w",
    "utilisation_percent",
    "memory_utilisation_percent",
)
NEAR_NS = 250_000_000
"""A look farther from a kernel than this says nothing of it, unless looks are rarer by themselves."""

NOTHING_HELD = "none"
"""Nothing held the clock back; where the card does not say, there is nothing at all."""


@dataclass(frozen=True)
class Looks:
    """What was read of one GPU, in order: when, in ns of the host's monotonic clock, and each quantity (NaN: not)."""

    t_ns: Moments
    values: dict[str, Floats]
    throttle: tuple[tuple[str, ...] | None, ...]
    near_ns: int = NEAR_NS


def looks_of(lines: Iterable[Line], gpu: int) -> Looks:
    """Return what was read of one GPU, by its number."""
    near_ns, samples = NEAR_NS, []
    for line in lines:
        if isinstance(line, Header):
            near_ns = max(NEAR_NS, round(1.5e9 * line.interval_s))
        elif isinstance(line, GpuSample) and line.gpu == gpu:
            samples.append(line)
    samples.sort(key=lambda sample: sample.t_ns)
    return Looks(
        t_ns=np.array([sample.t_ns for sample in samples], dtype=np.int64),
        values={name: _column([getattr(sample, name) for sample in samples]) for name in SENSORS},
        throttle=tuple(sample.throttle for sample in samples),
        near_ns=near_ns,
    )


def _column(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def laid(looks: Looks, start_ns: Moments, end_ns: Moments) -> dict[str, Floats]:
    """Return each quantity for each kernel, given from when to when it ran; NaN where no look was near."""
    return {name: _laid(looks, values, start_ns, end_ns) for name, values in looks.values.items()}


def _laid(looks: Looks, values: Floats, start_ns: Moments, end_ns: Moments) -> Floats:
    finite = np.isfinite(values)
    t_ns, values = looks.t_ns[finite], values[finite]
    if not len(t_ns):
        return np.full(len(start_ns), np.nan)
    first, behind = np.searchsorted(t_ns, start_ns, "left"), np.searchsorted(t_ns, end_ns, "right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    within = (sums[behind] - sums[first]) / np.maximum(behind - first, 1)
    index, gap_ns = _nearest(t_ns, start_ns, end_ns)
    nearest = np.where(gap_ns <= looks.near_ns, values[index], np.nan)
    return np.where(behind > first, within, nearest)


def _nearest(t_ns: Moments, start_ns: Moments, end_ns: Moments) -> tuple[Moments, Moments]:
    """Return for each kernel the look nearest to it, and how far it is from its nearer edge."""
    after = np.searchsorted(t_ns, start_ns).clip(0, len(t_ns) - 1)
    before = (after - 1).clip(0)
    gaps = [np.maximum(np.maximum(start_ns - t_ns[index], t_ns[index] - end_ns), 0) for index in (before, after)]
    nearer = gaps[0] < gaps[1]
    return np.where(nearer, before, after), np.where(nearer, gaps[0], gaps[1])


def held_back(looks: Looks, start_ns: Moments, end_ns: Moments) -> list[str | None]:
    """Return for each kernel why its clock was not higher, at any look while it ran; null where none was near."""
    entries = [(t, reasons) for t, reasons in zip(looks.t_ns, looks.throttle, strict=True) if reasons is not None]
    reasons = tuple(dict.fromkeys(reason for _, several in entries for reason in several))
    plain = Looks(np.array([t for t, _ in entries], dtype=np.int64), {}, (), looks.near_ns)
    covered = np.isfinite(_laid(plain, np.zeros(len(entries)), start_ns, end_ns))
    codes = np.zeros(len(start_ns), dtype=np.int64)
    for bit, reason in enumerate(reasons):
        share = _laid(plain, np.array([float(reason in several) for _, several in entries]), start_ns, end_ns)
        codes += (share > 0).astype(np.int64) << bit
    words = {code: "; ".join(r for bit, r in enumerate(reasons) if code >> bit & 1) for code in set(codes.tolist())}
    return [
        (words[code] or NOTHING_HELD) if near else None
        for code, near in zip(codes.tolist(), covered.tolist(), strict=True)
    ]
