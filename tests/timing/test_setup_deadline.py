"""A limit on a block of code: it works in the main thread, does no harm elsewhere, and leaves alarms as they were."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import TrialFailed
from assay.timing.setup import time_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(60, method="thread")  # the other method is an alarm itself


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Leave no alarm behind."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def spin() -> None:
    while True:
        pass


def test_a_block_within_its_limit_leaves_no_alarm_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(30.0, "f"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_block_that_goes_on_is_interrupted_and_leaves_no_alarm_behind() -> None:
    with pytest.raises(TrialFailed, match=r"f has not returned within 0.02 s\."), time_limit(0.02, "f"):
        spin()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_block_that_sleeps_is_interrupted_too() -> None:
    with pytest.raises(TrialFailed), time_limit(0.02, "f"):
        threading.Event().wait()


def test_a_block_that_swallows_every_exception_is_interrupted_all_the_same() -> None:
    def swallow() -> None:
        try:
            spin()
        except Exception:  # noqa: BLE001 - that is the point
            spin()

    with pytest.raises(TrialFailed), time_limit(0.02, "f"):
        swallow()


def test_what_a_block_raises_comes_through() -> None:
    with pytest.raises(KeyError), time_limit(30.0, "f"):
        raise KeyError


def test_in_another_thread_there_is_no_limit_and_no_harm() -> None:
    done: list[bool] = []

    def work() -> None:
        with time_limit(0.001, "f"):
            done.append(threading.Event().wait(0.05))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [False]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_somebody_elses_alarm_that_rings_later_still_rings() -> None:
    rung = threading.Event()
    signal.signal(signal.SIGALRM, lambda *_: rung.set())
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(TrialFailed), time_limit(0.02, "f"):
        spin()
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.3
    while not rung.is_set():
        time.sleep(0.01)


def test_somebody_elses_alarm_that_rings_sooner_goes_first() -> None:
    class Theirs(Exception):
        pass

    def ring(*_: object) -> None:
        raise Theirs

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    with pytest.raises(Theirs), time_limit(30.0, "f"):
        spin()


def test_one_limit_within_another_leaves_the_outer_one_standing() -> None:
    def within() -> None:
        with time_limit(0.02, "inner"):
            pass
        spin()

    with pytest.raises(TrialFailed, match="outer"), time_limit(0.1, "outer"):
        within()
