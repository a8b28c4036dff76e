"""Devices whose energy can be measured: the sensors of a CPU (RAPL) or a GPU (NVML), and how calls load them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay.core.errors import TrialFailed
from assay.joules.load import CpuCallLoad, CudaCallLoad
from assay.joules.readings import GpuPowerMeter, HostMonotonicClock, MeterPoller, RaplMeter, counter_series
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
    from assay.joules.load import CallLoad
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
        self.model = rapl_sensor_model(self._read_for_a_moment(), ", ".join(self._meter.domains))
        self.notes: tuple[str, ...] = (f"all that ran on {', '.join(self._meter.domains)} counts, whoever started it",)

    def _read_for_a_moment(self) -> list[MeterReading]:
        until_ns = self.clock.now_ns() + RAPL_PROBE_NS
        readings = []
        while self.clock.now_ns() < until_ns:
            if (reading := self._meter.read()) is not None:
                readings.append(reading)
        return readings

    def prepare_load(self, bound: BoundCall, options: TimingOptions) -> CallLoad:
        """Make the first calls, and return a loop over them."""
        first = make_first_calls(bound, _do_nothing, options.limit_s)
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


def _do_nothing() -> None:
    """Do nothing: a call on the host is complete when it returns."""


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
        notes = (*first.notes, *_capability_notes(capability))
        if capability.waits or capability.operations == 0:
            return self._one_by_one(max(first.least_us / 1e6, 1e-7), notes)
        graph = self._graph(first.least_us / 1e6, notes) if capability.captures else None
        return graph or self._queue(notes)

    def _one_by_one(self, call_s: float, notes: tuple[str, ...]) -> CudaCallLoad:
        how = "called one by one"
        return CudaCallLoad(
            self.timing_device,
            self.clock,
            self.bound.call,
            calls=1,
            batch_s=call_s,
            how=how,
            notes=notes,
            limit_s=self.limit_s,
        )

    def _graph(self, call_s: float, notes: tuple[str, ...]) -> CudaCallLoad | None:
        """Return a load that replays a graph; null where this many calls cannot be captured."""
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
        return CudaCallLoad(
            self.timing_device,
            self.clock,
            graph.replay,
            calls=calls,
            batch_s=call_s * calls,
            how=f"a CUDA graph of {calls} call{'' if calls == 1 else 's'}, replayed",
            notes=notes,
            limit_s=self.limit_s,
            release=graph.reset,
        )

    def _queue(self, notes: tuple[str, ...]) -> CudaCallLoad:
        """Return a load that launches call by call, with how much longer that takes than queued calls."""
        launched_s = _launch_s(self.timing_device, self.clock, self.bound.call, self.limit_s)
        calls = max(1, min(MAX_QUEUED_CALLS, int(BATCH_S / launched_s)))
        return CudaCallLoad(
            self.timing_device,
            self.clock,
            _repeat_call(self.bound.call, calls),
            calls=calls,
            batch_s=launched_s * calls,
            how=f"launched call by call, {calls} to a batch",
            gap_s=_host_gap_s(self.timing_device, self.bound.call, launched_s, self.limit_s),
            notes=notes,
            limit_s=self.limit_s,
        )


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
    with torch.cuda.device(timing_device.index):
        generator = torch.Generator(device=f"cuda:{timing_device.index}").manual_seed(0)
        shape = (LOAD_SIDE, LOAD_SIDE)
        matrix = torch.randn(shape, device=f"cuda:{timing_device.index}", generator=generator).half()
        result = torch.empty_like(matrix)
    torch.cuda.synchronize(timing_device.index)

    def multiply() -> None:
        torch.matmul(matrix, matrix, out=result)

    return CudaLoadBuilder(timing_device, clock, BoundCall("the load", multiply), limit_s).best()
