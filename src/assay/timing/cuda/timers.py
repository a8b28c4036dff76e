"""GPU timers: the time between stamps, for calls captured in a graph or queued behind a gate, and the activity trace.

Both stamped timers let the GPU run from call to call without waiting for the host. A graph is replayed as a whole, so
the host does not affect the time; a queue is launched call by call while a gate holds the stream, and is then released.
Which timer a call allows is found by trying: it may wait for the GPU, or fail to be captured.

The reference kernels spin for a known time, but when a kernel starts and ends is a convention: an empty one takes
0.6 µs by the activity trace. Calibration adopts that convention once per GPU and driver; from then on no profiler is
needed.

The activity trace (CUPTI, through PyTorch's profiler) separates kernels, so it measures ``busy_us`` where a call
launches several. It has a small overhead: a traced kernel that writes much takes up to 2 % longer (on an H200).
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.core.files import home_folder, read_sealed_json, write_sealed_json
from assay.timing.cuda.device import (
    SLOT_COUNT,
    TIMER_ERROR_US,
    NotCapturable,
    TimerCalibration,
    capture_graph,
    summarize_capture,
)
from assay.timing.sampling import CONTRADICTION_FACTOR, SampleBatch, Samples, warm_up

if TYPE_CHECKING:
    from pathlib import Path

    from assay.timing.cuda.device import CaptureSummary, GpuTimingDevice, StampPairs
    from assay.timing.sampling import Call, Instrument


TRACE_GATE_NS = 500_000_000
_BEGIN, _END = "assay_begin", "assay_end"


@dataclass(frozen=True)
class GpuActivity:
    """One GPU activity: a kernel, a copy or a fill."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class TracedCall:
    """The GPU activity of one call: busy time, span, and kernel names."""

    busy_us: float
    span_us: float
    names: tuple[str, ...]


def split_calls(activities: list[GpuActivity]) -> list[TracedCall]:
    """Return the calls between stamps, in order; activity outside belongs to no call."""
    calls: list[TracedCall] = []
    current: list[GpuActivity] | None = None
    for activity in sorted(activities, key=lambda a: a.start_ns):
        if _BEGIN in activity.name:
            current = []
        elif _END in activity.name:
            if current:
                calls.append(_summarize_call(current))
            current = None
        elif current is not None:
            current.append(activity)
    return calls


def _summarize_call(activities: list[GpuActivity]) -> TracedCall:
    last = max(a.start_ns + a.duration_ns for a in activities)
    return TracedCall(
        busy_us=sum(a.duration_ns for a in activities) / 1000,
        span_us=(last - activities[0].start_ns) / 1000,
        names=tuple(a.name for a in activities),
    )


class TraceTimer:
    """Calls launched behind a gate under the profiler; each batch launches them again."""

    method = "trace"
    primary = "busy_us"
    calls_per_sample = 1

    def __init__(self, device: GpuTimingDevice, work: GpuCallBatch) -> None:
        self._device = device
        self._work = work
        self.names: tuple[str, ...] = ()

    def take(self) -> SampleBatch:
        """Trace the calls and return how long each kept the GPU busy."""
        calls = self.trace()
        stamps = self._device.slots.read(self._work.calls)
        busy, span = (np.array([getattr(c, name) for c in calls], dtype=np.float64) for name in ("busy_us", "span_us"))
        quantities: dict[str, Samples] = {"busy_us": busy, "span_us": span}
        mhz = stamps.mhz
        if mhz is not None:
            quantities["cycles"] = busy * mhz
        return SampleBatch(quantities, mhz)

    def trace(self) -> list[TracedCall]:
        """Return the GPU activity of each call of a batch."""
        activities = record_activities(self._device, self._put, self._work.limit_s, gated=not self._work.waits)
        calls = split_calls(activities)
        if len(calls) != self._work.calls:
            raise TrialFailed(
                f"The activity trace shows {len(calls)} of {self._work.calls} calls; is another profiler on?"
            )
        self.names = calls[0].names
        return calls

    def _put(self) -> None:
        device, work = self._device, self._work
        if work.state == "warm":
            work.prepare()
            work.call()
        for slot in range(work.calls):
            work.prepare()
            device.make_ready(work.state)
            device.slots.begin[slot](device.handle)
            work.call()
            device.slots.end[slot](device.handle)
        device.slots.fetch()

    def replan(self) -> bool:
        """Return false: every call is a sample of its own."""
        return False

    def close(self) -> None:
        """Do nothing: nothing is held."""


def record_activities(device: GpuTimingDevice, body: Call, limit_s: float, *, gated: bool) -> list[GpuActivity]:
    """Return the GPU's activity while ``body`` runs, launched as a whole behind a gate, or immediately."""
    from torch.autograd.profiler import profile

    device.wait(limit_s)
    try:
        with profile(use_device="cuda", use_kineto=True) as profiler:
            gate = device.gate.closed(device.handle, TRACE_GATE_NS) if gated else contextlib.nullcontext()
            with device.torch.cuda.stream(device.stream), gate:
                body()
            device.wait(limit_s)
    except RuntimeError as error:
        raise MachineCannot(f"PyTorch's profiler cannot trace here: {' '.join(str(error).split())[:200]}") from error
    return [_read_activity(event) for event in profiler.kineto_results.events() if "CUDA" in str(event.device_type())]


def _read_activity(event: Any) -> GpuActivity:
    return GpuActivity(str(event.name()), int(event.start_ns()), int(event.duration_ns()))


SlotContent = Literal["call", "spin", "wide"]
"""What is between two stamps: the call, or a reference kernel, in one thread (spin) or on all SMs (wide)."""

BETWEEN_REFERENCES = 2
MAX_BATCH_CALLS = SLOT_COUNT * BETWEEN_REFERENCES // (BETWEEN_REFERENCES + 1) - 1
MAX_OFFSETS = 32
"""Batches whose references are kept: enough for a median, few enough to follow the clock."""

SHORT_US = 50.0
"""The calls of a batch that are shorter than this make one sample: between positions in a graph they differ by
0.1 µs, but hardly between replays."""
MAX_PLANS = 4
"""Maximum number of times this is decided: the first batch may have been slow."""
TRIMMED_SHARE = 0.1
QUEUE_GATE_NS = 2_000_000_000


class GateTimedOut(TrialFailed):
    """The gate opened by itself before all calls were queued: a call waits for the GPU, or launches too much work."""


def slot_layout(calls: int) -> tuple[SlotContent, ...]:
    """Return the content of each slot: both references in turn, one before every two calls, at least two in all."""
    contents: list[SlotContent] = []
    for call in range(calls):
        if call % BETWEEN_REFERENCES == 0:
            contents.append("wide" if contents.count("spin") > contents.count("wide") else "spin")
        contents.append("call")
    return (*contents, "wide") if "wide" not in contents else tuple(contents)


def trimmed_mean(values: Samples) -> float:
    """Return the mean without the tenth at either end: positions differ slightly, and a disturbed call a lot."""
    cut = int(np.ceil(TRIMMED_SHARE * len(values))) if len(values) >= 5 else 0
    return float(np.sort(values)[cut : len(values) - cut].mean())


class _StampTimer:
    """Common part of both timers: the sequence put on the stream, and how its stamps are evaluated.

    The overhead of the stamps is measured with reference kernels, spins of known duration. It differs between graphs
    by some 0.3 µs, so every batch has its own references. Where the number of operations of a call is unknown, so is
    the time of the boundaries between them, and there is no ``busy_us``.
    """

    method = "stamped"
    primary = "span_us"

    def __init__(self, device: GpuTimingDevice, work: GpuCallBatch) -> None:
        if not 1 <= work.calls <= MAX_BATCH_CALLS:
            raise ValueError(f"between 1 and {MAX_BATCH_CALLS} calls fit a batch, not {work.calls}")
        self._device = device
        self._work = work
        self._layout = slot_layout(work.calls)
        self._contents = np.array(self._layout)
        self._offsets: deque[tuple[float, float | None]] = deque(maxlen=MAX_OFFSETS)
        self._short: bool | None = None
        self.typical_us = 0.0
        self._plans = 1
        self.calls_per_sample = 1

    def _put(self) -> None:
        """Launch the whole sequence on the device's stream, which is the current one."""
        device, work = self._device, self._work
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

    def _read(self) -> SampleBatch:
        """Read the stamps and return the durations of the calls, relative to the references."""
        stamps, calibration, work = self._device.slots.read(len(self._contents)), self._device.calibration, self._work
        calls = stamps.select(self._contents == "call")
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
            quantities = {name: np.array([trimmed_mean(values)]) for name, values in quantities.items()}
        return SampleBatch(quantities, calls.mhz)

    def replan(self) -> bool:
        """Decide again whether the calls of a batch make one sample, where the last batch contradicts the first."""
        limit_us = SHORT_US * CONTRADICTION_FACTOR if self._short else SHORT_US / CONTRADICTION_FACTOR
        if self._plans >= MAX_PLANS or (self.typical_us < limit_us) == self._short:
            return False
        self._plans += 1
        self.average_by(self.typical_us)
        return True

    def average_by(self, typical_us: float) -> None:
        """Average the calls of a batch into one sample where a call is as short as this, else keep one per call."""
        self._short = typical_us < SHORT_US
        self.calls_per_sample = self._work.calls if self._short else 1

    def _offset(self, stamps: StampPairs) -> tuple[float, float | None]:
        """Return the overhead of the stamps: in microseconds, and in cycles where they are counted."""
        offsets_us, offsets_cycles = [], []
        for kind in ("spin", "wide"):
            references = stamps.select(self._contents == kind)
            true_us = self._device.calibration.reference_us[f"{kind} {self._work.state}"]
            offsets_us.append(trimmed_mean(references.us) - true_us)
            if references.cycles is not None and references.mhz is not None:
                offsets_cycles.append(trimmed_mean(references.cycles) - true_us * references.mhz)
        return float(np.mean(offsets_us)), float(np.mean(offsets_cycles)) if offsets_cycles else None


class GraphTimer(_StampTimer):
    """Calls captured once in a graph; each batch replays it."""

    method = "graph"

    def __init__(self, device: GpuTimingDevice, work: GpuCallBatch) -> None:
        super().__init__(device, work)
        try:
            self._graph = capture_graph(device, self._put, device.pool)
        except NotCapturable:
            device.renew_pool()
            raise

    def take(self) -> SampleBatch:
        """Replay the graph and read its stamps."""
        with self._device.torch.cuda.stream(self._device.stream):
            self._graph.replay()
        self._device.wait(self._work.limit_s)
        return self._read()

    def close(self) -> None:
        """Release the graph's memory."""
        self._graph.reset()


class QueueTimer(_StampTimer):
    """Calls launched one by one behind a gate; each batch launches them again."""

    method = "queue"

    def take(self) -> SampleBatch:
        """Close the gate, launch everything, open it, and read the stamps."""
        device = self._device
        with device.torch.cuda.stream(device.stream), device.gate.closed(device.handle, QUEUE_GATE_NS) as gate:
            self._put()
        device.wait(self._work.limit_s)
        if gate.timed_out:
            raise GateTimedOut("The calls could not be queued: one of them waits for the GPU, or launches too much.")
        return self._read()

    def close(self) -> None:
        """Do nothing: nothing is held."""


TimerMethod = Literal["graph", "queue", "trace", "wall"]
PROBE_GATES_NS = (50_000_000, 2_000_000_000)
"""Timeouts of the probing gates. The second distinguishes a call that waits for the gate from a slow host."""


@dataclass(frozen=True)
class Capability:
    """What a call allows.

    Attributes:
        waits: It waits for the GPU, so nothing can be queued behind a gate.
        captures: It can be captured in a graph.
        refusal: Why not, in the driver's words; null where it can.
        operations: How many kernels, copies and fills it launches; null where it cannot be captured.
        branches: Some of them may run concurrently.
        copies: How many of its operations copy memory, which a graph does differently.
    """

    waits: bool
    captures: bool
    refusal: str | None = None
    operations: int | None = None
    branches: bool = False
    copies: int = 0


def probe_capability(
    device: GpuTimingDevice, call: Call, setup: Call | None, *, steady: bool, limit_s: float
) -> Capability:
    """Make a call behind a closed gate, and capture one, each after its setup, which is part of every batch too.

    ``steady`` states that every call does the same.
    """
    prepare = setup or _nothing
    if all(_outlasts_gate(device, prepare, call, most_ns, limit_s) for most_ns in PROBE_GATES_NS):
        return Capability(waits=True, captures=False, refusal="it waits for the GPU")
    if not steady:
        return Capability(waits=False, captures=False, refusal="its calls differ from each other")
    summaries: list[CaptureSummary] = []

    def body() -> None:
        prepare()
        summaries.append(summarize_capture(device.handle))
        call()
        summaries.append(summarize_capture(device.handle))

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            capture_graph(device, body, device.torch.cuda.graph_pool_handle(), keep=True).reset()
    except NotCapturable as error:
        return Capability(waits=False, captures=False, refusal=str(error))
    return Capability(
        waits=False,
        captures=True,
        operations=summaries[1].operations - summaries[0].operations,
        branches=summaries[1].branches,
        copies=summaries[1].copies - summaries[0].copies,
    )


def _outlasts_gate(device: GpuTimingDevice, prepare: Call, call: Call, most_ns: int, limit_s: float) -> bool:
    with device.torch.cuda.stream(device.stream), device.gate.closed(device.handle, most_ns) as gate:
        prepare()
        call()
        passed = gate.passed
    device.wait(limit_s)
    return passed


def choose_method(capability: Capability, requested: TimerMethod | Literal["auto"]) -> tuple[TimerMethod, str]:
    """Return the method for a call, and why.

    Raises:
        BadInput: The requested method cannot time this call.
    """
    best, why = _best_method(capability)
    if requested in {"auto", best}:
        return best, why if requested == "auto" else "asked for"
    if requested == "graph" and not capability.captures:
        raise BadInput(f"This call cannot be held in a graph: {capability.refusal}. Use method='auto'.")
    if requested == "queue" and capability.waits:
        raise BadInput("This call waits for the GPU, so it cannot be queued. Use method='auto'.")
    return requested, "asked for"


def _best_method(capability: Capability) -> tuple[TimerMethod, str]:
    if capability.operations == 0:
        return "wall", "it launches nothing on the GPU"
    if capability.captures and capability.copies:
        return "queue", "it copies memory, which a graph does in its own way"
    if capability.captures:
        return "graph", "it can be captured, so that the host has no part in the time"
    if not capability.waits:
        return "queue", f"it cannot be captured ({capability.refusal}) and can be queued"
    return "trace", "it waits for the GPU itself, so that it can be neither captured nor queued"


def _nothing() -> None:
    """Do nothing."""


Cache = Literal["cold", "warm"]
"""State of the caches when a call starts.

``cold``: the L2 was overwritten twice over, so it holds dirty lines of no use to the call.
``warm``: the same call ran just before.
"""


@dataclass(frozen=True)
class GpuCallBatch:
    """A batch of calls.

    Attributes:
        setup: Called before each call, untimed.
        limit_s: How long to wait for the GPU before a batch is abandoned.
        operations: Consecutive kernels, copies and fills in a call; null where unknown.
        waits: A call waits for the GPU, so it cannot be held behind a gate.
    """

    call: Call
    state: Cache
    calls: int
    setup: Call | None = None
    limit_s: float = 60.0
    operations: int | None = None
    waits: bool = False

    def prepare(self) -> None:
        """Do what must be done before a call."""
        if self.setup is not None:
            self.setup()


CALIBRATION_CALLS, CALIBRATION_BATCHES = 16, 8
CALIBRATION_WARMUP_S = 0.2  # of which at most a fifth is used: enough for the clock to rise from idle
CHAIN_LENGTH = 4  # consecutive references, to measure the boundaries between them
CACHE_STATES: tuple[Cache, ...] = ("cold", "warm")


def measure_calibration(device: GpuTimingDevice) -> TimerCalibration:
    """Trace the references, and time chains of them with stamps.

    Raises:
        MachineCannot: There is no activity trace.
    """
    empty = device.kernels.launch("spin", 0)
    launches = {"empty": empty, **device.references}

    def calling(kind: str, times: int = 1) -> Call:
        def call() -> None:
            stream = int(device.torch.cuda.current_stream(device.index).cuda_stream)
            for _ in range(times):
                launches[kind](stream)

        return call

    def traced(kind: str, state: Cache) -> float:
        return _median_us(TraceTimer(device, GpuCallBatch(calling(kind), state, CALIBRATION_CALLS)), "busy_us")

    reference_us = {f"{kind} {state}": traced(kind, state) for kind in device.references for state in CACHE_STATES}
    device.calibration = device.calibration.model_copy(update={"reference_us": reference_us})
    boundary_us = {}
    for state in CACHE_STATES:
        work = GpuCallBatch(calling("spin", CHAIN_LENGTH), state, CALIBRATION_CALLS)
        for clock in (GraphTimer(device, work), QueueTimer(device, work)):
            added_us = _median_us(clock, "span_us") - CHAIN_LENGTH * reference_us["spin warm"]
            boundary_us[f"{clock.method} {state}"] = max(0.0, added_us / (CHAIN_LENGTH - 1))
            clock.close()
    return TimerCalibration(
        gpu=device.uuid,
        driver=device.driver,
        empty_us=traced("empty", "warm"),
        reference_us=reference_us,
        boundary_us=boundary_us,
        error_us=TIMER_ERROR_US,
    )


def _median_us(clock: Instrument, quantity: str) -> float:
    warm_up(clock, CALIBRATION_WARMUP_S)
    return float(np.median(np.concatenate([clock.take().quantities[quantity] for _ in range(CALIBRATION_BATCHES)])))


def calibrate_device(device: GpuTimingDevice) -> None:
    """Calibrate a device: from the stored calibration, by measuring one, or, where both fail, by keeping defaults."""
    path = home_folder() / "clocks" / f"{device.uuid}-{device.driver}.json"
    calibration = _load_calibration(path)
    if calibration is None:
        try:
            calibration = measure_calibration(device)
        except (MachineCannot, TrialFailed):
            return
        path.parent.mkdir(exist_ok=True)
        write_sealed_json(path, calibration.as_json())
    device.calibration = calibration


def _load_calibration(path: Path) -> TimerCalibration | None:
    """Return the stored calibration; null where there is none or it is damaged, so that it is measured again."""
    try:
        return TimerCalibration.model_validate_json(read_sealed_json(path))
    except (BadInput, ValidationError):
        return None
