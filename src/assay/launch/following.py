"""A trace from beginning to end: calls in a process of their own, a recorder beside them, then ncu for the counters."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.core.durable import friendly_os_errors
from assay.core.errors import AssayError, MachineCannot, TrialFailed
from assay.core.plan import Subject
from assay.core.values import Value
from assay.launch.counting import Counting, count
from assay.launch.once import Once
from assay.launch.profilers import MOST_KERNELS, Calls
from assay.monitor.choice import watched
from assay.monitor.kernels.counters import with_counters
from assay.monitor.kernels.ncu import Refusal, link_bytes_per_s
from assay.monitor.kernels.summary import CountersRead, TraceSummary, by_name, extent
from assay.monitor.kernels.timeline import KERNELS, beside, timeline
from assay.monitor.options import RecordingOptions
from assay.monitor.reading import read_window
from assay.monitor.recording import Recording
from assay.worker.wish import Followed, TraceWish

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from assay.launch.once import Watcher
    from assay.machine.model import Gpu, Machine
    from assay.monitor.kernels.kineto import Event, TraceClock
    from assay.monitor.kernels.rows import Kernel
    from assay.monitor.lines import Line

INTERVAL_S = 0.01
HOST_INTERVAL_S = 0.1
MARGIN_S = 0.3
"""So much of the recording is shown on both sides of the calls."""

RECORDING = "monitor.jsonl"
PROFILE = "profile.json"

Wanted = Literal["auto", "ncu", "none"]


class TraceOrder(Value):
    """What to trace, and how."""

    subject: Subject
    calls: Calls
    counters: Wanted = "auto"
    timeout_s: float = 120.0


@dataclass(frozen=True)
class Trace:
    """What came out: the rows, the profiler's events and the recording around them, and what they come to."""

    kernels: Sequence[Kernel]
    events: Sequence[Event]
    clock: TraceClock | None
    lines: Sequence[Line]
    zero_ns: int
    """The moment on the host's clock that the trace is shown from."""
    summary: TraceSummary


def trace(order: TraceOrder, folder: Path, machine: Machine, watcher: Watcher) -> Trace:
    """Follow the calls; files that others write meanwhile go into the folder.

    Raises:
        TrialFailed: The subject fails, is wrong, or does not come back; a note on it is the end of what it printed.
        BadInput: The subject makes no sense.
        MachineCannot: This machine cannot do it.
    """
    gpu = _gpu(machine, order.calls.device)
    followed, lines, notes = _followed(order, folder, machine, gpu, watcher)
    events = _events(folder / PROFILE)
    rows = timeline(order.subject.label, followed.calls, events, on_gpu=gpu is not None)
    kernels = beside(rows, lines, None if gpu is None else gpu.index)
    counting = _counting(order, gpu, folder, watcher)
    link = None if gpu is None else link_bytes_per_s(gpu.pcie_max_generation, gpu.pcie_max_width)
    kernels, matched = with_counters(kernels, counting.counted, link)
    missing_reasons = () if followed.why_not is None else (followed.why_not,)
    summary = TraceSummary(
        workload=order.subject.label,
        params=order.subject.params,
        device=order.calls.device,
        gpu=None if gpu is None else gpu.name,
        gpu_uuid=None if gpu is None else gpu.uuid,
        calls=order.calls.calls,
        warmup=order.calls.warmup,
        rows=len(kernels),
        rows_are=rows.rows_are,
        clock_error_us=None if rows.clock is None else rows.clock.error_us,
        extent=extent(kernels),
        by_name=by_name(kernels),
        counters=_read(counting, matched),
        notes=(*missing_reasons, *rows.notes, *notes, *_remarks(counting, matched, kernels, rows.rows_are)),
        origin="fake" if machine.has_fake_driver else "real",
    )
    zero_ns = followed.calls[0].entered_ns - round(MARGIN_S * 1e9)
    return Trace(kernels, events, rows.clock, lines, zero_ns, summary)


def _gpu(machine: Machine, device: str) -> Gpu | None:
    """Return the GPU that a device is, or is a part of; null for a CPU."""
    whole = device.partition("/")[0]
    return next((gpu for gpu in machine.gpus if whole == f"cuda:{gpu.index}"), None)


def _followed(
    order: TraceOrder, folder: Path, machine: Machine, gpu: Gpu | None, watcher: Watcher
) -> tuple[Followed, Sequence[Line], tuple[str, ...]]:
    """Have the calls made while a recorder looks; return them, what was recorded around them, and what went wrong."""
    request = TraceWish(
        subjects=(order.subject,),
        device=order.calls.device,
        calls=order.calls.calls,
        warmup=order.calls.warmup,
        limit_s=order.timeout_s,
        seed=order.calls.seed,
        file=str(folder / PROFILE),
    )
    with _recorded(folder, machine, gpu) as (recording, notes), Once(request, order.calls.environment) as process:
        try:
            followed = process.wait_for(Followed, watcher)
        except TrialFailed as error:
            error.add_note(process.tail)
            raise
        if recording is not None:
            with contextlib.suppress(AssayError):
                recording.flush()
    first, last = followed.calls[0].entered_ns, followed.calls[-1].ended_ns
    path = folder / RECORDING
    lines = read_window(path, first, last, margin_s=MARGIN_S) if path.exists() else ()
    return followed, lines, tuple(notes)


@contextlib.contextmanager
def _recorded(folder: Path, machine: Machine, gpu: Gpu | None) -> Iterator[tuple[Recording | None, list[str]]]:
    """Record a GPU, or the host where there is none; a recorder that fails harms no trace, and is noted."""
    notes: list[str] = []
    recording: Recording | None = None
    try:
        recording = Recording.start(
            RecordingOptions(
                path=str(folder / RECORDING),
                gpus=() if gpu is None else (watched(gpu),),
                gpu_note="the trace is of a CPU" if gpu is None else None,
                interval_s=HOST_INTERVAL_S if gpu is None else INTERVAL_S,
                processes_interval_s=None,
                top_interval_s=None,
                origin="fake" if machine.has_fake_driver else "real",
            )
        )
    except AssayError as error:
        notes.append(f"no recorder watched: {str(error).rstrip('.')}")
    try:
        yield recording, notes
    finally:
        failure = None if recording is None else recording.close("the calls were made")
        if failure is not None:
            notes.append(f"the recorder died: {str(failure).rstrip('.')}")


def _events(path: Path) -> list[Event]:
    """Return what PyTorch's profiler wrote, and take the file away: all of it goes into the trace that is kept."""
    if not path.exists():
        return []
    with friendly_os_errors(path):
        text = path.read_text(encoding="utf-8", errors="replace")
        path.unlink()
    try:
        events: list[Event] = json.loads(text)["traceEvents"]
    except (ValueError, KeyError) as error:
        raise MachineCannot(f"PyTorch's profiler wrote a trace that cannot be read: {error}.") from error
    return events


def _counting(order: TraceOrder, gpu: Gpu | None, folder: Path, watcher: Watcher) -> Counting:
    if order.counters == "none":
        return Counting(refusal=Refusal(reason="they were not asked for"))
    if gpu is None:
        return Counting(refusal=Refusal(reason="counters are a GPU's, and this is a trace of a CPU"))
    return count(order.calls, folder, timeout_s=order.timeout_s, watcher=watcher)


def _read(counting: Counting, matched: int) -> CountersRead:
    refusal = counting.refusal
    return CountersRead(
        by="ncu" if refusal is None else None,
        version=counting.version,
        command=counting.command,
        kernels=0 if refusal is not None else len(counting.counted),
        matched=matched,
        missing=counting.missing,
        refused=None if refusal is None else refusal.reason,
        mend=None if refusal is None else refusal.mend,
    )


def _remarks(counting: Counting, matched: int, kernels: Sequence[Kernel], rows_are: str) -> Iterator[str]:
    """Give what must be known of the counters that were read."""
    if counting.refusal is not None:
        return
    yield (
        "counters are of a run of their own, in which ncu ran each kernel alone and several times, with the clocks and "
        "caches left as they were; times are of the run without it"
    )
    if counting.missing:
        yield f"this chip or this ncu does not have {', '.join(counting.missing)}"
    mine = sum(kernel.kind == "kernel" for kernel in kernels)
    if rows_are != KERNELS:
        yield f"ncu counted {len(counting.counted)} kernels, and the rows are {rows_are}: its log has them"
    elif len(counting.counted) >= MOST_KERNELS > matched:
        yield f"ncu counts {MOST_KERNELS} kernels at most: {mine - matched} of {mine} have no counters"
    elif matched < mine:
        yield f"{mine - matched} of {mine} kernels have no counters: the two runs did not launch the same ones"
