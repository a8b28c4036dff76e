"""Watch GPUs and the host while a program runs, from within it.

with assay.Monitor(gpus=[0, 1], interval_s=0.1) as m:
    load()
    m.mark("loaded")
    with m.window("step") as w:
        step()
w.statistics.of("gpu:0").level("power_instant_w").maximum
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Self

from assay.core.errors import BadInput
from assay.machine import nvidia
from assay.machine.vendor import GpuInventory
from assay.monitor.client import Recording
from assay.monitor.options import (
    PROCESSES_INTERVAL_S,
    TOP_INTERVAL_S,
    WINDOW_ENERGY_INTERVAL_S,
    RecordingOptions,
    check_interval,
    driver_origin,
    format_of,
    select_gpus,
)
from assay.monitor.reader import read_recording, read_window
from assay.monitor.samples import GpuMeterSample, GpuSample, HostSample
from assay.monitor.statistics import summarise

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from assay.monitor.samples import RecordingLine, Sample
    from assay.monitor.statistics import MonitorStatistics


class Monitor:
    """A recorder for the length of a ``with`` block, in a process of its own.

    Args:
        gpus: Numbers as nvidia-smi gives them, or UUIDs; none: ``[]``; by default all that there are.
        interval_s: From one look to the next, 5 ms to ten minutes.
        path: Where the samples are kept, as .jsonl, .json or .csv; by default in a folder that goes with the monitor.
        host: Whether to look at the host too.
        cpus: The CPUs that the recorder keeps to; by default it may run anywhere.
        energy_interval_s: How often to read energy counters, which takes milliseconds; at most every interval.
        processes_interval_s: How often to list who is on the GPUs; null: never.
        top_interval_s: How often to look for the busiest processes; null: never.
    """

    def __init__(
        self,
        gpus: Sequence[int | str] | None = None,
        *,
        interval_s: float = 0.1,
        path: str | Path | None = None,
        host: bool = True,
        cpus: Sequence[int] | None = None,
        energy_interval_s: float = WINDOW_ENERGY_INTERVAL_S,
        processes_interval_s: float | None = PROCESSES_INTERVAL_S,
        top_interval_s: float | None = TOP_INTERVAL_S,
    ) -> None:
        check_interval(interval_s)
        if path is not None:
            format_of(Path(path))
        view = GpuInventory() if gpus is not None and not gpus else nvidia.list_gpus()
        watched = select_gpus(view, gpus)
        if not watched and not host:
            raise BadInput(f"There is nothing to watch: no GPU ({view.note or 'none named'}), and not the host.")
        self.path = self._scratch() if path is None else Path(path).absolute()
        self._options = RecordingOptions(
            path=str(self.path),
            gpus=watched,
            gpu_note=view.note if gpus is None else None,
            interval_s=interval_s,
            host=host,
            cpus=None if cpus is None else tuple(cpus),
            energy_interval_s=energy_interval_s,
            processes_interval_s=processes_interval_s,
            top_interval_s=top_interval_s,
            origin=driver_origin(view),
        )
        self._recording: Recording | None = None

    def _scratch(self) -> Path:
        """Return a file in a folder that goes when this monitor goes, and in no process but this one."""
        folder = tempfile.mkdtemp(prefix="assay-monitor-")
        weakref.finalize(self, _remove, folder, os.getpid())
        return Path(folder) / "monitor.jsonl"

    def __enter__(self) -> Self:
        """Start the recorder and wait until it records."""
        if self._recording is not None:
            raise BadInput("This monitor was used already; make another one.")
        self._recording = Recording.start(self._options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Have the file finished.

        Raises:
            RecorderDied: The recorder had ended before; the file keeps what it had written.
        """
        self.recording.__exit__(kind, error, trace)

    @property
    def recording(self) -> Recording:
        """The recorder."""
        if self._recording is None:
            raise BadInput("The monitor has not begun: use it in a with block.")
        return self._recording

    def mark(self, name: str) -> None:
        """Name this moment."""
        self.recording.mark(name)

    def window(self, name: str) -> MonitorWindow:
        """Return a window for a ``with`` block: what was recorded meanwhile can be had from it afterwards."""
        return MonitorWindow(name, self)

    def flush(self) -> None:
        """Have all samples until now written; once the monitor has ended, they are."""
        if self.recording.end is None:
            self.recording.flush()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Every sample so far, in order."""
        self.flush()
        return tuple(
            line for line in read_recording(self.path) if isinstance(line, GpuSample | GpuMeterSample | HostSample)
        )

    @property
    def statistics(self) -> MonitorStatistics:
        """What all samples so far say."""
        self.flush()
        return summarise(read_recording(self.path))


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class MonitorWindow:
    """A named span of a recording, from the beginning of a ``with`` block to its end."""

    def __init__(self, name: str, monitor: Monitor) -> None:
        self.name = name
        self._monitor = monitor
        self.start_ns: int | None = None
        self.end_ns: int | None = None

    def __enter__(self) -> Self:
        self._monitor.recording  # noqa: B018 - a window of a monitor that has not begun is refused here
        self.start_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_ns = time.monotonic_ns()
        self._monitor.recording.span(self.name, self._bounds()[0], self.end_ns)
        self._monitor.flush()

    def _bounds(self) -> tuple[int, int]:
        if self.start_ns is None or self.end_ns is None:
            raise BadInput(f"The window {self.name!r} is not over yet.")
        return self.start_ns, self.end_ns

    def lines(self, *, margin_s: float = 0.0) -> tuple[RecordingLine, ...]:
        """Return the header and all that was recorded in the window, and so much around it."""
        return read_window(self._monitor.path, *self._bounds(), margin_s=margin_s)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples taken in the window, in order; none if it was shorter than the interval."""
        return tuple(line for line in self.lines() if isinstance(line, GpuSample | GpuMeterSample | HostSample))

    @property
    def statistics(self) -> MonitorStatistics:
        """What the samples of the window say."""
        return summarise(self.lines(), window=self._bounds())
