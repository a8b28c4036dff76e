"""What the card's sensors said when each kernel ran: the look nearest to its middle."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from assay.monitor.lines import GpuSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.monitor.kernels.rows import Kernel
    from assay.monitor.lines import Line

NEAR_NS = 250_000_000
"""A look farther away than this says nothing of a kernel; the sensors of an H200 tick every 100 ms."""


def with_sensors(kernels: Sequence[Kernel], lines: Iterable[Line], gpu: int) -> list[Kernel]:
    """Return the rows with what a GPU's sensors said; as they were where no look is near, or no clock is shared."""
    looks = sorted((line for line in lines if isinstance(line, GpuSample) and line.gpu == gpu), key=lambda s: s.t_ns)
    times = [look.t_ns for look in looks]
    return [_beside(kernel, looks, times) for kernel in kernels]


def _beside(kernel: Kernel, looks: Sequence[GpuSample], times: Sequence[int]) -> Kernel:
    if kernel.start_ns is None or not looks:
        return kernel
    middle_ns = kernel.start_ns + round(kernel.duration_us * 500)
    index = bisect_left(times, middle_ns)
    near = min(looks[max(0, index - 1) : index + 1], key=lambda look: abs(look.t_ns - middle_ns))
    if abs(near.t_ns - middle_ns) > NEAR_NS:
        return kernel
    return kernel.model_copy(
        update={
            "sm_mhz": near.sm_mhz,
            "temperature_c": near.temperature_c,
            "power_instant_w": near.power_instant_w,
            "power_usage_w": near.power_usage_w,
            "throttle": None if near.throttle is None else "; ".join(near.throttle) or "none",
            "sensor_offset_ms": (near.t_ns - middle_ns) / 1e6,
        }
    )
