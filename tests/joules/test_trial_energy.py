"""The energy of a trial, from a recording whose joules are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.results import Missing
from assay.joules.trial_energy import (
    estimate_gpu_windows,
    estimate_host_domains,
    estimate_package_energy,
    gpu_readings,
    merge_windows,
    sum_gpu_energy,
)
from assay.monitor.samples import GpuMeterSample, GpuSample, HostSample
from tests.monitor.pacing import S, header

if TYPE_CHECKING:
    from assay.joules.trial_energy import TimeWindows, TrialEnergy
    from assay.monitor.samples import RecordingLine

GPUS = {0: "GPU-of-nobody"}


def watched(watts: float, lasting_s: float, *, back_at_s: float | None = None) -> list[RecordingLine]:
    """Return what a recorder writes of a counter that ticks every 100 ms and is read every 100 ms."""
    lines: list[RecordingLine] = [header(gpus=1)]
    for tick in range(round(lasting_s * 10)):
        at_s = tick / 10 + 0.03
        counted = 1e6 + watts * int(10 * at_s) / 10
        if back_at_s is not None and at_s > back_at_s:
            counted -= 9e5
        lines += [
            GpuSample(t_ns=round(at_s * S), tick=tick, gpu=0, power_average_w=watts),
            GpuMeterSample(t_ns=round(at_s * S), tick=tick, gpu=0, energy_j=counted, took_us=5000.0),
        ]
    return lines


def energy(lines: list[RecordingLine], windows: TimeWindows) -> TrialEnergy:
    return sum_gpu_energy(estimate_gpu_windows(lines, GPUS, windows, "1").values())


def test_a_windows_energy_is_told_with_an_interval_and_how() -> None:
    told = energy(watched(500.0, 12.0), [(3 * S, 9 * S)])
    assert told.energy is not None
    assert told.energy.value == pytest.approx(3000.0, rel=0.02)
    assert told.energy.low is not None
    assert told.energy.low < 3000.0 < (told.energy.high or 0.0)
    assert told.note is not None
    assert "was not probed" in told.note


def test_several_windows_add_up_and_one_that_cannot_be_told_refuses_all() -> None:
    lines = watched(300.0, 20.0)
    told = energy(lines, [(2 * S, 6 * S), (10 * S, 16 * S)])
    assert told.energy is not None
    assert told.energy.value == pytest.approx(3000.0, rel=0.02)
    short = energy(lines, [(2 * S, 6 * S), (10 * S, 10 * S + 30_000_000)])
    assert short.energy is None
    assert short.missing is not None
    assert short.missing.code == "too_few_ticks"


def test_a_counter_that_went_back_is_refused_with_the_reason() -> None:
    told = energy(watched(300.0, 12.0, back_at_s=5.0), [(2 * S, 9 * S)])
    assert told.energy is None
    assert told.missing is not None
    assert told.missing.code == "counter_reset"


def test_without_readings_or_windows_nothing_is_told() -> None:
    assert energy([header(gpus=1)], [(0, S)]).energy is None
    assert energy(watched(1.0, 3.0), []).missing == Missing(code="not_covered", detail="nothing was timed")
    assert gpu_readings(watched(1.0, 1.0), 1) == []


def package(at_s: float, joules: float) -> HostSample:
    return HostSample(t_ns=round(at_s * S), tick=0, package_energy_j={"package-0": joules, "package-0/dram": joules})


def test_processors_are_told_by_their_counters_and_the_edges_are_in_the_interval() -> None:
    lines = [package(t / 5, 10.0 * t / 5) for t in range(100)]
    told = estimate_package_energy(lines, [(round(3.05 * S), round(13.05 * S))])
    assert told.energy is not None
    assert told.energy.value == pytest.approx(200.0)
    assert told.energy.low == pytest.approx(200.0 - 4.0)
    assert estimate_package_energy(lines, [(round(0.05 * S), round(0.15 * S))]).energy is None
    assert estimate_package_energy(lines, [(15 * S, 60 * S)]).energy is None
    unread = estimate_package_energy([HostSample(t_ns=0, tick=0)], [(0, S)])
    assert unread.missing is not None
    assert unread.missing.code == "no_sensor"


def test_a_processors_counter_read_fewer_than_four_times_in_a_window_is_refused() -> None:
    lines = [package(t / 2, 10.0 * t / 2) for t in range(40)]
    told = estimate_package_energy(lines, [(round(3.1 * S), round(4.6 * S))])
    assert (told.energy, told.missing and told.missing.code) == (None, "too_few_ticks")
    assert estimate_package_energy(lines, [(round(3.1 * S), round(9.1 * S))]).energy is not None


def test_a_processors_counter_that_vanishes_is_not_extrapolated_and_takes_no_sum_down() -> None:
    lines = [package(t / 5, 10.0 * t / 5) for t in range(100)]
    for place in range(40, 100):
        lines[place] = lines[place].model_copy(update={"package_energy_j": {"package-0": 10.0 * place / 5}})
    told = estimate_package_energy(lines, [(3 * S, 13 * S)])
    assert (told.energy, told.missing and told.missing.code) == (None, "not_covered")
    assert isinstance(estimate_host_domains(lines, [(3 * S, 13 * S)]), Missing)
    before = estimate_package_energy(lines, [(S, 7 * S)]).energy
    assert before is not None
    assert before.value == pytest.approx(120.0, rel=0.02)


def test_a_platforms_counter_is_not_added_to_those_of_its_packages() -> None:
    lines = [
        HostSample(t_ns=round(t / 5 * S), tick=0, package_energy_j={"package-0": 2.0 * t, "psys": 6.0 * t})
        for t in range(100)
    ]
    told = estimate_package_energy(lines, [(3 * S, 13 * S)]).energy
    assert told is not None
    assert told.value == pytest.approx(100.0, rel=0.02)


def test_windows_that_overlap_are_one() -> None:
    assert merge_windows([(5, 9), (0, 3), (2, 4), (9, 12)]) == [(0, 4), (5, 12)]
    assert merge_windows([]) == []
