"""Devices whose energy can be measured: the sensors of a CPU (RAPL) or a GPU (NVML), and loads of calls back to back.

On a GPU, batches of calls are queued ahead on a stream, each followed by an event:

host    put put put ── wait for space ── put ── …         a few batches are always queued, so that nothing on the
GPU     ▐batch▌▐batch▌▐batch▌▐batch▌▐batch▌ …             host, such as reading a slow sensor, makes the GPU wait
        anchor  event  event  event                       events are mapped to the host's clock by the anchor
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay.core.errors import TrialFailed
from assay.core.format import format_count
from assay.joules.readings import (
    CallBoundary,
    GpuPowerMeter,
    HostMonotonicClock,
    MeterPoller,
    RaplMeter,
    counter_series,
)
from assay.joules.sensor_model import (
    PROBE_INTERVAL_S,
    CounterModel,
    SensorModel,
    counter_quantum_j,
    load_sensor_model,
    probe_sensors,
    save_sensor_model,
)
from assay.joules.ticks import find_ticks
from assay.machine import nvidia
from assay.machine.nvml import NvmlSensor, decode_text
from assay.timing.cuda.device import NotCapturable, capture_graph, gpu_timing_device
from assay.timing.cuda.timers import GpuCallBatch, QueueTimer, probe_capability
from assay.timing.setup import BoundCall, make_first_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import Origin
    from assay.joules.readings import MeterReading, ReadingSampler, SleepingClock
    from assay.timing.cuda.device import GpuTimingDevice
    from assay.timing.cuda.timers import Capability
    from assay.timing.options import TimingOptions
    from assay.timing.sampling import Call


RAPL_PROBE_NS = 50_000_000
RAPL_INTERVAL_S = 0.01
RAPL_LAG_ERROR_S = 0.001
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.002, 0.01
"""Interval between readings: a tenth of the sensor's period, within these limits."""


class EnergyDevice(Protocol):
    """A device whose energy is measured.

    Attributes:
        device: Its name: ``cuda:0``, ``cpu``.
        model: The model of its sensors.
        origin: Whether the sensors are real.
        notes: Notes on the sensors.
    """

    device: str
    clock: SleepingClock
    model: SensorModel
    origin: Origin
    notes: tuple[str, ...]

    def prepare_load(self, bound: BoundCall, options: TimingOptions) -> CallLoad:
        """Make the first calls, and return a load that keeps the device busy with more of them."""

    def sampler(self) -> ReadingSampler:
        """Return a sampler of the sensors, not yet started."""


@contextmanager
def open_device(options: TimingOptions) -> Iterator[EnergyDevice]:
    """Open the energy device of some options for the length of a ``with`` block.

    Raises:
        MachineCannot: The device's energy cannot be read here, and why.
    """
    if not options.on_gpu:
        yield CpuEnergyDevice(Path("/"), HostMonotonicClock())
        return
    with open_cuda_device(options) as device:
        yield device


class CpuEnergyDevice:
    """The host's processor, measured with its own energy counters (RAPL)."""

    device = "cpu"
    origin: Origin = "real"

    def __init__(self, root: Path, clock: SleepingClock) -> None:
        """Open the counters and measure how often they are updated.

        Raises:
            MachineCannot: There are none, or this process may not read them.
        """
        self.clock = clock
        self._meter = RaplMeter(root, clock)
        readings: list[MeterReading] = []
        until_ns = clock.now_ns() + RAPL_PROBE_NS
        while clock.now_ns() < until_ns:
            if (reading := self._meter.read()) is not None:
                readings.append(reading)
        domains = ", ".join(self._meter.domains)
        self.model = rapl_sensor_model(readings, domains)
        self.notes: tuple[str, ...] = (f"all that ran on {domains} counts, whoever started it",)

    def prepare_load(self, bound: BoundCall, options: TimingOptions) -> CallLoad:
        """Make the first calls, and return a loop over them."""
        first = make_first_calls(bound, lambda: None, options.limit_s)  # a call is complete when it returns
        return CpuCallLoad(bound.call, self.clock, first.least_us / 1e6, first.notes)

    def sampler(self) -> ReadingSampler:
        """Return a poller of the counters."""
        return MeterPoller(self._meter, self.clock, RAPL_INTERVAL_S)


def rapl_sensor_model(readings: list[MeterReading], domains: str) -> SensorModel:
    """Return the model of a processor's counters, from readings at full speed: they are updated about every 1 ms."""
    series = counter_series(readings, readings[0].t_ns) if readings else None
    if series is None or len(series) < 2:
        return SensorModel(device=domains, driver="RAPL")
    ticks = find_ticks(series.begin_s, series.end_s, series.energy_j)
    spacing = ticks.times_s[1:] - ticks.times_s[:-1]
    period_s = float(sorted(spacing)[len(spacing) // 2]) if len(spacing) else RAPL_INTERVAL_S
    counter = CounterModel(
        period_s=period_s,
        jitter_s=period_s / 4,
        quantum_j=counter_quantum_j(series.energy_j),
        lag_s=0.0,
        lag_error_s=RAPL_LAG_ERROR_S,
        read_s=float((series.end_s - series.begin_s).mean()),
    )
    return SensorModel(device=domains, driver="RAPL", counter=counter)


def polling_interval_s(model: SensorModel) -> float:
    """Return how often to read sensors, in s: often enough to locate their ticks."""
    periods_s = [
        part.period_s for part in (model.counter, model.instant, model.usage, model.average) if part is not None
    ]
    return min(LONGEST_INTERVAL_S, max(SHORTEST_INTERVAL_S, min(periods_s, default=LONGEST_INTERVAL_S) / 10))


CHUNK_NS = 1_000_000
"""Short calls are grouped: a boundary is recorded about this often."""


class CallLoad(Protocol):
    """Makes calls back to back for a given time.

    Attributes:
        call_s: Approximate time per call, back to back.
        gap_s: How much of that the device waits for the host; null where it does not.
        how: How calls are launched, for people.
        notes: Notes on the calls.
    """

    call_s: float
    gap_s: float | None
    how: str
    notes: tuple[str, ...]

    def run(self, seconds: float) -> None:
        """Keep the device busy for some seconds from now, with at least one call; it may still be busy afterwards."""

    def rest(self, seconds: float) -> None:
        """Let the device finish, and leave it idle for some seconds."""

    def boundaries(self) -> list[CallBoundary]:
        """Return the call boundaries so far."""

    def close(self) -> None:
        """Let the device finish, and release what is held on it."""


class CpuCallLoad:
    """The host: a call is complete when it returns."""

    gap_s: float | None = None
    how = "called in a loop"

    def __init__(self, call: Call, clock: SleepingClock, call_s: float, notes: tuple[str, ...] = ()) -> None:
        self.call_s = call_s
        self.notes = notes
        self._call = call
        self._clock = clock
        self._per_chunk = max(1, int(CHUNK_NS / 1e9 / max(call_s, 1e-9)))
        self._boundaries: list[CallBoundary] = []
        self._calls = 0

    def run(self, seconds: float) -> None:
        """Make calls for some seconds."""
        now_ns = self._clock.now_ns()
        until_ns = now_ns + round(seconds * 1e9)
        self._boundaries.append(CallBoundary(now_ns, self._calls))
        while True:
            for _ in range(self._per_chunk):
                self._call()
            self._calls += self._per_chunk
            now_ns = self._clock.now_ns()
            self._boundaries.append(CallBoundary(now_ns, self._calls))
            if now_ns >= until_ns:
                return

    def rest(self, seconds: float) -> None:
        """Make no calls for some seconds."""
        self._clock.sleep(seconds)

    def boundaries(self) -> list[CallBoundary]:
        """Return the call boundaries so far."""
        return list(self._boundaries)

    def close(self) -> None:
        """Do nothing: nothing is held."""


QUEUE_AHEAD_S = 0.06
"""Amount of work queued ahead: more than reading the slowest sensor takes."""
LONG_BATCH_S = 0.3
"""The next batch is launched only after one that takes this long: next to it, host overhead is negligible."""
POLL_SLEEP_S = 0.0002


class CudaCallLoad:
    """Launches batches on a stream; ``batch`` makes ``calls`` calls, which take about ``batch_s`` in total."""

    def __init__(
        self,
        timing_device: GpuTimingDevice,
        clock: SleepingClock,
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
        self._timing_device = timing_device
        self._clock = clock
        self._batch = batch
        self._per_batch = calls
        self._max_queued = 1 if batch_s >= LONG_BATCH_S else max(2, math.ceil(QUEUE_AHEAD_S / batch_s))
        self._limit_s = limit_s
        self._release = release
        self._queued: deque[tuple[Any, int]] = deque()
        self._anchor: tuple[Any, int] | None = None
        self._boundaries: list[CallBoundary] = []
        self._calls = 0

    def run(self, seconds: float) -> None:
        """Keep the GPU busy for some seconds from now; a few batches are still queued afterwards."""
        until_ns = self._clock.now_ns() + round(seconds * 1e9)
        with self._timing_device.torch.cuda.stream(self._timing_device.stream):
            self._begin()
            while True:
                self._batch()
                self._calls += self._per_batch
                self._queued.append((self._event(), self._calls))
                self._limit_queue(self._max_queued)
                if self._clock.now_ns() >= until_ns:
                    return

    def rest(self, seconds: float) -> None:
        """Let the GPU finish what is queued, and leave it idle for some seconds."""
        self._limit_queue(1)
        self._anchor = None
        self._clock.sleep(seconds)

    def boundaries(self) -> list[CallBoundary]:
        """Return the boundaries between batches that the GPU has passed."""
        return list(self._boundaries)

    def close(self) -> None:
        """Let the GPU finish, and release what is held on it."""
        self._limit_queue(1)
        if self._release is not None:
            self._release()

    def _event(self) -> Any:
        event = self._timing_device.torch.cuda.Event(enable_timing=True)
        event.record(self._timing_device.stream)
        return event

    def _begin(self) -> None:
        """Relate an event on the idle GPU to the host's clock; later events are related through it."""
        if self._anchor is not None:
            return
        before_ns = self._clock.now_ns()
        event = self._event()
        self._wait_for(event, nap=False)
        t_ns = (before_ns + self._clock.now_ns()) // 2
        self._anchor = event, t_ns
        self._boundaries.append(CallBoundary(t_ns, self._calls))

    def _limit_queue(self, max_queued: int) -> None:
        """Wait until fewer than ``max_queued`` batches are queued; completed ones become boundaries."""
        while self._queued and (len(self._queued) >= max_queued or self._queued[0][0].query()):
            event, calls = self._queued.popleft()
            self._wait_for(event, nap=True)
            if self._anchor is not None:
                anchor_event, t_ns = self._anchor
                self._boundaries.append(CallBoundary(t_ns + round(anchor_event.elapsed_time(event) * 1e6), calls))

    def _wait_for(self, event: Any, *, nap: bool) -> None:
        until_ns = self._clock.now_ns() + round(self._limit_s * 1e9)
        while not event.query():
            if self._clock.now_ns() > until_ns:
                raise TrialFailed(
                    f"The GPU has not finished within {self._limit_s:g} s; its work cannot be taken back."
                )
            self._clock.sleep(POLL_SLEEP_S if nap else 0.0)


BATCH_S = 0.004
"""Approximate duration of a batch: short relative to a sensor's period, long relative to launching it."""
MAX_GRAPH_CALLS = 1000
"""Maximum number of calls in a graph, whose capture takes about 10 µs per call."""
MAX_QUEUED_CALLS = 64
"""Maximum number of calls in a batch launched call by call: several batches must fit the queue."""
HOST_BOUND_SHARE = 0.03
"""If calls launched one by one take longer than queued ones by this share, the GPU waits for the host."""
QUEUED_CALLS, QUEUED_BATCHES = 16, 3
REPLAYS = 3
"""One slow replay must not decide how many calls make a graph."""
LOAD_SIDE = 4096


@contextmanager
def open_cuda_device(options: TimingOptions) -> Iterator[CudaEnergyDevice]:
    """Open a GPU's sensors, with their model; the sensors are probed now if the model is not known yet.

    Raises:
        MachineCannot: NVML does not answer, or the GPU shows neither energy nor power.
    """
    timing_device = gpu_timing_device(options.index)
    clock: SleepingClock = HostMonotonicClock()
    with nvidia.open_readers([timing_device.uuid]) as (reader,):
        driver = decode_text(reader.plain("nvmlSystemGetDriverVersion")) or "unknown"
        meter = GpuPowerMeter(NvmlSensor(reader, timing_device.uuid), clock)
        model = load_sensor_model(timing_device.uuid, driver)
        if model is None:
            load = matmul_load(timing_device, clock, options.limit_s)
            model = probe_sensors(load, MeterPoller(meter, clock, PROBE_INTERVAL_S), timing_device.uuid, driver)
            load.close()
            save_sensor_model(model)
        yield CudaEnergyDevice(options.device, timing_device, clock, meter, model)


class CudaEnergyDevice:
    """One GPU with open sensors."""

    def __init__(
        self,
        device: str,
        timing_device: GpuTimingDevice,
        clock: SleepingClock,
        meter: GpuPowerMeter,
        model: SensorModel,
    ) -> None:
        self.device = device
        self.clock: SleepingClock = clock
        self.model = model
        self.origin: Origin = "fake" if "fake" in model.driver else "real"
        self.notes: tuple[str, ...] = ()
        self._timing_device = timing_device
        self._meter = meter

    def sampler(self) -> ReadingSampler:
        """Return a poller of the GPU's sensors."""
        return MeterPoller(self._meter, self.clock, polling_interval_s(self.model))

    def prepare_load(self, bound: BoundCall, options: TimingOptions) -> CallLoad:
        """Make the first calls, and return a load that keeps the GPU busy, as well as the function allows."""
        return CudaLoadBuilder(self._timing_device, self.clock, bound, options.limit_s).best()


@dataclass(frozen=True)
class CudaLoadBuilder:
    """Builds a load that keeps a GPU busy with a function."""

    timing_device: GpuTimingDevice
    clock: SleepingClock
    bound: BoundCall
    limit_s: float

    def best(self) -> CudaCallLoad:
        """Return a graph of many calls where the function can be captured, a queue of them, or calls one by one."""
        timing_device, call = self.timing_device, self.bound.call
        first = make_first_calls(self.bound, lambda: timing_device.finish(self.limit_s), self.limit_s, at_least=2)
        capability = probe_capability(timing_device, call, None, steady=first.steady, limit_s=self.limit_s)
        call_s = max(first.least_us / 1e6, 1e-7)
        load = partial(
            CudaCallLoad,
            timing_device,
            self.clock,
            notes=(*first.notes, *_capability_notes(capability)),
            limit_s=self.limit_s,
        )
        if capability.waits or capability.operations == 0:
            return load(call, calls=1, batch_s=call_s, how="called one by one")
        if capability.captures and (captured := self._capture(call_s)) is not None:
            graph, calls, batch_s = captured
            how = f"a CUDA graph of {format_count(calls, 'call')}, replayed"
            return load(graph.replay, calls=calls, batch_s=batch_s, how=how, release=graph.reset)
        launched_s = _launch_s(timing_device, self.clock, call, self.limit_s)
        calls = max(1, min(MAX_QUEUED_CALLS, int(BATCH_S / launched_s)))
        return load(
            _repeat_call(call, calls),
            calls=calls,
            batch_s=launched_s * calls,
            how=f"launched call by call, {calls} to a batch",
            gap_s=_host_gap_s(timing_device, call, launched_s, self.limit_s),
        )

    def _capture(self, call_s: float) -> tuple[Any, int, float] | None:
        """Return a graph, how many calls it has, and how long it takes; null where so many cannot be captured."""
        calls = 1
        graph: Any = None
        for _ in range(3):  # the time per call is more accurate once several are in a graph
            if graph is not None:
                graph.reset()
            memory = self.timing_device.torch.cuda.graph_pool_handle()  # a pool ends with its last graph
            try:
                graph = capture_graph(self.timing_device, _repeat_call(self.bound.call, calls), memory)
            except NotCapturable:
                return None
            call_s = max(_replay_s(self.timing_device, graph, self.limit_s) / calls, 1e-7)
            target_calls = max(1, min(MAX_GRAPH_CALLS, int(BATCH_S / call_s)))
            if target_calls <= 2 * calls:
                break
            calls = target_calls
        return graph, calls, call_s * calls


def _capability_notes(capability: Capability) -> list[str]:
    if capability.operations == 0:
        return ["it launches nothing on the GPU: the energy is that of the GPU while the host works"]
    if capability.waits:
        return ["it waits for the GPU itself: the pauses that makes are part of its energy"]
    return []


def _repeat_call(call: Call, times: int) -> Call:
    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def _replay_s(timing_device: GpuTimingDevice, graph: Any, limit_s: float) -> float:
    """Return the shortest time of a replay on the GPU, in s."""
    events = [timing_device.torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    with timing_device.torch.cuda.stream(timing_device.stream):
        graph.replay()
        events[0].record(timing_device.stream)
        for event in events[1:]:
            graph.replay()
            event.record(timing_device.stream)
    timing_device.wait(limit_s)
    return min(float(begin.elapsed_time(end)) for begin, end in pairwise(events)) / 1e3


def _host_gap_s(timing_device: GpuTimingDevice, call: Call, launched_s: float, limit_s: float) -> float | None:
    """Return how long the GPU waits for the host per call launched alone; null where it does not wait."""
    queue = QueueTimer(timing_device, GpuCallBatch(call, "warm", QUEUED_CALLS, limit_s=limit_s))
    try:
        spans_us = sorted(float(queue.take().quantities["span_us"].mean()) for _ in range(QUEUED_BATCHES))
    except TrialFailed:
        return None  # too much to queue, and so enough to keep the GPU busy
    waited_s = launched_s - spans_us[QUEUED_BATCHES // 2] / 1e6
    return waited_s if waited_s > HOST_BOUND_SHARE * launched_s else None


def _launch_s(timing_device: GpuTimingDevice, clock: SleepingClock, call: Call, limit_s: float) -> float:
    """Return the time per call when many are launched one after another, in s: the least of a few attempts."""
    took_ns = []
    for _ in range(QUEUED_BATCHES):
        timing_device.wait(limit_s)
        begin_ns = clock.now_ns()
        with timing_device.torch.cuda.stream(timing_device.stream):
            for _ in range(QUEUED_CALLS):
                call()
        timing_device.wait(limit_s)
        took_ns.append(clock.now_ns() - begin_ns)
    return min(took_ns) / 1e9 / QUEUED_CALLS


def matmul_load(timing_device: GpuTimingDevice, clock: SleepingClock, limit_s: float) -> CudaCallLoad:
    """Return a load that draws much power, to make the sensors move: a PyTorch matmul."""
    torch = timing_device.torch
    device = f"cuda:{timing_device.index}"
    with torch.cuda.device(timing_device.index):
        generator = torch.Generator(device=device).manual_seed(0)
        matrix = torch.randn((LOAD_SIDE, LOAD_SIDE), device=device, generator=generator).half()
        result = torch.empty_like(matrix)
    torch.cuda.synchronize(timing_device.index)
    multiply = partial(torch.matmul, matrix, matrix, out=result)
    return CudaLoadBuilder(timing_device, clock, BoundCall("the load", multiply), limit_s).best()
