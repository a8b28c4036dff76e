"""A GPU's clock meanwhile: looked at now and then, told with its reasons, and held where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot
from assay.core.results import GpuSnapshot
from assay.machine.nvidia import GpuSnapshotReader
from assay.timing.conditions import READ_INTERVAL_S, ClockWatch, ContextSwitchCounter, describe_switches, locked_clock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.fake_nvml import FakeNvml
    from tests.timing.faking import VirtualTime

UUID = "GPU-fa4e0000-0000-4000-8000-000000000000"


def test_without_a_reader_nothing_is_seen() -> None:
    watch = ClockWatch(None)
    watch.begin()
    watch.label_batch()
    watch.end()
    seen = watch.summary(None, [])
    assert (seen.mhz, seen.before, seen.after, seen.throttled_share) == (None, None, None, None)
    assert watch.uuid is None


def test_looks_that_follow_each_other_closely_are_one(virtual: VirtualTime) -> None:
    looks: list[float] = []

    def reader() -> GpuSnapshot:
        looks.append(virtual.now_s)
        return GpuSnapshot(uuid="GPU-1")

    watch = ClockWatch(reader)
    for _ in range(10):
        watch.label_batch()
        virtual.now_s += READ_INTERVAL_S / 4
    assert len(looks) == pytest.approx(3, abs=1)


def test_a_gpu_that_stops_answering_is_no_failure(virtual: VirtualTime) -> None:
    moments = iter([GpuSnapshot(uuid="GPU-1", throttle=()), None, None])
    watch = ClockWatch(lambda: next(moments))
    watch.begin()
    watch.label_batch()
    watch.end()
    assert watch.summary(None, []).after is None


def test_reasons_are_told_once_and_harmless_ones_not_at_all(virtual: VirtualTime) -> None:
    moments = iter([("power cap",), ("idle",), ("power cap", "heat"), ()])
    watch = ClockWatch(lambda: GpuSnapshot(uuid="GPU-1", throttle=next(moments)))
    for _ in range(4):
        watch.label_batch()
        virtual.now_s += 1.0
    assert watch.throttled == ("power cap", "heat")
    assert watch.summary(None, []).throttled_share == 0.5


def test_the_clocks_that_were_counted_are_summed_up() -> None:
    seen = ClockWatch(None).summary(1410, [1900.0, 1980.0, 1500.0])
    assert (seen.mhz_low, seen.mhz, seen.mhz_high, seen.locked_mhz) == (1500.0, 1900.0, 1980.0, 1410)


def test_a_clock_is_held_for_the_length_of_the_block_and_given_back(
    fake_nvml: FakeNvml, fake_pynvml: object, assay_home: Path
) -> None:
    watch = ClockWatch(GpuSnapshotReader(UUID))
    with locked_clock(watch, 1410):
        assert fake_nvml.gpu(0).sm_lock_max_mhz == 1410
        assert len(list((assay_home / "leases").glob("*.json"))) == 1
    assert fake_nvml.gpu(0).sm_lock_max_mhz != 1410
    assert list((assay_home / "leases").glob("*.json")) == []


def test_a_clock_is_given_back_when_the_block_fails(fake_nvml: FakeNvml, fake_pynvml: object) -> None:
    with pytest.raises(ZeroDivisionError), locked_clock(ClockWatch(GpuSnapshotReader(UUID)), 1410):
        raise ZeroDivisionError
    assert fake_nvml.gpu(0).sm_lock_max_mhz != 1410


def test_the_clock_of_a_gpu_that_nvml_does_not_know_cannot_be_held() -> None:
    with pytest.raises(MachineCannot, match="NVML does not know this GPU"), locked_clock(ClockWatch(None), 1410):
        pytest.fail("it went on")


def test_without_a_wish_nothing_is_held(fake_nvml: FakeNvml, fake_pynvml: object, assay_home: Path) -> None:
    before = fake_nvml.gpu(0).sm_lock_max_mhz
    with locked_clock(ClockWatch(GpuSnapshotReader(UUID)), None):
        assert fake_nvml.gpu(0).sm_lock_max_mhz == before
        assert not (assay_home / "leases").exists()


def test_a_core_that_was_taken_away_often_is_told_of() -> None:
    (note,) = describe_switches(100, 2.0)
    assert note.startswith("other processes interfere: 100 involuntary context switches in 2 s")


def test_a_few_switches_or_seldom_ones_are_not_worth_a_word() -> None:
    assert describe_switches(4, 0.001) == ()
    assert describe_switches(100, 10.0) == ()


def test_nothing_is_said_right_after_the_counting_began() -> None:
    assert ContextSwitchCounter().notes() == ()
