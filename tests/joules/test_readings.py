"""Reading a meter in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot
from assay.joules.readings import HostMonotonicClock, MeterPoller, MeterReading, counter_series, power_series

if TYPE_CHECKING:
    from tests.conftest import Eventually


class Told:
    """A meter that says what it is told to."""

    def __init__(self, answers: int | None = None, error: Exception | None = None) -> None:
        self.lost: str | None = None
        self.last_error = "NVML was not found"
        self.read_so_far = 0
        self._answers = answers
        self._error = error

    def read(self) -> MeterReading | None:
        self.read_so_far += 1
        if self._error is not None:
            raise self._error
        if self._answers is not None and self.read_so_far > self._answers:
            return None
        return MeterReading(self.read_so_far, self.read_so_far, self.read_so_far, energy_j=1.0)


def test_readings_come_in_order_until_it_is_stopped(eventually: Eventually) -> None:
    meter = Told()
    poller = MeterPoller(meter, HostMonotonicClock(), 0.001)
    poller.start()
    eventually(lambda: len(poller.readings()) >= 3)
    readings = poller.stop()
    assert [r.t_ns for r in readings] == list(range(1, len(readings) + 1))
    assert poller.stop() == readings


def test_a_meter_that_falls_silent_is_told_with_the_reason(eventually: Eventually) -> None:
    poller = MeterPoller(Told(answers=2), HostMonotonicClock(), 0.0)
    poller.start()
    eventually(lambda: not poller.alive)
    with pytest.raises(MachineCannot, match="NVML was not found"):
        poller.readings()
    with pytest.raises(MachineCannot, match="NVML was not found"):
        poller.stop()


def test_a_lost_device_is_told_at_once(eventually: Eventually) -> None:
    meter = Told()
    poller = MeterPoller(meter, HostMonotonicClock(), 0.001)
    poller.start()
    meter.lost = "GPU is lost"
    eventually(lambda: not poller.alive)
    with pytest.raises(MachineCannot, match="GPU is lost"):
        poller.stop()


def test_a_defect_in_reading_is_not_swallowed(eventually: Eventually) -> None:
    poller = MeterPoller(Told(error=KeyError("a defect")), HostMonotonicClock(), 0.001)
    poller.start()
    eventually(lambda: not poller.alive)
    with pytest.raises(KeyError, match="a defect"):
        poller.stop()


def test_one_that_never_began_has_nothing_to_stop() -> None:
    assert MeterPoller(Told(), HostMonotonicClock(), 0.001).stop() == []


def test_readings_become_series_in_seconds_and_what_did_not_answer_is_left_out() -> None:
    told = [
        MeterReading(10**9, 2 * 10**9, 3 * 10**9, energy_j=5.0, instant_w=100.0, usage_w=70.0),
        MeterReading(4 * 10**9, 5 * 10**9, 6 * 10**9, energy_j=7.0, instant_w=200.0),
        MeterReading(7 * 10**9, 8 * 10**9, 9 * 10**9, energy_j=9.0, instant_w=300.0),
        MeterReading(10 * 10**9, 10 * 10**9, 10 * 10**9, average_w=80.0),
    ]
    for count in (1, 2, 3, 4):
        power, counter = power_series(told[:count], "instant", 10**9), counter_series(told[:count], 10**9)
        assert len(power) == len(counter) == min(count, 3)
        assert power.t_s.tolist() == [0.0, 3.0, 6.0][:count]
        assert power.watts.tolist() == [100.0, 200.0, 300.0][:count]
        assert counter.begin_s.tolist() == [1.0, 4.0, 7.0][:count]
        assert counter.end_s.tolist() == [2.0, 5.0, 8.0][:count]
        assert counter.energy_j.tolist() == [5.0, 7.0, 9.0][:count]
    assert power_series(told, "usage", 0).watts.tolist() == [70.0]
    assert (power_series(told, "average", 0).t_s.tolist(), len(power_series([], "usage", 0))) == ([10.0], 0)
    assert len(counter_series(told[3:], 0)) == 0
