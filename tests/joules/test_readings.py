"""Reading a meter in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot
from assay.joules.readings import HostMonotonicClock, MeterPoller, MeterReading

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
