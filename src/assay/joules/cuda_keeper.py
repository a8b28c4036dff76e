"""Keeping a GPU busy: batches of calls queued ahead on a stream, each with an event behind it that says when.

host    put put put ── wait for room ── put ── …          a few batches are always queued, so that nothing on the
GPU     ▐batch▌▐batch▌▐batch▌▐batch▌▐batch▌ …             host, such as reading a slow sensor, lets the GPU wait
        anchor  event  event  event                       events are placed on the host's clock by the anchor
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from assay.core.errors import TrialFailed
from assay.joules.course import Knot

if TYPE_CHECKING:
    from assay.joules.clock import Clock
    from assay.timing.cuda.bench import Bench
    from assay.timing.instrument import Call

AHEAD_S = 0.06
"""So much is queued ahead: more than it takes to read the slowest sensor."""
LONG_S = 0.3
"""A batch that takes so long is waited for before the next is put: beside it, what the host takes is nothing."""
NAP_S = 0.0002


class CudaKeeper:
    """Puts batches on a stream; ``batch`` makes so many calls, which take about so long together."""

    def __init__(
        self,
        bench: Bench,
        clock: Clock,
        batch: Call,
        *,
        calls: int,
        batch_s: float,
        how: str,
        gap_s: float | None = None,
        notes: tuple[str, ...] = (),
        limit_s: float = 60.0,
        release: Call | None = None,
    ) -> None:
        self.call_s = batch_s / calls
        self.gap_s = gap_s
        self.how = how
        self.notes = notes
        self._bench = bench
        self._clock = clock
        self._batch = batch
        self._per_batch = calls
        self._room = 1 if batch_s >= LONG_S else max(2, math.ceil(AHEAD_S / batch_s))
        self._limit_s = limit_s
        self._release = release
        self._queued: deque[tuple[Any, int]] = deque()
        self._anchor: tuple[Any, int] | None = None
        self._knots: list[Knot] = []
        self._calls = 0

    def keep(self, seconds: float) -> None:
        """Keep the GPU busy for so long from now; a few batches are still queued afterwards."""
        until_ns = self._clock.now_ns() + round(seconds * 1e9)
        with self._bench.torch.cuda.stream(self._bench.stream):
            self._begin()
            while True:
                self._batch()
                self._calls += self._per_batch
                self._queued.append((self._event(), self._calls))
                self._make_room(self._room)
                if self._clock.now_ns() >= until_ns:
                    return

    def rest(self, seconds: float) -> None:
        """Let the GPU finish what is queued, and leave it alone for so long."""
        self._make_room(1)
        self._anchor = None
        self._clock.sleep(seconds)

    def knots(self) -> list[Knot]:
        """Return the moments between batches that the GPU has passed."""
        return list(self._knots)

    def close(self) -> None:
        """Let the GPU finish, and give back what is held on it."""
        self._make_room(1)
        if self._release is not None:
            self._release()

    def _event(self) -> Any:
        event = self._bench.torch.cuda.Event(enable_timing=True)
        event.record(self._bench.stream)
        return event

    def _begin(self) -> None:
        """Place an event of the idle GPU on the host's clock; those that follow are placed by it."""
        if self._anchor is not None:
            return
        before_ns = self._clock.now_ns()
        event = self._event()
        self._wait_for(event, nap=False)
        t_ns = (before_ns + self._clock.now_ns()) // 2
        self._anchor = event, t_ns
        self._knots.append(Knot(t_ns, self._calls))

    def _make_room(self, room: int) -> None:
        """Wait until fewer batches than so many are queued; those that are over become knots."""
        while self._queued and (len(self._queued) >= room or self._queued[0][0].query()):
            event, calls = self._queued.popleft()
            self._wait_for(event, nap=True)
            if self._anchor is not None:
                begun, t_ns = self._anchor
                self._knots.append(Knot(t_ns + round(begun.elapsed_time(event) * 1e6), calls))

    def _wait_for(self, event: Any, *, nap: bool) -> None:
        until_ns = self._clock.now_ns() + round(self._limit_s * 1e9)
        while not event.query():
            if self._clock.now_ns() > until_ns:
                raise TrialFailed(
                    f"The GPU has not finished within {self._limit_s:g} s; its work cannot be taken back."
                )
            self._clock.sleep(NAP_S if nap else 0.0)
