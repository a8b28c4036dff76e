"""The recorder: samples at fixed ticks, writes once a second, handles requests in between.

tick 0     1     2     3     4          due at start + n × interval, by the monotonic clock: errors do not accumulate
  │sample│sample│sample─────────│sample  after a sample that takes longer than a tick, the latest tick that is due
     ▲                   missed          follows at once, and the ticks in between are counted as missed
     └ requests are handled while it waits

It runs in a separate process, ``python -m assay.monitor.recorder``, started only by `Recording`. It is connected to its
parent by a socket, is pinned to the given cores, and ends with its parent: the kernel kills it at once if it is tied
to the parent; otherwise it notices that the parent is gone and finishes the file.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from assay._version import __version__
from assay.core.errors import AssayError, MachineCannot
from assay.core.processes import boot_id, die_with_parent, host_id
from assay.machine import nvidia
from assay.monitor.client import (
    RECORDER_REQUEST,
    AddMark,
    FlushRecording,
    GetLatest,
    LatestLines,
    RecorderConnection,
    RecorderFailed,
    RecorderReady,
    RecordingDone,
    RecordingFlushed,
    StopRecording,
)
from assay.monitor.options import RecordingOptions
from assay.monitor.recording_file import RecordingFile, formatter_for
from assay.monitor.samplers import PCIE_READ_INTERVAL_NS, GpuSampler, HostSampler, TopProcessSampler
from assay.monitor.samples import (
    GpuLost,
    GpuProcesses,
    GpuSample,
    Heartbeat,
    HostSample,
    Mark,
    RecordingEnd,
    RecordingHeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from assay.machine.model import GpuSensor
    from assay.monitor.client import RecorderReply, RecorderRequest
    from assay.monitor.samples import RecordingLine


FLUSH_INTERVAL_NS = 1_000_000_000
PULSE_INTERVAL_NS = PCIE_READ_INTERVAL_NS


class RecordingSink(Protocol):
    """Writes lines."""

    def write(self, lines: Sequence[RecordingLine]) -> None:
        """Accept the lines of one tick."""

    def flush(self) -> None:
        """Hand the accepted lines to the kernel, so that they survive the recorder's death."""


@dataclass
class BackgroundSampler:
    """A sampler too slow for the loop: runs in the background every ``every`` ticks, never twice at once."""

    sample: Callable[[int], list[RecordingLine]]
    every: int
    submit: Callable[[Callable[[int], list[RecordingLine]], int], Future[list[RecordingLine]]]
    first: int = 0
    since_ns: int | None = None
    """When the sample in progress was started; its readings are from then on; null: none is in progress."""
    _running: Future[list[RecordingLine]] | None = None

    def __post_init__(self) -> None:
        self._next = self.first

    def begin(self, tick: int, now_ns: int) -> None:
        """Start a sample if one is due."""
        if tick >= self._next and self._running is None:
            self._next = tick - tick % self.every + self.every
            self.since_ns = now_ns
            self._running = self.submit(self.sample, tick)

    def collect(self) -> list[RecordingLine]:
        """Return the lines of a sample that is done; empty if there is none."""
        if self._running is None or not self._running.done():
            return []
        lines, self._running, self.since_ns = self._running.result(), None, None
        return lines


class Recorder:
    """Records until it is stopped. All its dependencies are passed in."""

    def __init__(
        self,
        header: RecordingHeader,
        sink: RecordingSink,
        pace: RecorderTimer,
        *,
        sample: Callable[[int], list[RecordingLine]],
        background: Sequence[BackgroundSampler] = (),
        pulse: Callable[[], None] | None = None,
        answer: Callable[[RecorderReply], None],
    ) -> None:
        self._header = header
        self._sink = sink
        self._pace = pace
        self._sample = sample
        self._background = background
        self._answer = answer
        self._interval_ns = round(header.interval_s * 1e9)
        self._latest: dict[tuple[str, int], RecordingLine] = {}
        self._flushed_ns = header.t_ns
        self._pulse = pulse if self._interval_ns > PULSE_INTERVAL_NS else None
        self._pulsed_ns = header.t_ns
        self._stop: str | None = None
        self.ticks = 0
        self.missed = 0

    def run(self) -> RecordingEnd:
        """Record from the header to the end; reply ready once the header is in the file."""
        self._sink.write([self._header])
        self._sink.flush()
        self._answer(RecorderReady(header=self._header, pid=os.getpid()))
        tick = 0
        while not self._wait_for_tick(self._header.t_ns + tick * self._interval_ns):
            self._sample_tick(tick)
            tick = self._next_tick(tick)
        return self._finish()

    def _wait_for_tick(self, due_ns: int) -> bool:
        """Wait for a tick, handling requests and writing once a second; return whether to stop instead.

        Requests are handled at every tick, even if there is no time left to wait.
        """
        self._handle(self._pace.wait(self._pace.now_ns()))
        while self._stop is None:
            now_ns = self._pace.now_ns()
            if now_ns - self._flushed_ns >= FLUSH_INTERVAL_NS:
                self._flush()
            if now_ns >= due_ns:
                break
            self._handle(self._pace.wait(min(due_ns, self._flushed_ns + FLUSH_INTERVAL_NS, self._pulsed(now_ns))))
        return self._stop is not None

    def _pulsed(self, now_ns: int) -> int:
        """Read what must be read between ticks, if due; return when it is due next."""
        if self._pulse is None:
            return now_ns + FLUSH_INTERVAL_NS
        if now_ns - self._pulsed_ns >= PULSE_INTERVAL_NS:
            self._pulse()
            self._pulsed_ns = now_ns
        return self._pulsed_ns + PULSE_INTERVAL_NS

    def _sample_tick(self, tick: int) -> None:
        self._pulsed_ns = self._pace.now_ns()
        lines = [*self._sample(tick), *self._collect_background()]
        for sampler in self._background:
            sampler.begin(tick, self._pace.now_ns())
        self._keep_latest(lines)
        self._sink.write(lines)
        self.ticks += 1

    def _collect_background(self) -> list[RecordingLine]:
        return [line for sampler in self._background for line in sampler.collect()]

    def _next_tick(self, tick: int) -> int:
        """Return the next tick: the latest that is already due, if any; those before it are missed."""
        due = (self._pace.now_ns() - self._header.t_ns) // self._interval_ns
        following = max(tick + 1, due)
        self.missed += following - tick - 1
        return following

    def _flush(self) -> None:
        lines, now_ns = self._collect_background(), self._pace.now_ns()
        self._keep_latest(lines)
        self._sink.write(lines)
        self._sink.write([Heartbeat(t_ns=now_ns, wall_ns=self._pace.wall_ns(), missed=self.missed)])
        self._sink.flush()
        self._flushed_ns = now_ns

    def _keep_latest(self, lines: list[RecordingLine]) -> None:
        for line in lines:
            if isinstance(line, GpuSample | GpuProcesses | GpuLost):
                self._latest[line.kind, line.gpu] = line
            elif isinstance(line, HostSample):
                self._latest[line.kind, 0] = line

    def _handle(self, requests: Sequence[RecorderRequest]) -> None:
        for request in requests:
            match request:
                case AddMark(name=name, start_ns=start_ns, end_ns=end_ns):
                    self._sink.write([Mark(t_ns=self._pace.now_ns(), name=name, start_ns=start_ns, end_ns=end_ns)])
                case FlushRecording():
                    self._flush()
                    in_progress = [
                        since_ns for sampler in self._background if (since_ns := sampler.since_ns) is not None
                    ]
                    self._answer(RecordingFlushed(until_ns=min([self._flushed_ns, *in_progress])))
                case GetLatest():
                    self._answer(LatestLines(lines=tuple(self._latest.values())))
                case StopRecording(reason=reason):
                    self._stop = self._stop or reason

    def _finish(self) -> RecordingEnd:
        end = RecordingEnd(
            t_ns=self._pace.now_ns(),
            wall_ns=self._pace.wall_ns(),
            ticks=self.ticks,
            missed=self.missed,
            reason=self._stop or "",
        )
        self._sink.write(self._collect_background())
        self._sink.write([end])
        self._sink.flush()
        self._answer(RecordingDone(end=end))
        return end


class SampleClock(Protocol):
    """Monotonic and wall-clock time."""

    def now_ns(self) -> int:
        """Return the monotonic time in ns."""

    def wall_ns(self) -> int:
        """Return the time since 1970 in ns; it jumps when the clock is set."""


class RecorderTimer(SampleClock, Protocol):
    """A clock that can also wait."""

    def wait(self, until_ns: int) -> Sequence[RecorderRequest]:
        """Wait for a moment; return earlier with the requests received."""


class SystemSampleClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        """Return the monotonic time in ns."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Return the time since 1970 in ns."""
        return time.time_ns()


SWITCH_INTERVAL_S = 0.0005
"""How long a slow sampler may delay the loop before Python switches threads."""

FIRST_TOP_AFTER_S = 1.0
"""A share of CPU time needs some elapsed time."""


class SocketTimer(SystemSampleClock):
    """Real time; while waiting it receives requests, and notices the parent's death, SIGTERM and SIGHUP."""

    def __init__(self, connection: RecorderConnection, parent: int) -> None:
        self._connection = connection
        self._requests: list[RecorderRequest] = []
        self._signals, write_end = socket.socketpair()
        for end in (self._signals, write_end):
            end.setblocking(False)
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        self._keep_open = write_end
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._watched: list[int | socket.socket] = [connection.socket, self._signals]
        with suppress(OSError):
            self._watched.append(os.pidfd_open(parent))

    def _on_signal(self, number: int, frame: object) -> None:
        self._requests.append(StopRecording(reason=f"the recorder got {signal.Signals(number).name}"))

    def wait(self, until_ns: int) -> Sequence[RecorderRequest]:
        """Wait for a moment; return earlier with the requests received."""
        ready, _, _ = select.select(self._watched, [], [], max(0, until_ns - self.now_ns()) / 1e9)
        for ready_source in ready:
            if ready_source is self._connection.socket:
                self._requests += [RECORDER_REQUEST.validate_json(message) for message in self._connection.receive()]
            elif ready_source is self._signals:
                self._signals.recv(4096)
            if isinstance(ready_source, int) or self._connection.closed:
                self._requests.append(StopRecording(reason="the process that started it ended"))
        requests, self._requests = self._requests, []
        return requests


def record(options: RecordingOptions, connection: RecorderConnection, parent: int) -> None:
    """Open everything, report that it is ready, and record until stopped."""
    timer = SocketTimer(connection, parent)
    path, root = Path(options.path), Path(options.root)
    with ExitStack() as stack:
        sensors = _open_sensors(options, stack)
        source = GpuSampler(sensors, timer)
        host = HostSampler(root, timer) if options.host else None
        sink = RecordingFile(path, formatter_for(path, None if host is None else host.shape()))
        background = _background_samplers(
            options, source, host, TopProcessSampler(root, timer) if options.host else None, stack
        )
        for sensor in sensors.values():
            sensor.read()  # the first call of each kind is slow
            sensor.meter()
        header = _header(options, timer)
        pulse = source.pulse if options.gpus else None
        Recorder(
            header, sink, timer, sample=source.read, background=background, pulse=pulse, answer=_replier(connection)
        ).run()
        sink.close()


def _replier(connection: RecorderConnection) -> Callable[[RecorderReply], None]:
    def answer(message: RecorderReply) -> None:
        with suppress(OSError):  # a parent that is gone needs no answer
            connection.send(message)

    return answer


def _open_sensors(options: RecordingOptions, stack: ExitStack) -> dict[int, GpuSensor]:
    """Return the sensors of the GPUs to watch, by index, open until the stack is closed."""
    if not options.gpus:
        return {}
    sensors = stack.enter_context(nvidia.open_sensors([gpu.uuid for gpu in options.gpus]))
    return {gpu.index: sensor for gpu, sensor in zip(options.gpus, sensors, strict=True)}


def _background_samplers(
    options: RecordingOptions,
    gpus: GpuSampler,
    host: HostSampler | None,
    top: TopProcessSampler | None,
    stack: ExitStack,
) -> list[BackgroundSampler]:
    """Return the slow samplers, each with its own thread that ends before the sensors are closed."""
    samplers: list[tuple[Callable[[int], list[RecordingLine]], int, int]] = []
    if options.gpus:
        samplers.append((gpus.read_meters, options.ticks(options.energy_interval_s), 0))
    if options.gpus and options.processes_interval_s is not None:
        samplers.append((gpus.read_processes_and_pcie, options.ticks(options.processes_interval_s), 0))
    if host is not None and options.host_every is not None:
        samplers.append((host.read, options.host_every, 0))
    if top is not None and options.top_interval_s is not None:
        every = options.ticks(options.top_interval_s)
        samplers.append((top.read, every, min(every, options.ticks(FIRST_TOP_AFTER_S))))
    return [
        BackgroundSampler(sample, every, stack.enter_context(ThreadPoolExecutor(1)).submit, first=first)
        for sample, every, first in samplers
    ]


def _header(options: RecordingOptions, timer: SocketTimer) -> RecordingHeader:
    return RecordingHeader(
        t_ns=timer.now_ns(),
        wall_ns=timer.wall_ns(),
        host=host_id(),
        boot_id=boot_id(),
        interval_s=options.interval_s,
        host_every=options.host_every,
        gpus=options.gpus,
        gpu_note=options.gpu_note,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        version=__version__,
        origin=options.origin,
    )


def _pin_to_cpus(cpus: tuple[int, ...]) -> None:
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        where = ", ".join(map(str, cpus))
        raise MachineCannot(f"The recorder may not run on CPU {where}: {error.strerror}.") from error


def main(arguments: Sequence[str]) -> int:
    """Record as the options say; exit 0 when the file is finished."""
    text, descriptor, parent, tied = arguments
    if tied == "tied":
        die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with socket.socket(fileno=int(descriptor)) as sock:
        connection = RecorderConnection(sock)
        try:
            options = RecordingOptions.model_validate_json(text)
            if options.cpus:
                _pin_to_cpus(options.cpus)
            record(options, connection, int(parent))
        except AssayError as error:
            connection.send(RecorderFailed(reason=str(error), exit_code=error.exit_code))
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
