"""The recorder's own process: ``python -m assay.monitor.process``, started by `Recording` and by nobody else.

It hears its parent on a socket, keeps to the cores it was given, and ends with its parent: at once where the kernel
kills it for that, or else as soon as it sees the parent gone, with the file finished.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from assay._version import __version__
from assay.core.errors import AssayError, MachineCannot
from assay.core.lifeline import die_with_parent
from assay.core.processes import boot_id, host_id
from assay.machine import nvidia
from assay.monitor.gpus import GpuSource
from assay.monitor.host import HostSource
from assay.monitor.lines import Header
from assay.monitor.options import RecordingOptions
from assay.monitor.pace import SystemClock
from assay.monitor.recorder import Beside, Recorder
from assay.monitor.sinks import FileSink, writer_for
from assay.monitor.top import TopSource
from assay.monitor.wire import ORDER, Failed, Stop, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.machine.sensors import GpuSensor
    from assay.monitor.lines import Line
    from assay.monitor.wire import Answer, Order

SWITCH_S = 0.0005
"""How long a slow look may keep the loop waiting before Python lets the loop run."""

TOP_AFTER_S = 1.0
"""Shares of CPU time need some time to be shares of."""


class SocketPace(SystemClock):
    """Real time; while it waits it hears the parent, sees it die, and hears polite signals."""

    def __init__(self, wire: Wire, parent: int) -> None:
        self._wire = wire
        self._told: list[Order] = []
        self._signals, theirs = socket.socketpair()
        for end in (self._signals, theirs):
            end.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._keep_open = theirs
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._watched: list[int | socket.socket] = [wire.socket, self._signals]
        with suppress(OSError):
            self._watched.append(os.pidfd_open(parent))

    def _on_signal(self, number: int, frame: object) -> None:
        self._told.append(Stop(reason=f"the recorder got {signal.Signals(number).name}"))

    def wait(self, until_ns: int) -> Sequence[Order]:
        """Wait for a moment; return earlier with what was said."""
        ready, _, _ = select.select(self._watched, [], [], max(0, until_ns - self.now_ns()) / 1e9)
        for ready_source in ready:
            if ready_source is self._wire.socket:
                self._told += [ORDER.validate_json(message) for message in self._wire.receive()]
            elif ready_source is self._signals:
                self._signals.recv(4096)
            if isinstance(ready_source, int) or self._wire.closed:
                self._told.append(Stop(reason="the process that started it ended"))
        requests, self._told = self._told, []
        return requests


def record(options: RecordingOptions, wire: Wire, parent: int) -> None:
    """Open everything, say so, and record until told to stop."""
    pace = SocketPace(wire, parent)
    path, root = Path(options.path), Path(options.root)
    with ExitStack() as stack:
        sensors = _sensors(options, stack)
        source = GpuSource(sensors, pace)
        host = HostSource(root, pace) if options.host else None
        sink = FileSink(path, writer_for(path, None if host is None else host.shape()))
        background = _beside(options, source, host, TopSource(root, pace) if options.host else None, stack)
        for sensor in sensors.values():
            sensor.read()  # the first call of each kind is slow
            sensor.meter()
        header = _header(options, pace)
        pulse = source.pulse if options.gpus else None
        Recorder(header, sink, pace, look=source.read, beside=background, pulse=pulse, answer=_to(wire)).run()
        sink.close()


def _to(wire: Wire) -> Callable[[Answer], None]:
    def answer(message: Answer) -> None:
        with suppress(OSError):  # a parent that is gone needs no answer
            wire.send(message)

    return answer


def _sensors(options: RecordingOptions, stack: ExitStack) -> dict[int, GpuSensor]:
    """Return the sensors of the GPUs to watch, by index, open until the stack is left."""
    if not options.gpus:
        return {}
    sensors = stack.enter_context(nvidia.sensors([gpu.uuid for gpu in options.gpus]))
    return {gpu.index: sensor for gpu, sensor in zip(options.gpus, sensors, strict=True)}


def _beside(
    options: RecordingOptions, gpus: GpuSource, host: HostSource | None, top: TopSource | None, stack: ExitStack
) -> list[Beside]:
    """Return the slow looks, each with a thread of its own that ends before the sensors are closed."""
    samplers: list[tuple[Callable[[int], list[Line]], int, int]] = []
    if options.gpus:
        samplers.append((gpus.read_meters, options.ticks(options.energy_interval_s), 0))
    if options.gpus and options.processes_interval_s is not None:
        samplers.append((gpus.read_slowly, options.ticks(options.processes_interval_s), 0))
    if host is not None and options.host_every is not None:
        samplers.append((host.read, options.host_every, 0))
    if top is not None and options.top_interval_s is not None:
        every = options.ticks(options.top_interval_s)
        samplers.append((top.read, every, min(every, options.ticks(TOP_AFTER_S))))
    return [
        Beside(sample, every, stack.enter_context(ThreadPoolExecutor(1)).submit, first=first)
        for sample, every, first in samplers
    ]


def _header(options: RecordingOptions, pace: SocketPace) -> Header:
    return Header(
        t_ns=pace.now_ns(),
        wall_ns=pace.wall_ns(),
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


def _keep_to(cpus: tuple[int, ...]) -> None:
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
    sys.setswitchinterval(SWITCH_S)
    with socket.socket(fileno=int(descriptor)) as sock:
        connection = Wire(sock)
        try:
            options = RecordingOptions.model_validate_json(text)
            if options.cpus:
                _keep_to(options.cpus)
            record(options, connection, int(parent))
        except AssayError as error:
            connection.send(Failed(reason=str(error), exit_code=error.exit_code))
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
