"""Times between stamps: of calls captured in a graph, or queued behind a gate. No profiler is asked.

Both let the GPU run from call to call without waiting for the host. A graph is replayed as a whole, so the host has no
part in it; a queue is launched call by call while a gate holds the stream, and then let go.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.core.errors import TrialFailed
from assay.timing.batching import CONTRADICTED
from assay.timing.cuda.graphs import NotCaptured, capture
from assay.timing.cuda.stamps import SLOTS
from assay.timing.instrument import Batch, Samples

if TYPE_CHECKING:
    from assay.timing.cuda.bench import Bench
    from assay.timing.cuda.stamps import Stamps
    from assay.timing.cuda.work import Work

Place = Literal["call", "spin", "wide"]
"""What stands between two stamps: the call, or a reference, which spins in one thread or on all multiprocessors."""

BETWEEN_REFERENCES = 2
MOST_CALLS = SLOTS * BETWEEN_REFERENCES // (BETWEEN_REFERENCES + 1) - 1
OFFSETS_KEPT = 32
"""Batches whose references are remembered: enough for a median, few enough to follow the clock."""

SHORT_US = 50.0
"""The calls of a batch that are shorter than this make one sample: from place to place in a graph they differ by
0.1 µs, though hardly from replay to replay."""
MOST_PLANS = 4
"""So often at most it is decided whether they do: the first batch may have been slow."""
TRIMMED = 0.1
GATE_MOST_NS = 2_000_000_000


class GateGivenUp(TrialFailed):
    """The gate opened by itself before all calls were queued: a call waits for the GPU, or is too much to queue."""


def layout(calls: int) -> tuple[Place, ...]:
    """Return what stands in each slot: references of both kinds in turns, one before each two calls, two at least."""
    contents: list[Place] = []
    for call in range(calls):
        if call % BETWEEN_REFERENCES == 0:
            contents.append("wide" if contents.count("spin") > contents.count("wide") else "spin")
        contents.append("call")
    return (*contents, "wide") if "wide" not in contents else tuple(contents)


def trimmed(values: Samples) -> float:
    """Return the mean without the tenth at either end: places differ a little, and a disturbed call a lot."""
    cut = int(np.ceil(TRIMMED * len(values))) if len(values) >= 5 else 0
    return float(np.sort(values)[cut : len(values) - cut].mean())


class _Stamped:
    """What both ways share: the sequence that is put on the stream, and what its stamps say.

    What the stamps themselves take is seen at the references, spins of known duration. It differs from graph to graph
    by some 0.3 µs, so every batch has its own. Where it is not known how many operations a call has, neither is how
    long their boundaries take, and so ``busy_us``.
    """

    method = "stamped"
    primary = "span_us"

    def __init__(self, bench: Bench, work: Work) -> None:
        if not 1 <= work.calls <= MOST_CALLS:
            raise ValueError(f"between 1 and {MOST_CALLS} calls fit a batch, not {work.calls}")
        self._bench = bench
        self._work = work
        self._layout = layout(work.calls)
        self._places = np.array(self._layout)
        self._offsets: deque[tuple[float, float | None]] = deque(maxlen=OFFSETS_KEPT)
        self._short: bool | None = None
        self.typical_us = 0.0
        self._plans = 1
        self.calls_per_sample = 1

    def _put(self) -> None:
        """Put the whole sequence on the bench's stream, which is the current one."""
        device, work = self._bench, self._work
        if work.state == "warm":
            work.prepare()
            work.call()
        for slot, content in enumerate(self._layout):
            if content == "call":
                work.prepare()
            device.make_ready(work.state)
            device.slots.begin[slot](device.handle)
            if content == "call":
                work.call()
            else:
                device.references[content](device.handle)
            device.slots.end[slot](device.handle)
        device.slots.fetch()

    def _read(self) -> Batch:
        """Return how much longer than the references the calls took, and with it how long."""
        stamps, calibration, work = self._bench.slots.read(len(self._places)), self._bench.known, self._work
        calls = stamps.of(self._places == "call")
        self._offsets.append(self._offset(stamps))
        quantities: dict[str, Samples] = {"span_us": calls.us - float(np.median([us for us, _ in self._offsets]))}
        if work.operations is not None:
            between_us = calibration.boundary_us[f"{self.method} {work.state}"]
            quantities["busy_us"] = quantities["span_us"] - (work.operations - 1) * between_us
        cycles = [cycles for _, cycles in self._offsets if cycles is not None]
        if calls.cycles is not None and cycles:
            quantities["cycles"] = calls.cycles - float(np.median(cycles))
        self.typical_us = float(np.median(quantities["span_us"]))
        if self._short is None:
            self.average_by(self.typical_us)
        if self._short:
            quantities = {name: np.array([trimmed(values)]) for name, values in quantities.items()}
        return Batch(quantities, calls.mhz)

    def replan(self) -> bool:
        """Decide anew whether the calls of a batch make one sample, where the last batch contradicts the first."""
        limit_us = SHORT_US * CONTRADICTED if self._short else SHORT_US / CONTRADICTED
        if self._plans >= MOST_PLANS or (self.typical_us < limit_us) == self._short:
            return False
        self._plans += 1
        self.average_by(self.typical_us)
        return True

    def average_by(self, typical_us: float) -> None:
        """Make one sample of the calls of a batch where a call is as short as this, or one of each."""
        self._short = typical_us < SHORT_US
        self.calls_per_sample = self._work.calls if self._short else 1

    def _offset(self, stamps: Stamps) -> tuple[float, float | None]:
        """Return what the stamps take beside what stands between them: microseconds, and cycles where they count."""
        offsets_us, offsets_cycles = [], []
        for kind in ("spin", "wide"):
            references = stamps.of(self._places == kind)
            true_us = self._bench.known.reference_us[f"{kind} {self._work.state}"]
            offsets_us.append(trimmed(references.us) - true_us)
            if references.cycles is not None and references.mhz is not None:
                offsets_cycles.append(trimmed(references.cycles) - true_us * references.mhz)
        return float(np.mean(offsets_us)), float(np.mean(offsets_cycles)) if offsets_cycles else None


class GraphClock(_Stamped):
    """Calls captured once in a graph; each batch replays it."""

    method = "graph"

    def __init__(self, bench: Bench, work: Work) -> None:
        super().__init__(bench, work)
        try:
            self._graph = capture(bench, self._put, bench.pool)
        except NotCaptured:
            bench.renew_pool()
            raise

    def take(self) -> Batch:
        """Replay the graph and read its stamps."""
        with self._bench.torch.cuda.stream(self._bench.stream):
            self._graph.replay()
        self._bench.wait(self._work.limit_s)
        return self._read()

    def close(self) -> None:
        """Give the graph's memory back."""
        self._graph.reset()


class QueueClock(_Stamped):
    """Calls launched one by one behind a gate; each batch launches them again."""

    method = "queue"

    def take(self) -> Batch:
        """Close the gate, launch everything, open it, and read the stamps."""
        device = self._bench
        with device.torch.cuda.stream(device.stream), device.gate.closed(device.handle, GATE_MOST_NS) as gate:
            self._put()
        device.wait(self._work.limit_s)
        if gate.given_up:
            raise GateGivenUp("The calls could not be queued: one of them waits for the GPU, or launches too much.")
        return self._read()

    def close(self) -> None:
        """Nothing is held."""
