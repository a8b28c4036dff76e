"""A GPU whose energy is measured: its sensors through NVML, and calls put to it by a graph, a queue or one by one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from assay.core.errors import TrialFailed
from assay.joules.clock import HostClock
from assay.joules.cuda_keeper import CudaKeeper
from assay.joules.kept import keep_model, kept_model
from assay.joules.meters import GpuPowerMeter
from assay.joules.probe import EVERY_S, probe
from assay.joules.rig import polling_s
from assay.joules.sampling import Poller
from assay.machine import nvidia
from assay.machine.nvml_reader import text
from assay.machine.nvml_sensor import NvmlSensor
from assay.timing.cuda.allows import find_out
from assay.timing.cuda.bench import bench as bench_of
from assay.timing.cuda.graphs import NotCaptured, capture
from assay.timing.cuda.stamped import QueueClock
from assay.timing.cuda.work import Work
from assay.timing.subject import Bound, first_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import Origin
    from assay.joules.clock import Clock
    from assay.joules.keeper import Keeper
    from assay.joules.model import SensorModel
    from assay.joules.sampling import Sampling
    from assay.timing.cuda.allows import Allows
    from assay.timing.cuda.bench import Bench
    from assay.timing.instrument import Call
    from assay.timing.options import Options

BATCH_S = 0.004
"""About how long a batch takes: short against a sensor's period, long against putting it on the stream."""
MOST_CALLS = 1000
"""In a graph, whose capture takes about 10 µs a call."""
MOST_QUEUED = 64
"""In a batch that is launched call by call: several batches must fit the queue."""
HOST_BOUND = 0.03
"""Where calls launched one by one take so much longer than queued, as a share, the GPU waits for the host."""
QUEUED_CALLS, QUEUED_TAKES = 16, 3
REPLAYS = 3
"""A slow one must not decide how many calls make a graph."""
LOAD_SIDE = 4096


@contextmanager
def cuda_rig(options: Options) -> Iterator[CudaRig]:
    """Give a GPU with its sensors open, and how they see; found out now where it is not known yet.

    Raises:
        MachineCannot: NVML does not answer, or the GPU shows neither energy nor power.
    """
    timing_device = bench_of(options.index)
    clock: Clock = HostClock()
    with nvidia.readers([timing_device.uuid]) as (reader,):
        driver = text(reader.plain("nvmlSystemGetDriverVersion")) or "unknown"
        meter = GpuPowerMeter(NvmlSensor(reader, timing_device.uuid), clock)
        model = kept_model(timing_device.uuid, driver)
        if model is None:
            load = matmuls(timing_device, clock, options.limit_s)
            model = probe(load, Poller(meter, clock, EVERY_S), timing_device.uuid, driver)
            load.close()
            keep_model(model)
        yield CudaRig(options.device, timing_device, clock, meter, model)


class CudaRig:
    """One GPU, its sensors open."""

    def __init__(self, device: str, bench: Bench, clock: Clock, meter: GpuPowerMeter, model: SensorModel) -> None:
        self.device = device
        self.clock: Clock = clock
        self.model = model
        self.origin: Origin = "fake" if "fake" in model.driver else "real"
        self.notes: tuple[str, ...] = ()
        self._bench = bench
        self._meter = meter

    def sampling(self) -> Sampling:
        """Return a poller of the GPU's sensors."""
        return Poller(self._meter, self.clock, polling_s(self.model))

    def keeper(self, bound: Bound, options: Options) -> Keeper:
        """Make the first calls, and return who keeps the GPU busy with more of them, as the function allows."""
        return CallKeepers(self._bench, self.clock, bound, options.limit_s).best()


@dataclass(frozen=True)
class CallKeepers:
    """The ways to keep a GPU busy with a function."""

    bench: Bench
    clock: Clock
    bound: Bound
    limit_s: float

    def best(self) -> CudaKeeper:
        """Return a graph of many calls where the function can be captured, a queue of them, or calls one by one."""
        timing_device, call = self.bench, self.bound.call
        first = first_calls(self.bound, lambda: timing_device.finish(self.limit_s), self.limit_s, at_least=2)
        capability = find_out(timing_device, call, None, steady=first.steady, limit_s=self.limit_s)
        notes = (*first.notes, *_said(capability))
        if capability.waits or capability.operations == 0:
            return self._one_by_one(max(first.least_us / 1e6, 1e-7), notes)
        graph = self._graph(first.least_us / 1e6, notes) if capability.captures else None
        return graph or self._queue(notes)

    def _one_by_one(self, call_s: float, notes: tuple[str, ...]) -> CudaKeeper:
        how = "called one by one"
        return CudaKeeper(
            self.bench, self.clock, self.bound.call, calls=1, batch_s=call_s, how=how, notes=notes, limit_s=self.limit_s
        )

    def _graph(self, call_s: float, notes: tuple[str, ...]) -> CudaKeeper | None:
        """Return a keeper that replays a graph; null where so many calls cannot be captured."""
        calls = 1
        graph: Any = None
        for _ in range(3):  # what a call takes is known better once several are in a graph
            if graph is not None:
                graph.reset()
            memory = self.bench.torch.cuda.graph_pool_handle()  # a pool ends with its last graph
            try:
                graph = capture(self.bench, _repeated(self.bound.call, calls), memory)
            except NotCaptured:
                return None
            call_s = max(_replayed_s(self.bench, graph, self.limit_s) / calls, 1e-7)
            target_calls = max(1, min(MOST_CALLS, int(BATCH_S / call_s)))
            if target_calls <= 2 * calls:
                break
            calls = target_calls
        return CudaKeeper(
            self.bench,
            self.clock,
            graph.replay,
            calls=calls,
            batch_s=call_s * calls,
            how=f"a CUDA graph of {calls} call{'' if calls == 1 else 's'}, replayed",
            notes=notes,
            limit_s=self.limit_s,
            release=graph.reset,
        )

    def _queue(self, notes: tuple[str, ...]) -> CudaKeeper:
        """Return a keeper that launches call by call, and knows how much longer that takes than queued calls do."""
        launched_s = _launched_s(self.bench, self.clock, self.bound.call, self.limit_s)
        calls = max(1, min(MOST_QUEUED, int(BATCH_S / launched_s)))
        return CudaKeeper(
            self.bench,
            self.clock,
            _repeated(self.bound.call, calls),
            calls=calls,
            batch_s=launched_s * calls,
            how=f"launched call by call, {calls} to a batch",
            gap_s=_gap_s(self.bench, self.bound.call, launched_s, self.limit_s),
            notes=notes,
            limit_s=self.limit_s,
        )


def _said(allows: Allows) -> list[str]:
    if allows.operations == 0:
        return ["it launches nothing on the GPU: the energy is that of the GPU while the host works"]
    if allows.waits:
        return ["it waits for the GPU itself: the pauses that makes are part of its energy"]
    return []


def _repeated(call: Call, times: int) -> Call:
    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def _replayed_s(bench: Bench, graph: Any, limit_s: float) -> float:
    """Return how long a replay takes on the GPU at the least, in s."""
    marks = [bench.torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    with bench.torch.cuda.stream(bench.stream):
        graph.replay()
        marks[0].record(bench.stream)
        for mark in marks[1:]:
            graph.replay()
            mark.record(bench.stream)
    bench.wait(limit_s)
    return min(float(begin.elapsed_time(end)) for begin, end in pairwise(marks)) / 1e3


def _gap_s(bench: Bench, call: Call, launched_s: float, limit_s: float) -> float | None:
    """Return how long the GPU waits for the host in a call that is launched by itself; null where it does not."""
    queue = QueueClock(bench, Work(call, "warm", QUEUED_CALLS, limit_s=limit_s))
    try:
        spans_us = sorted(float(queue.take().quantities["span_us"].mean()) for _ in range(QUEUED_TAKES))
    except TrialFailed:
        return None  # too much to queue, and so enough to keep the GPU busy
    waited_s = launched_s - spans_us[QUEUED_TAKES // 2] / 1e6
    return waited_s if waited_s > HOST_BOUND * launched_s else None


def _launched_s(bench: Bench, clock: Clock, call: Call, limit_s: float) -> float:
    """Return how long a call takes when many are launched one after another, in s: the least of a few such goes."""
    took_ns = []
    for _ in range(QUEUED_TAKES):
        bench.wait(limit_s)
        begin_ns = clock.now_ns()
        with bench.torch.cuda.stream(bench.stream):
            for _ in range(QUEUED_CALLS):
                call()
        bench.wait(limit_s)
        took_ns.append(clock.now_ns() - begin_ns)
    return min(took_ns) / 1e9 / QUEUED_CALLS


def matmuls(bench: Bench, clock: Clock, limit_s: float) -> CudaKeeper:
    """Return a load that draws much power, to see the sensors move: a matmul of PyTorch's."""
    torch = bench.torch
    with torch.cuda.device(bench.index):
        generator = torch.Generator(device=f"cuda:{bench.index}").manual_seed(0)
        shape = (LOAD_SIDE, LOAD_SIDE)
        one = torch.randn(shape, device=f"cuda:{bench.index}", generator=generator).half()
        into = torch.empty_like(one)
    torch.cuda.synchronize(bench.index)

    def multiply() -> None:
        torch.matmul(one, one, out=into)

    return CallKeepers(bench, clock, Bound("the load", multiply), limit_s).best()
