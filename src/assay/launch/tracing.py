"""Trace a workload: its calls in a process of their own, a recorder next to them, then ncu for the counters.

Counters come from a run of their own: ncu runs kernel after kernel alone, each as often as its counters need. The
same calls can be run by hand: there are ready command lines for ncu and nsys.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core import leases
from assay.core.errors import AssayError, MachineCannot, TrialFailed
from assay.core.files import translate_os_errors
from assay.core.plan import Subject
from assay.core.processes import mark_environment
from assay.core.units import format_duration
from assay.core.values import Value
from assay.launch.one_shot import TICK_S, OneShotProcess, subprocess_environment
from assay.machine import doctor as tools
from assay.monitor.client import Recording
from assay.monitor.kernel_trace.ncu import (
    METRICS,
    OLDEST_VERSION,
    NcuFailure,
    diagnose_failure,
    is_too_old,
    link_bytes_per_s,
    parse_version,
    read_counters,
    unknown_metrics,
    with_counters,
)
from assay.monitor.kernel_trace.report import (
    KERNEL_ROWS,
    CountersRead,
    TraceSummary,
    build_timeline,
    group_by_name,
    rows_with_sensors,
    trace_extent,
)
from assay.monitor.options import RecordingOptions, watched_gpu
from assay.monitor.reader import read_window
from assay.worker.request import PhaseStarted, TraceRequest, TraceResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.launch.one_shot import ProgressWatcher
    from assay.machine.model import Gpu, Machine
    from assay.monitor.kernel_trace.kineto import Event, ProfilerClock
    from assay.monitor.kernel_trace.ncu import NcuKernel
    from assay.monitor.kernel_trace.rows import KernelRow
    from assay.monitor.samples import RecordingLine


MAX_KERNELS = 1000
"""Counted at most: each is run again for every group of counters, and ncu prints only when all are done."""


class ProfilerCalls(Value):
    """Calls of a workload, as a plain process makes them."""

    workload: str = Field(description="As the command line names it: softmax@torch, file.py:function.")
    params: dict[str, str] = Field(default_factory=dict, description="As they were given.")
    device: str
    calls: int
    warmup: int
    seed: int = 0
    visible: str | None = Field(default=None, description="The UUID of the one GPU that it may see.")

    @property
    def environment(self) -> dict[str, str]:
        """What must stand in the process's environment: which GPU it sees."""
        return {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}

    @property
    def argv(self) -> tuple[str, ...]:
        """The process itself."""
        params = [word for name, value in self.params.items() for word in ("--param", f"{name}={value}")]
        counts = ("--device", self.device, "--calls", str(self.calls), "--warmup", str(self.warmup))
        seed = ("--seed", str(self.seed)) if self.seed else ()
        return (sys.executable, "-P", "-m", "assay.worker.calls", self.workload, *params, *counts, *seed)


def ncu_counters_command(
    calls: ProfilerCalls, metrics: Sequence[str] = METRICS, *, log: str | None = None
) -> tuple[str, ...]:
    """Return ncu's command line for the counters of a trace; the clocks stay as they are, and so do the caches."""
    return (
        "ncu",
        "--csv",
        *("--page", "raw"),
        *("--print-units", "base"),
        *("--print-kernel-base", "demangled"),
        *("--profile-from-start", "off"),
        *("--target-processes", "all"),
        *("--clock-control", "none"),
        *("--cache-control", "none"),
        *("--launch-count", str(MAX_KERNELS)),
        *("--metrics", ",".join(metrics)),
        *(("--log-file", log) if log is not None else ()),
        *calls.argv,
    )


def ncu_report_command(calls: ProfilerCalls) -> tuple[str, ...]:
    """Return ncu's command line for all it can say of the first kernels, to be opened in its own window."""
    return (
        *("ncu", "--set", "full", "--profile-from-start", "off", "--target-processes", "all"),
        *("--clock-control", "none", "--launch-count", "20", "--export", "trace.ncu-rep", "--force-overwrite"),
        *calls.argv,
    )


def nsys_command(calls: ProfilerCalls) -> tuple[str, ...]:
    """Return nsys's command line for the timeline of the calls."""
    return (
        *("nsys", "profile", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
        *("--trace=cuda,nvtx,cublas,cudnn", "--output=trace", "--force-overwrite=true"),
        *calls.argv,
    )


GPU_TRACE = ("nsys", "stats", "--report", "cuda_gpu_trace", "--format", "csv", "--output", "-", "trace.nsys-rep")
"""What nvprof --print-gpu-trace --csv printed, from the timeline."""


def profiler_commands(calls: ProfilerCalls) -> dict[str, str]:
    """Return command lines to be typed, by what they are for; on a CPU only the calls themselves."""
    if not calls.device.startswith("cuda"):
        return {"the calls alone": format_command(calls, calls.argv)}
    return {
        "counters of each kernel, as CSV (ncu)": format_command(calls, ncu_counters_command(calls)),
        "a full report for ncu-ui (ncu)": format_command(calls, ncu_report_command(calls)),
        "a timeline for nsys-ui (nsys)": format_command(calls, nsys_command(calls)),
        "that timeline as a table (nsys)": shlex.join(GPU_TRACE),
        "the calls alone": format_command(calls, calls.argv),
    }


def format_command(calls: ProfilerCalls, argv: Sequence[str]) -> str:
    """Return a command line as it is typed into a shell, its environment in front."""
    before = ["env", *(f"{name}={value}" for name, value in calls.environment.items())] if calls.environment else []
    return shlex.join([*before, *argv])


MAX_RUNS = 3
"""At most so many runs: after one in which metrics were unknown, the next does without them."""
VERSION_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class NcuResult:
    """What came of it: kernels with their counters, or why there are none."""

    counted: Sequence[NcuKernel] = ()
    refusal: NcuFailure | None = None
    version: str | None = None
    command: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class _CommandResult:
    code: int | None
    """Null: it took too long and was ended."""
    text: str


def run_ncu(
    calls: ProfilerCalls, folder: Path, *, timeout_s: float, watcher: ProgressWatcher, root: Path = Path("/")
) -> NcuResult:
    """Have ncu read the counters of every kernel of the calls; what it prints stays in the folder.

    ``root`` is where the distribution is looked up, for how to install what is missing.
    """
    watcher.begins(PhaseStarted(phase="counting", name=calls.workload, within_s=timeout_s))
    if shutil.which("ncu") is None:
        return NcuResult(refusal=NcuFailure(reason="ncu (Nsight Compute) is not on the path", fix=_install_hint(root)))
    runs = _NcuRunner(calls, folder, watcher)
    version = parse_version(runs.run(("ncu", "--version"), VERSION_TIMEOUT_S).text)
    if version is not None and is_too_old(version):
        oldest = ".".join(map(str, OLDEST_VERSION))
        reason = f"this ncu is too old: it is of {version}, and {oldest} is the first that will do"
        return NcuResult(refusal=NcuFailure(reason=reason, fix="install a newer Nsight Compute"), version=version)
    return _read_known_metrics(runs, timeout_s, version)


def _read_known_metrics(runs: _NcuRunner, timeout_s: float, version: str | None) -> NcuResult:
    """Run ncu, and again without the metrics that it does not know."""
    metrics, result = METRICS, NcuResult()
    for _ in range(MAX_RUNS):
        argv = ncu_counters_command(runs.calls, metrics, log=str(runs.log))
        missing = tuple(metric for metric in METRICS if metric not in metrics)
        ran = runs.run(argv, timeout_s)
        counted = read_counters(ran.text)
        refusal = None if any(kernel.metrics for kernel in counted) else _explain_run(ran, timeout_s)
        result = NcuResult(counted, refusal, version, format_command(runs.calls, argv), missing)
        unknown = unknown_metrics(ran.text, metrics) if refusal is not None else set()
        if not unknown or unknown == set(metrics):
            break
        metrics = tuple(metric for metric in metrics if metric not in unknown)
    return result


def _explain_run(ran: _CommandResult, timeout_s: float) -> NcuFailure:
    if ran.code is None:
        reason = f"ncu had not ended after {format_duration(timeout_s)}, and was ended"
        return NcuFailure(reason=reason, fix="give it more time with --timeout, or fewer kernels with --calls")
    return diagnose_failure(ran.text, ran.code)


@dataclass(frozen=True)
class _NcuRunner:
    """Runs commands to their ends, what they print going into the folder, and leaves nothing of them behind."""

    calls: ProfilerCalls
    folder: Path
    watcher: ProgressWatcher

    @property
    def log(self) -> Path:
        """Where ncu writes; what the calls print goes elsewhere."""
        return self.folder / "ncu.log"

    def run(self, argv: Sequence[str], timeout_s: float) -> _CommandResult:
        printed, token = self.folder / "ncu.out", leases.new_lease_id()
        self.log.unlink(missing_ok=True)
        variables = {**subprocess_environment(), **self.calls.environment, "LC_NUMERIC": "C", **mark_environment(token)}
        with (
            translate_os_errors(printed),
            printed.open("wb") as output,
            leases.hold_lease("process", "ncu around calls", "assay.core.processes:kill_marked", {"token": token}),
        ):
            try:
                process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, start_new_session=True
                )
            except OSError as error:
                return _CommandResult(127, f"==ERROR== {error.strerror or error}")
            code = self._wait(process, timeout_s)
        process.wait()
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in (self.log, printed) if path.exists()]
        return _CommandResult(code, "\n".join(texts))

    def _wait(self, process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                return process.wait(min(TICK_S, left_s))
            except subprocess.TimeoutExpired:
                self.watcher.tick()
        return None


def _install_hint(root: Path) -> str:
    """Return how ncu is installed here."""
    tool = next(tool for tool in tools.EXTERNAL_TOOLS if tool.name == "ncu")
    command = tools.install_command(tool, tools.distribution(root), root_user=os.geteuid() == 0)
    return command or "install Nsight Compute, which comes with the CUDA toolkit"


INTERVAL_S = 0.01
HOST_INTERVAL_S = 0.1
MARGIN_S = 0.3
"""So much of the recording is shown on both sides of the calls."""

RECORDING = "monitor.jsonl"
PROFILE = "profile.json"

CounterSource = Literal["auto", "ncu", "none"]


class TraceSpec(Value):
    """What to trace, and how."""

    subject: Subject
    calls: ProfilerCalls
    counters: CounterSource = "auto"
    timeout_s: float = 120.0


@dataclass(frozen=True)
class WorkloadTrace:
    """What came out: the rows, the profiler's events and the recording around them, and what they come to."""

    kernels: Sequence[KernelRow]
    events: Sequence[Event]
    clock: ProfilerClock | None
    lines: Sequence[RecordingLine]
    zero_ns: int
    """The moment on the host's clock that the trace is shown from."""
    summary: TraceSummary


def trace_workload(order: TraceSpec, folder: Path, machine: Machine, watcher: ProgressWatcher) -> WorkloadTrace:
    """Follow the calls; files that others write meanwhile go into the folder.

    Raises:
        TrialFailed: The subject fails, is wrong, or does not come back; a note on it is the end of what it printed.
        BadInput: The subject makes no sense.
        MachineCannot: This machine cannot do it.
    """
    gpu = _find_gpu(machine, order.calls.device)
    followed, lines, notes = _trace_calls(order, folder, machine, gpu, watcher)
    events = _read_events(folder / PROFILE)
    rows = build_timeline(order.subject.label, followed.calls, events, on_gpu=gpu is not None)
    kernels = rows_with_sensors(rows, lines, None if gpu is None else gpu.index)
    counting = _count_kernels(order, gpu, folder, watcher)
    link = None if gpu is None else link_bytes_per_s(gpu.pcie_max_generation, gpu.pcie_max_width)
    kernels, matched = with_counters(kernels, counting.counted, link)
    missing_reasons = () if followed.missing_reason is None else (followed.missing_reason,)
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
        extent=trace_extent(kernels),
        by_name=group_by_name(kernels),
        counters=_summarize_counters(counting, matched),
        notes=(*missing_reasons, *rows.notes, *notes, *_counter_notes(counting, matched, kernels, rows.rows_are)),
        origin="fake" if machine.has_fake_driver else "real",
    )
    zero_ns = followed.calls[0].entered_ns - round(MARGIN_S * 1e9)
    return WorkloadTrace(kernels, events, rows.clock, lines, zero_ns, summary)


def _find_gpu(machine: Machine, device: str) -> Gpu | None:
    """Return the GPU that a device is, or is a part of; null for a CPU."""
    whole = device.partition("/")[0]
    return next((gpu for gpu in machine.gpus if whole == f"cuda:{gpu.index}"), None)


def _trace_calls(
    order: TraceSpec, folder: Path, machine: Machine, gpu: Gpu | None, watcher: ProgressWatcher
) -> tuple[TraceResult, Sequence[RecordingLine], tuple[str, ...]]:
    """Have the calls made while a recorder looks; return them, what was recorded around them, and what went wrong."""
    request = TraceRequest(
        subjects=(order.subject,),
        device=order.calls.device,
        calls=order.calls.calls,
        warmup=order.calls.warmup,
        limit_s=order.timeout_s,
        seed=order.calls.seed,
        file=str(folder / PROFILE),
    )
    with (
        _record(folder, machine, gpu) as (recording, notes),
        OneShotProcess(request, order.calls.environment) as process,
    ):
        try:
            followed = process.wait_for(TraceResult, watcher)
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
def _record(folder: Path, machine: Machine, gpu: Gpu | None) -> Iterator[tuple[Recording | None, list[str]]]:
    """Record a GPU, or the host where there is none; a recorder that fails harms no trace, and is noted."""
    notes: list[str] = []
    recording: Recording | None = None
    try:
        recording = Recording.start(
            RecordingOptions(
                path=str(folder / RECORDING),
                gpus=() if gpu is None else (watched_gpu(gpu),),
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


def _read_events(path: Path) -> list[Event]:
    """Return what PyTorch's profiler wrote, and take the file away: all of it goes into the trace that is kept."""
    if not path.exists():
        return []
    with translate_os_errors(path):
        text = path.read_text(encoding="utf-8", errors="replace")
        path.unlink()
    try:
        events: list[Event] = json.loads(text)["traceEvents"]
    except (ValueError, KeyError) as error:
        raise MachineCannot(f"PyTorch's profiler wrote a trace that cannot be read: {error}.") from error
    return events


def _count_kernels(order: TraceSpec, gpu: Gpu | None, folder: Path, watcher: ProgressWatcher) -> NcuResult:
    if order.counters == "none":
        return NcuResult(refusal=NcuFailure(reason="they were not asked for"))
    if gpu is None:
        return NcuResult(refusal=NcuFailure(reason="counters are a GPU's, and this is a trace of a CPU"))
    return run_ncu(order.calls, folder, timeout_s=order.timeout_s, watcher=watcher)


def _summarize_counters(counting: NcuResult, matched: int) -> CountersRead:
    refusal = counting.refusal
    return CountersRead(
        by="ncu" if refusal is None else None,
        version=counting.version,
        command=counting.command,
        kernels=0 if refusal is not None else len(counting.counted),
        matched=matched,
        missing=counting.missing,
        refused=None if refusal is None else refusal.reason,
        fix=None if refusal is None else refusal.fix,
    )


def _counter_notes(counting: NcuResult, matched: int, kernels: Sequence[KernelRow], rows_are: str) -> Iterator[str]:
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
    if rows_are != KERNEL_ROWS:
        yield f"ncu counted {len(counting.counted)} kernels, and the rows are {rows_are}: its log has them"
    elif len(counting.counted) >= MAX_KERNELS > matched:
        yield f"ncu counts {MAX_KERNELS} kernels at most: {mine - matched} of {mine} have no counters"
    elif matched < mine:
        yield f"{mine - matched} of {mine} kernels have no counters: the two runs did not launch the same ones"
