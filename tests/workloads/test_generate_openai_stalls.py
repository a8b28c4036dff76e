"""A server that is silent in the middle of its load: no window ends within a stall, and none hides one."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import TrialFailed
from assay.workloads.generation.server import load, streams
from assay.workloads.generation.server.streams import MIN_SILENCE_S, STALL_FACTOR, LoadArrivals, StallDetector
from tests.workloads.openai_server import FakeServer, Talk, under_load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.workloads.base import PreparedWorkload
    from tests.conftest import Eventually, StartPython

SOON_S, LONG_S = 0.1, 0.6


@pytest.fixture
def begin(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PreparedWorkload]]:
    """Put the server under its load, in short slices; it ends with the test."""
    monkeypatch.setattr(load, "SLICE_S", 0.05)
    monkeypatch.setattr(streams, "MIN_SILENCE_S", SOON_S)
    with under_load(server) as prepare:
        yield prepare


class Stall:
    """Answers as a good server does, until it is told to stall: then it sends a token, and waits for its gate."""

    def __init__(self, most: int = 10**9) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self._most, self._lock = most, threading.Lock()
        self.held = 0

    def __call__(self, talk: Talk) -> None:
        if self.begun.is_set() and self._is_one():
            talk.token()
            talk.hold(self.gate)
        else:
            talk.pause(0.002)
        talk.whole()

    def _is_one(self) -> bool:
        with self._lock:
            self.held += 1
            return self.held <= self._most


def told(prepared: PreparedWorkload) -> dict[str, Any]:
    found: Any = prepared.call()
    return dict(found)


def silences_s(slices: list[dict[str, Any]]) -> list[float]:
    """Return those that are no accidents of a busy machine."""
    return [us / 1e6 for each in slices for us in each["silence_us"] if us / 1e6 >= LONG_S]


def until_silent(prepared: PreparedWorkload, into: list[dict[str, Any]], enough: threading.Event) -> None:
    """Call until a silence is told."""
    while not silences_s(into):
        into.append(told(prepared))
    enough.set()


@pytest.mark.parametrize(("streams", "stalled"), [(1, 1), (3, 3), (3, 1)])
def test_a_slice_does_not_end_while_a_stream_has_stalled_and_a_stall_that_dissolves_is_told(
    server: FakeServer, begin: Callable[..., PreparedWorkload], eventually: Eventually, streams: int, stalled: int
) -> None:
    stall = server.answer = Stall(stalled)
    prepared, slices, ended = begin(concurrency=streams), list[dict[str, Any]](), threading.Event()
    slices.append(told(prepared))
    stall.begun.set()
    caller = threading.Thread(target=until_silent, args=(prepared, slices, ended))
    caller.start()
    try:
        eventually(lambda: stall.held >= stalled)
        assert not ended.wait(LONG_S)
        calls = len(slices)
        assert not ended.wait(SOON_S)
        assert len(slices) == calls, "the slice is still the same"
        stall.gate.set()
        assert ended.wait(20)
    finally:
        stall.gate.set()
        caller.join()
    assert len(silences_s(slices[-1:])) == stalled


def test_a_stall_that_lasts_ends_the_load_and_is_in_no_slice(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    stall = server.answer = Stall()
    prepared = begin(concurrency=2, request_timeout_s=1.0)
    told(prepared)
    stall.begun.set()
    slices: list[dict[str, Any]] = []
    with pytest.raises(TrialFailed, match="sent nothing of an answer for 1 s"):
        until_silent(prepared, slices, threading.Event())
    assert not silences_s(slices)


def test_what_came_before_a_failure_is_kept_though_its_slice_is_the_first(
    server: FakeServer, begin: Callable[..., PreparedWorkload], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "SLICE_S", 20.0)
    good, gate = threading.Semaphore(2 + 5), threading.Event()

    def breaks(talk: Talk) -> None:
        if talk.before:
            talk.hold(gate)
        if talk.of_load and not good.acquire(blocking=False):
            talk.token()
            talk.drop()
        talk.whole()

    server.answer = breaks
    prepared = begin(concurrency=2)
    threading.Timer(SOON_S, gate.set).start()
    found = told(prepared)
    assert (found["requests"], found["answer_tokens"]) == (5.0, 5 * 4.0)
    assert found["errors"] in {2.0, 3.0}, "both streams broke; one may have asked again before the other was heard of"
    with pytest.raises(TrialFailed, match="closed the connection"):
        prepared.call()


def arrived(first_ms: float, gap_ms: float, count: int = 100) -> LoadArrivals:
    return LoadArrivals(first_token_us=[1e3 * first_ms] * count, gap_us=[1e3 * gap_ms] * count)


def test_a_stream_is_late_by_what_it_waits_for() -> None:
    load = StallDetector(4)
    load.learn(arrived(first_ms=2000, gap_ms=10))
    reading, writing = (5.9, True), (0.9 * MIN_SILENCE_S, False)
    assert load.late([reading, writing]) == []
    assert load.late([(6.1, True), writing]) == [0]
    assert load.late([reading, (1.1 * MIN_SILENCE_S, False), writing]) == [1]
    assert load.late([(3.1, True), (3.1, True)]) == [0, 1], "all of them at once, by less"
    assert load.late([(3.1, True)]) == []


def test_a_stall_does_not_pass_for_what_is_usual_and_a_slower_server_does() -> None:
    load = StallDetector(1)
    load.learn(arrived(first_ms=100, gap_ms=200))
    load.learn(arrived(first_ms=60_000, gap_ms=60_000, count=2))
    assert load.late([(STALL_FACTOR * 0.2 + 0.1, False)]) == [0]
    load.learn(arrived(first_ms=1000, gap_ms=1000))
    assert load.late([(2.9, False)]) == []
    assert load.late([(3.1, False)]) == [0]


def test_where_no_token_follows_another_the_end_is_waited_for_like_a_first_token() -> None:
    load = StallDetector(1)
    assert load.late([(1000.0, True), (1000.0, False)]) == [], "nothing is known yet"
    load.learn(LoadArrivals(first_token_us=[1e6]))
    assert load.late([(2.9, False)]) == []
    assert load.late([(3.1, False)]) == [0]


CLIENT = """
import sys
from assay.workloads.generation.workloads import GENERATE_OPENAI
from assay.workloads.generation.params import Generation

told = Generation.model_validate_json(sys.argv[1])
prepared = GENERATE_OPENAI.prepare(told.as_params(), None, device="cpu:0", seed=1)
print("under load", flush=True)
while True:
    prepared.call()
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_a_load_outlives_its_process(
    server: FakeServer, start_python: StartPython, eventually: Eventually, how: signal.Signals
) -> None:
    client = start_python(CLIENT, server.generation(concurrency=3).model_dump_json())
    assert client.stdout is not None
    assert client.stdout.readline() == "under load\n"
    eventually(lambda: server.open_connections >= 3)  # one that has just ended may not have been closed here yet
    client.send_signal(how)
    assert client.wait(20) == -how
    eventually(lambda: server.open_connections == 0)
