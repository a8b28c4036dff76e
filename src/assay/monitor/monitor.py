"""Record GPU and host sensors from within a Python program.

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
from assay.machine.model import GpuInventory
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
from assay.monitor.recording_file import read_recording, read_window
from assay.monitor.samples import GpuMeterSample, GpuSample, HostSample
from assay.monitor.statistics import summarise

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from assay.monitor.samples import RecordingLine, Sample
    from assay.monitor.statistics import MonitorStatistics


class Monitor:
    """A recorder, in a separate process, for the duration of a ``with`` block.

    Args:
        gpus: Indices as nvidia-smi shows them, or UUIDs; ``[]``: no GPU; by default all GPUs.
        interval_s: Sampling interval, 5 ms to ten minutes.
        path: Recording file, .jsonl, .json or .csv; by default in a folder that is deleted with the monitor.
        host: Whether to sample the host too.
        cpus: CPUs to pin the recorder to; by default it may run anywhere.
        energy_interval_s: How often to read energy counters, which takes milliseconds; at most every interval.
        processes_interval_s: How often to list the processes on the GPUs; null: never.
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
        """Return a file in a folder that is deleted with this monitor, and only by this process."""
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
        """Stop the recorder and finish the file.

        Raises:
            RecorderDied: The recorder had already ended; the file keeps what it had written.
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
        """Return a window for a ``with`` block; afterwards it gives the samples and statistics of that time."""
        return MonitorWindow(name, self)

    def flush(self) -> None:
        """Write all samples so far to the file; nothing to do once the monitor has ended."""
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
        """Statistics of all samples so far."""
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
        """Return the header and all lines recorded in the window, widened by ``margin_s`` on both sides."""
        return read_window(self._monitor.path, *self._bounds(), margin_s=margin_s)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples taken in the window, in order; none if it was shorter than the interval."""
        return tuple(line for line in self.lines() if isinstance(line, GpuSample | GpuMeterSample | HostSample))

    @property
    def statistics(self) -> MonitorStatistics:
        """Statistics of the samples in the window."""
        return summarise(self.lines(), window=self._bounds())
