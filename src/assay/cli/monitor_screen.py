"""What ``assay monitor`` shows while recording: a live table on a terminal, an occasional line elsewhere."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from assay.cli import show
from assay.core.format import format_duration
from assay.monitor.samples import GpuLost, GpuProcesses, GpuSample, HostSample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from assay.monitor.client import Recording
    from assay.monitor.samples import RecordingLine

LIVE_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 10.0
QUIET_INTERVAL_S = 3600.0
_HEADS = ("", "busy", "memory", "power", "temperature", "clock", "held back by", "processes")


class RecordingScreen(Protocol):
    """Shows the newest looks every so many seconds."""

    every_s: float

    def show(self) -> None:
        """Show them now."""


@contextmanager
def screen_for(recording: Recording, *, quiet: bool) -> Iterator[RecordingScreen]:
    """Give what shows a recording on stderr; ``quiet`` leaves the terminal to the command that is watched."""
    console = show.console(stderr=True)
    gpus = [f"GPU {gpu.index}" for gpu in recording.header.gpus]
    watched = " and ".join([", ".join(gpus)] if gpus else []) + (" and " if gpus else "")
    what = f"{watched}the host" if recording.options.host else ", ".join(gpus)
    until = "" if quiet else "; Ctrl-C ends it"
    console.print(f"Recording {what} every {recording.options.interval_s * 1e3:g} ms{until}.", markup=False)
    if recording.header.gpu_note:
        console.print(f"No GPU is watched: {recording.header.gpu_note}.", markup=False, soft_wrap=True)
    if quiet or not console.is_terminal:
        yield PlainScreen(recording, console, QUIET_INTERVAL_S if quiet else PLAIN_INTERVAL_S)
        return
    from rich.live import Live

    live = Live(console=console, auto_refresh=False, transient=True)
    live.start()
    try:
        yield LiveScreen(recording, live)
    finally:
        with suppress(OSError):  # a terminal that was closed
            live.stop()


class PlainScreen:
    """A line now and then."""

    def __init__(self, recording: Recording, console: Console, every_s: float) -> None:
        self.every_s = every_s
        self._recording = recording
        self._console = console

    def show(self) -> None:
        """Print one line."""
        rows = sample_rows(self._recording.latest())
        line = "; ".join(" ".join([row[0], ", ".join(cell for cell in row[1:] if cell)]) for row in rows)
        with suppress(OSError):  # a screen that cannot be written must not end the recording
            self._console.print(line, markup=False, soft_wrap=True)


class LiveScreen:
    """A table that is renewed."""

    def __init__(self, recording: Recording, live: Live) -> None:
        self.every_s = LIVE_INTERVAL_S
        self._recording = recording
        self._live = live

    def show(self) -> None:
        """Renew the table."""
        lines = self._recording.latest()
        newest_ns = max((line.t_ns for line in lines), default=self._recording.header.t_ns)
        lasted_s = (newest_ns - self._recording.header.t_ns) / 1e9
        title = f"{self._recording.path.name}, {format_duration(lasted_s)}"
        with suppress(OSError):
            self._live.update(samples_table(sample_rows(lines), title), refresh=True)


def samples_table(rows: Sequence[tuple[str, ...]], title: str) -> Table:
    """Return the newest looks as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(*_HEADS, title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for row in rows:
        made.add_row(*row)
    return made


def sample_rows(connections: Sequence[RecordingLine]) -> list[tuple[str, ...]]:
    """Return a row for each GPU and one for the host; what was not measured is left blank."""
    ended = {line.gpu: line.reason for line in connections if isinstance(line, GpuLost)}
    users = {line.gpu: line.count for line in connections if isinstance(line, GpuProcesses)}
    rows = [
        _gpu_row(line, users.get(line.gpu))
        for line in connections
        if isinstance(line, GpuSample) and line.gpu not in ended
    ]
    rows += [(f"GPU {gpu}", f"ended: {reason}", *[""] * (len(_HEADS) - 2)) for gpu, reason in ended.items()]
    return [*rows, *(_host_row(line) for line in connections if isinstance(line, HostSample))]


def _gpu_row(sample: GpuSample, processes: int | None) -> tuple[str, ...]:
    powers = (sample.power_instant_w, sample.power_average_w, sample.power_usage_w)
    return (
        f"GPU {sample.gpu}",
        _format_value(sample.utilisation_percent, "{:.0f} %"),
        _format_memory(sample.memory_used_mib, sample.memory_total_mib),
        _format_value(next((watts for watts in powers if watts is not None), None), "{:.0f} W"),
        _format_value(sample.temperature_c, "{:.0f} °C"),
        _format_value(sample.sm_mhz, "{:.0f} MHz"),
        ", ".join(sample.throttle or ()),
        _format_value(processes, "1 process" if processes == 1 else "{} processes"),
    )


def _host_row(sample: HostSample) -> tuple[str, ...]:
    fastest = max(sample.core_mhz.values(), default=None)
    steal = sample.steal_percent or 0.0
    return (
        "host",
        _format_value(sample.cpu_percent, "{:.0f} %"),
        _format_memory(sample.memory_used_mib, sample.memory_total_mib),
        "",
        "",
        _format_value(fastest, "{:.0f} MHz"),
        f"the hypervisor, {steal:.0f} %" if steal >= 1 else "",
        _format_value(sample.running, "{} run"),
    )


def _format_value(value: float | None, words: str) -> str:
    return "" if value is None else words.format(value)


def _format_memory(used_mib: float | None, total_mib: float | None) -> str:
    if used_mib is None:
        return ""
    return f"{used_mib / 1024:.1f}{'' if total_mib is None else f' of {total_mib / 1024:.0f}'} GiB"
