"""What the monitor saw while a trial was timed, from lines whose truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.monitor.samples import GpuSample, HostSample, WatchedGpu
from assay.monitor.statistics import MAX_STEAL_PERCENT, summarise_windows
from tests.monitor.pacing import S, header

if TYPE_CHECKING:
    from assay.core.results import WindowStats
    from assay.monitor.samples import RecordingLine

GPUS = {0: "GPU-0"}
HEAD = header(gpus=1).model_copy(
    update={"gpus": (WatchedGpu(index=0, uuid="GPU-0", memory_mib=100_000.0),), "host_every": 1}
)


def seen_in(lines: list[RecordingLine], windows: list[tuple[int, int]], gpus: dict[int, str] = GPUS) -> WindowStats:
    return summarise_windows([HEAD, *lines], windows, None, gpus)


def gpu(at_s: float, **readings: object) -> GpuSample:
    return GpuSample.model_validate({"t_ns": round(at_s * S), "tick": round(at_s * 10), "gpu": 0, **readings})


def host(at_s: float, **readings: object) -> HostSample:
    return HostSample.model_validate({"t_ns": round(at_s * S), "tick": round(at_s * 10), **readings})


def seconds(*windows: tuple[float, float]) -> list[tuple[int, int]]:
    return [(round(a * S), round(b * S)) for a, b in windows]


def test_only_what_lies_in_the_timed_windows_counts() -> None:
    lines: list[RecordingLine] = [
        *(gpu(t / 10, power_instant_w=700.0 if 10 <= t <= 20 else 90.0, sm_mhz=1980) for t in range(40))
    ]
    seen = seen_in(lines, seconds((1.0, 2.0)))
    assert seen.gpus[0].power_w == pytest.approx(700.0)
    assert (seen.gpus[0].sm_mhz_low, seen.gpus[0].sm_mhz_high) == (1980, 1980)
    assert seen.samples == 11
    assert seen.observed_s == 1.0
    assert seen.complaints == ()


def test_means_are_over_time_where_ticks_were_missed_and_the_most_stands_beside() -> None:
    lines: list[RecordingLine] = [
        gpu(0.0, power_instant_w=100.0, utilisation_percent=0), gpu(0.1, power_instant_w=100.0, utilisation_percent=0),
        gpu(0.2, power_instant_w=100.0), gpu(1.0, power_instant_w=500.0, utilisation_percent=90),
    ]  # fmt: skip
    (seen,) = seen_in(lines, seconds((0.0, 1.0))).gpus
    assert seen.power_w == pytest.approx(0.2 * 100 + 0.8 * 300)
    assert (seen.power_max_w, seen.utilisation_max_percent) == (500.0, 90.0)


def test_the_peak_of_the_sum_is_of_one_moment_and_of_all_gpus() -> None:
    def at(tick: int, number: int, power_w: float | None) -> GpuSample:
        return gpu(tick / 10, power_instant_w=power_w).model_copy(update={"gpu": number})

    powers = [(300.0, 100.0), (100.0, 300.0), (250.0, 200.0), (900.0, None)]
    lines: list[RecordingLine] = [
        at(tick, number, both[number]) for tick, both in enumerate(powers) for number in (0, 1)
    ]
    head = header(gpus=2)
    both = {0: "GPU-0", 1: "GPU-1"}
    assert summarise_windows([head, *lines], seconds((0.0, 1.0)), None, both).power_sum_max_w == 450.0
    assert summarise_windows([head, *lines], seconds((0.0, 0.15)), None, both).power_sum_max_w == 400.0
    assert summarise_windows([head, *lines], seconds((0.3, 1.0)), None, both).power_sum_max_w is None


def test_counters_are_told_by_the_windows_and_not_over_the_gap_between_them() -> None:
    switches = {0.0: 0, 1.0: 100, 5.0: 90_000, 6.0: 90_100}
    lines: list[RecordingLine] = [*(host(t, context_switches=n, cpu_percent=50.0) for t, n in switches.items())]
    seen = seen_in(lines, seconds((0.0, 1.0), (5.0, 6.0)), {})
    assert seen.context_switches_per_s == 100.0
    assert seen.cpu_percent == 50.0
    assert seen.gpus == ()


def test_steal_beyond_the_bound_is_a_complaint_and_less_is_not() -> None:
    for steal, complained in ((MAX_STEAL_PERCENT - 0.1, False), (MAX_STEAL_PERCENT + 0.1, True)):
        seen = seen_in([host(1.0, steal_percent=steal)], seconds((0, 2)), {})
        assert bool(seen.complaints) == complained


def test_heat_is_a_complaint_and_the_power_cap_only_told() -> None:
    hot: list[RecordingLine] = [*(gpu(t / 10, throttle=("too hot (hardware)",) if t < 5 else ()) for t in range(11))]
    seen = seen_in(hot, seconds((0.0, 1.0)))
    assert seen.gpus[0].throttled_s == pytest.approx(0.5)
    assert "throttled for 50% of the time: too hot" in seen.complaints[0].message
    capped: list[RecordingLine] = [*(gpu(t / 10, throttle=("power cap",)) for t in range(11))]
    seen = seen_in(capped, seconds((0.0, 1.0)))
    assert seen.gpus[0].throttled_s == 1.0
    assert seen.complaints == ()


def test_what_a_gpu_does_before_the_trial_is_somebody_elses() -> None:
    before = [
        gpu(
            t / 10,
            utilisation_percent=40,
            memory_used_mib=30_000.0,
            pcie_tx_bytes=int(t * 5e7),
            pcie_rx_bytes=0,
        )
        for t in range(10)
    ]
    lines: list[RecordingLine] = [HEAD, *before, gpu(2.0, utilisation_percent=100, memory_used_mib=60_000.0)]
    said = " ".join(each.message for each in summarise_windows(lines, seconds((1.9, 2.1)), (0, S), GPUS).complaints)
    assert "GPU 0 was busy for 40 % of the time before" in said
    assert "30000 MiB of GPU 0 were taken before" in said
    assert "500 MB/s went over the PCIe of GPU 0 before" in said
    assert summarise_windows(lines, seconds((1.9, 2.1)), None, GPUS).complaints == ()


def test_what_is_not_offered_is_null_and_never_zero() -> None:
    seen = seen_in([gpu(1.0, temperature_c=40)], seconds((0.0, 2.0)))
    one = seen.gpus[0]
    assert one.temperature_c == 40
    assert (one.power_w, one.sm_mhz_low, one.memory_used_mib, one.pcie_mb_per_s) == (None, None, None, None)
    assert (seen.cpu_percent, seen.steal_percent, seen.pressure_cpu_percent) == (None, None, None)
    nothing = seen_in([], seconds((0.0, 2.0)))
    assert nothing.gpus[0].throttled_s is None
    assert nothing.samples == 0


def test_a_window_between_two_looks_at_the_host_is_told_by_the_next_one() -> None:
    lines: list[RecordingLine] = [host(1.0, cpu_percent=10.0), host(1.5, cpu_percent=80.0), host(2.0, cpu_percent=20.0)]
    seen = seen_in(lines, seconds((1.1, 1.3)), {})
    assert seen.cpu_percent == 80.0
    assert seen.samples == 1
    assert seen_in(lines, seconds((2.1, 2.3)), {}).cpu_percent is None
