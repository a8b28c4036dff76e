"""``assay monitor``: record what GPUs and the host do, for a time or while a command runs."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli import show
from assay.cli.flags import JsonFlags, argument, flag, verb
from assay.core.errors import EXIT_STOPPED, BadInput, MachineCannot
from assay.core.format import format_duration
from assay.monitor.samples import GpuLost, GpuProcesses, GpuSample, HostSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from assay.core.errors import AssayError
    from assay.core.page import Page
    from assay.monitor.client import Recording
    from assay.monitor.options import RecordingOptions
    from assay.monitor.samples import RecordingLine
    from assay.monitor.wait import WaitResult


class MonitorFlags(JsonFlags):
    """What `assay monitor` can be asked for."""

    out: Path = argument("OUT [-- COMMAND...]", required=True)
    duration_s: float | None = flag(gt=0, shown="until stopped, or COMMAND ends", help="How long to record.")
    interval_s: float = flag(default=0.1, gt=0, help="Sampling interval.")
    gpus: tuple[str, ...] = flag(
        default=(), item=r"\d+|GPU-\S+", metavar="0,1", shown="all", help="GPUs, by index or UUID."
    )
    gpu_only: bool = flag(default=False, help="Record GPUs only.")
    host_only: bool = flag(default=False, help="Record the host only.")
    perfetto: Path | None = flag(metavar="FILE", help="Also write a trace for ui.perfetto.dev.")
    as_json: bool = flag("--json", default=False, help="Print the statistics as JSON.")


@verb("monitor", MonitorFlags)
def record_sensors(flags: MonitorFlags) -> int:
    """Record GPU and host sensors, for a while or while a command runs.

    OUT ends in .jsonl, .json or .csv; an existing recording is replaced.

        assay monitor gpu.jsonl --duration 5m
        assay monitor gpu.csv --gpus 0,1 --interval 50ms -- python train.py
    """
    from assay.monitor import wait as watched
    from assay.monitor.perfetto import check_writable

    argv = flags.line.after_dashes
    if argv:
        watched.check_command(argv)
    options = build_options(flags)
    if flags.perfetto is not None:
        if flags.perfetto.absolute() == flags.out.absolute():
            raise BadInput("OUT and --perfetto name the same file; choose two.")
        check_writable(flags.perfetto)
    recorded = record_until_done(options, argv, flags)
    try:
        return show_recording(flags.out, recorded, flags)
    except OSError:
        if recorded.ending.signal != signal.SIGHUP:
            raise
        return recording_exit_code(recorded, flags)  # the terminal is closed


def build_options(flags: MonitorFlags) -> RecordingOptions:
    """Return what to record."""
    from assay.machine import nvidia
    from assay.machine.model import GpuInventory
    from assay.monitor.options import RecordingOptions, check_interval, driver_origin, format_of, select_gpus

    if flags.gpu_only and flags.host_only:
        raise BadInput("--gpu-only and --host-only exclude each other; give one.")
    if flags.host_only and flags.gpus:
        raise BadInput("--gpus and --host-only exclude each other; give one.")
    format_of(flags.out)
    check_interval(flags.interval_s)
    view = GpuInventory() if flags.host_only else nvidia.list_gpus()
    gpus = select_gpus(view, flags.gpus or None)
    if flags.gpu_only and not gpus:
        raise MachineCannot(f"No GPU to monitor: {view.note or 'none is visible'}.")
    return RecordingOptions(
        path=str(flags.out.absolute()),
        gpus=gpus,
        gpu_note=None if flags.host_only else view.note,
        interval_s=flags.interval_s,
        host=not flags.gpu_only,
        origin=driver_origin(view),
    )


@dataclass(frozen=True)
class RecordingOutcome:
    """How a recording ended."""

    ending: WaitResult
    trouble: AssayError | None
    command_code: int | None


def record_until_done(options: RecordingOptions, argv: tuple[str, ...], flags: MonitorFlags) -> RecordingOutcome:
    """Record until the end condition, and finish the file."""
    from assay.core.guardian import Guardian
    from assay.monitor.client import Recording
    from assay.monitor.wait import SignalListener, WaitConditions, WatchedCommand, wait_for_end

    with ExitStack() as stack:
        bell = stack.enter_context(SignalListener())
        stack.enter_context(Guardian())
        recording = Recording.start(options)
        stack.callback(recording.close)
        command = None
        if argv:
            stdout = sys.stderr.fileno() if flags.as_json else None
            command = stack.enter_context(WatchedCommand(argv, stdout=stdout))
        with screen_for(recording, quiet=command is not None) as screen:
            watch = WaitConditions(
                duration_s=flags.duration_s,
                command=command,
                every_s=screen.every_s,
                show=screen.show,
                died=lambda: click.echo("assay: The recorder has died; the command goes on unwatched.", err=True),
            )
            ending = wait_for_end(recording, bell, watch)
        code = None if command is None else command.end(ending.signal or signal.SIGTERM)
        return RecordingOutcome(ending, recording.close(ending.in_words), code)


def show_recording(path: Path, recorded: RecordingOutcome, flags: MonitorFlags) -> int:
    """Show the statistics and how the recording ended; return the exit code."""
    from assay.monitor.perfetto import write_trace
    from assay.monitor.recording_file import read_recording
    from assay.monitor.report import recording_page

    summary, page = recording_page(read_recording(path), name=path.name)
    if flags.perfetto is not None:
        write_trace(read_recording(path), flags.perfetto)
    data = {**summary.as_json(), "file": str(path), "command_exit_code": recorded.command_code}
    show.print_result(data, brief_page(page), as_json=flags.as_json)
    for line in outcome_messages(path, recorded):
        click.echo(line, err=True)
    return recording_exit_code(recorded, flags, partial=summary.partial)


def brief_page(page: Page) -> Page:
    """Return what fits a screen."""
    from assay.monitor.report import SUMMARY_TITLE, WARNINGS_TITLE

    sections = tuple(section for section in page.sections if section.title in {SUMMARY_TITLE, WARNINGS_TITLE})
    return page.model_copy(update={"sections": sections, "facts": ()})


def outcome_messages(path: Path, recorded: RecordingOutcome) -> list[str]:
    """Return how the recording ended, line by line."""
    messages = []
    code = recorded.command_code
    if code is not None:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        messages.append(f"The command {how}.")
    if recorded.trouble is not None:
        messages.append(f"assay: {recorded.trouble}")
    return [*messages, f"Recorded into {path}; `assay report {path}` draws it."]


def recording_exit_code(recorded: RecordingOutcome, flags: MonitorFlags, *, partial: bool = False) -> int:
    """Return 0 when the recording lasted as long as requested; one without an end is stopped by a signal.

    4 also when it is ``partial``: a GPU was lost before the end.
    """
    if recorded.trouble is not None:
        return recorded.trouble.exit_code
    meant_to_last = flags.duration_s is not None or recorded.command_code is not None
    why = recorded.ending.why
    return EXIT_STOPPED if partial or why == "recorder" or (why == "signal" and meant_to_last) else 0


LIVE_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 10.0
QUIET_INTERVAL_S = 3600.0
_HEADS = ("", "busy", "memory", "power", "temperature", "clock", "throttled by", "processes")


@dataclass(frozen=True)
class RecordingScreen:
    """Shows the newest samples every so many seconds."""

    every_s: float
    show: Callable[[], None]


@contextmanager
def screen_for(recording: Recording, *, quiet: bool) -> Iterator[RecordingScreen]:
    """Yield the display of a recording on stderr; ``quiet`` leaves the terminal to the monitored command."""
    console = show.console(stderr=True)
    gpus = [f"GPU {gpu.index}" for gpu in recording.header.gpus]
    watched = " and ".join([", ".join(gpus)] if gpus else []) + (" and " if gpus else "")
    what = f"{watched}the host" if recording.options.host else ", ".join(gpus)
    until = "" if quiet else "; Ctrl-C ends it"
    console.print(f"Recording {what} every {recording.options.interval_s * 1e3:g} ms{until}.", markup=False)
    if recording.header.gpu_note:
        console.print(f"No GPU is watched: {recording.header.gpu_note}.", markup=False, soft_wrap=True)
    if quiet or not console.is_terminal:
        every_s = QUIET_INTERVAL_S if quiet else PLAIN_INTERVAL_S
        yield RecordingScreen(every_s, partial(print_samples, recording, console))
        return
    from rich.live import Live

    live = Live(console=console, auto_refresh=False, transient=True)
    live.start()
    try:
        yield RecordingScreen(LIVE_INTERVAL_S, partial(update_samples, recording, live))
    finally:
        with suppress(OSError):  # a terminal that was closed
            live.stop()


def print_samples(recording: Recording, console: Console) -> None:
    """Print the newest samples on one line."""
    rows = sample_rows(recording.latest())
    line = "; ".join(" ".join([row[0], ", ".join(cell for cell in row[1:] if cell)]) for row in rows)
    with suppress(OSError):  # a screen that cannot be written must not end the recording
        console.print(line, markup=False, soft_wrap=True)


def update_samples(recording: Recording, live: Live) -> None:
    """Show the newest samples in the live table."""
    lines = recording.latest()
    newest_ns = max((line.t_ns for line in lines), default=recording.header.t_ns)
    title = f"{recording.path.name}, {format_duration((newest_ns - recording.header.t_ns) / 1e9)}"
    with suppress(OSError):
        live.update(samples_table(sample_rows(lines), title), refresh=True)


def samples_table(rows: Sequence[tuple[str, ...]], title: str) -> Table:
    """Return the newest samples as a table."""
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
