"""Trace a workload: its calls in a separate process, a recorder next to them, then ncu for the counters.

Counters come from a separate run: ncu runs one kernel after another, each as often as its counters need. The same
calls can be run by hand: there are ready command lines for ncu and nsys.
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
from assay.core.format import format_duration
from assay.core.processes import mark_environment
from assay.core.values import Subject, Value
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
from assay.monitor.recording_file import read_window
from assay.worker.request import PhaseStarted, TraceRequest, TraceResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.launch.one_shot import ProgressWatcher
    from assay.machine.model import Gpu, Machine
    from assay.monitor.kernel_trace.ncu import NcuKernel
    from assay.monitor.kernel_trace.rows import Event, KernelRow, ProfilerClock
    from assay.monitor.samples import RecordingLine


MAX_KERNELS = 1000
"""Maximum number of counted kernels: each is replayed for every group of counters, and ncu prints only at the end."""


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
        """The variables to add to the process's environment: the visible GPU."""
        return {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of the process."""
        params = [word for name, value in self.params.items() for word in ("--param", f"{name}={value}")]
        counts = ("--device", self.device, "--calls", str(self.calls), "--warmup", str(self.warmup))
        seed = ("--seed", str(self.seed)) if self.seed else ()
        return (sys.executable, "-P", "-m", "assay.worker.calls", self.workload, *params, *counts, *seed)


def ncu_counters_command(
    calls: ProfilerCalls, metrics: Sequence[str] = METRICS, *, log: str | None = None
) -> tuple[str, ...]:
    """Return ncu's command line for the counters of a trace; neither clocks nor caches are controlled."""
    options = (
        "--csv --page raw --print-units base --print-kernel-base demangled --profile-from-start off "
        f"--target-processes all --clock-control none --cache-control none --launch-count {MAX_KERNELS}"
    )
    log_file = ("--log-file", log) if log is not None else ()
    return ("ncu", *options.split(), "--metrics", ",".join(metrics), *log_file, *calls.argv)


NCU_REPORT = (
    "ncu --set full --profile-from-start off --target-processes all --clock-control none --launch-count 20 "
    "--export trace.ncu-rep --force-overwrite"
)
"""A full report on the first kernels, to be opened in ncu-ui."""
NSYS_TIMELINE = (
    "nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop --trace=cuda,nvtx,cublas,cudnn "
    "--output=trace --force-overwrite=true"
)
GPU_TRACE = "nsys stats --report cuda_gpu_trace --format csv --output - trace.nsys-rep"
"""What nvprof --print-gpu-trace --csv printed, from the timeline."""


def profiler_commands(calls: ProfilerCalls) -> dict[str, str]:
    """Return command lines for the shell, by purpose; on a CPU only the calls themselves."""
    if not calls.device.startswith("cuda"):
        return {"the calls alone": format_command(calls, calls.argv)}
    return {
        "counters of each kernel, as CSV (ncu)": format_command(calls, ncu_counters_command(calls)),
        "a full report for ncu-ui (ncu)": format_command(calls, (*NCU_REPORT.split(), *calls.argv)),
        "a timeline for nsys-ui (nsys)": format_command(calls, (*NSYS_TIMELINE.split(), *calls.argv)),
        "that timeline as a table (nsys)": GPU_TRACE,
        "the calls alone": format_command(calls, calls.argv),
    }


def format_command(calls: ProfilerCalls, argv: Sequence[str]) -> str:
    """Return a command line as typed into a shell, with its environment in front."""
    before = ["env", *(f"{name}={value}" for name, value in calls.environment.items())] if calls.environment else []
    return shlex.join([*before, *argv])


MAX_RUNS = 3
"""Maximum number of runs: after one with unknown metrics, the next omits them."""
VERSION_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class NcuResult:
    """The result: kernels with their counters, or why there are none."""

    counted: Sequence[NcuKernel] = ()
    refusal: NcuFailure | None = None
    version: str | None = None
    command: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class _CommandResult:
    code: int | None
    """Null: it timed out and was killed."""
    text: str


def run_ncu(
    calls: ProfilerCalls, folder: Path, *, timeout_s: float, watcher: ProgressWatcher, root: Path = Path("/")
) -> NcuResult:
    """Let ncu read the counters of every kernel of the calls; its output stays in the folder.

    ``root`` is where the distribution is looked up, for how to install a missing ncu.
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
        run = runs.run(argv, timeout_s)
        kernels = read_counters(run.text)
        refusal = None
        if not any(kernel.metrics for kernel in kernels):
            refusal = _explain_timeout(timeout_s) if run.code is None else diagnose_failure(run.text, run.code)
        result = NcuResult(kernels, refusal, version, format_command(runs.calls, argv), missing)
        unknown = unknown_metrics(run.text, metrics) if refusal is not None else set()
        if not unknown or unknown == set(metrics):
            break
        metrics = tuple(metric for metric in metrics if metric not in unknown)
    return result


def _explain_timeout(timeout_s: float) -> NcuFailure:
    reason = f"ncu had not ended after {format_duration(timeout_s)}, and was ended"
    return NcuFailure(reason=reason, fix="give it more time with --timeout, or fewer kernels with --calls")


@dataclass(frozen=True)
class _NcuRunner:
    """Runs commands to completion, with their output in the folder, and kills whatever they leave behind."""

    calls: ProfilerCalls
    folder: Path
    watcher: ProgressWatcher

    @property
    def log(self) -> Path:
        """The log file of ncu; the output of the calls goes elsewhere."""
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
    """Return how to install ncu on this machine."""
    tool = next(tool for tool in tools.EXTERNAL_TOOLS if tool.name == "ncu")
    command = tools.install_command(tool, tools.distribution(root), root_user=os.geteuid() == 0)
    return command or "install Nsight Compute, which comes with the CUDA toolkit"


INTERVAL_S = 0.01
HOST_INTERVAL_S = 0.1
MARGIN_S = 0.3
"""Time of the recording shown before and after the calls."""

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
    """The result: the rows, the profiler's events and the recording around them, and their summary."""

    kernels: Sequence[KernelRow]
    events: Sequence[Event]
    clock: ProfilerClock | None
    lines: Sequence[RecordingLine]
    zero_ns: int
    """The time on the host's clock at which the shown trace begins."""
    summary: TraceSummary


def trace_workload(spec: TraceSpec, folder: Path, machine: Machine, watcher: ProgressWatcher) -> WorkloadTrace:
    """Trace the calls; files of the profiler, the recorder and ncu go into the folder.

    Raises:
        TrialFailed: The subject fails, is wrong, or does not return; a note on the error has the end of its output.
        BadInput: The subject is invalid.
        MachineCannot: This machine cannot do it.
    """
    whole = spec.calls.device.partition("/")[0]  # of the GPU that the device is, or is a part of
    gpu = next((gpu for gpu in machine.gpus if whole == f"cuda:{gpu.index}"), None)
    result, lines, notes = _trace_calls(spec, folder, machine, gpu, watcher)
    events = _read_events(folder / PROFILE)
    rows = build_timeline(spec.subject.label, result.calls, events, on_gpu=gpu is not None)
    kernels = rows_with_sensors(rows, lines, None if gpu is None else gpu.index)
    counting = _count_kernels(spec, gpu, folder, watcher)
    link = None if gpu is None else link_bytes_per_s(gpu.pcie_max_generation, gpu.pcie_max_width)
    kernels, matched = with_counters(kernels, counting.counted, link)
    missing_reasons = () if result.missing_reason is None else (result.missing_reason,)
    summary = TraceSummary(
        workload=spec.subject.label,
        params=spec.subject.params,
        device=spec.calls.device,
        gpu=None if gpu is None else gpu.name,
        gpu_uuid=None if gpu is None else gpu.uuid,
        calls=spec.calls.calls,
        warmup=spec.calls.warmup,
        rows=len(kernels),
        rows_are=rows.rows_are,
        clock_error_us=None if rows.clock is None else rows.clock.error_us,
        extent=trace_extent(kernels),
        by_name=group_by_name(kernels),
        counters=_summarize_counters(counting, matched),
        notes=(*missing_reasons, *rows.notes, *notes, *_counter_notes(counting, matched, kernels, rows.rows_are)),
        origin="fake" if machine.has_fake_driver else "real",
    )
    zero_ns = result.calls[0].entered_ns - round(MARGIN_S * 1e9)
    return WorkloadTrace(kernels, events, rows.clock, lines, zero_ns, summary)


def _trace_calls(
    spec: TraceSpec, folder: Path, machine: Machine, gpu: Gpu | None, watcher: ProgressWatcher
) -> tuple[TraceResult, Sequence[RecordingLine], tuple[str, ...]]:
    """Make the calls while recording; return the result, the recorded lines around them, and notes on failures."""
    request = TraceRequest(
        subjects=(spec.subject,),
        device=spec.calls.device,
        calls=spec.calls.calls,
        warmup=spec.calls.warmup,
        limit_s=spec.timeout_s,
        seed=spec.calls.seed,
        file=str(folder / PROFILE),
    )
    with (
        _record(folder, machine, gpu) as (recording, notes),
        OneShotProcess(request, spec.calls.environment) as process,
    ):
        try:
            result = process.wait_for(TraceResult, watcher)
        except TrialFailed as error:
            error.add_note(process.tail)
            raise
        if recording is not None:
            with contextlib.suppress(AssayError):
                recording.flush()
    first, last = result.calls[0].entered_ns, result.calls[-1].ended_ns
    path = folder / RECORDING
    lines = read_window(path, first, last, margin_s=MARGIN_S) if path.exists() else ()
    return result, lines, tuple(notes)


@contextlib.contextmanager
def _record(folder: Path, machine: Machine, gpu: Gpu | None) -> Iterator[tuple[Recording | None, list[str]]]:
    """Record a GPU, or the host if there is none; a recorder that fails is noted and does not fail the trace."""
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
    """Return the events of PyTorch's profiler, and delete its file: its content is part of the stored trace."""
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


def _count_kernels(spec: TraceSpec, gpu: Gpu | None, folder: Path, watcher: ProgressWatcher) -> NcuResult:
    if spec.counters == "none":
        return NcuResult(refusal=NcuFailure(reason="they were not asked for"))
    if gpu is None:
        return NcuResult(refusal=NcuFailure(reason="counters are a GPU's, and this is a trace of a CPU"))
    return run_ncu(spec.calls, folder, timeout_s=spec.timeout_s, watcher=watcher)


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
    """Yield notes on the counters that were read."""
    if counting.refusal is not None:
        return
    yield (
        "counters are of a run of their own, in which ncu ran each kernel alone and several times, with the clocks and "
        "caches left as they were; times are of the run without it"
    )
    if counting.missing:
        yield f"this chip or this ncu does not have {', '.join(counting.missing)}"
    traced = sum(kernel.kind == "kernel" for kernel in kernels)
    if rows_are != KERNEL_ROWS:
        yield f"ncu counted {len(counting.counted)} kernels, and the rows are {rows_are}: its log has them"
    elif len(counting.counted) >= MAX_KERNELS > matched:
        yield f"ncu counts {MAX_KERNELS} kernels at most: {traced - matched} of {traced} have no counters"
    elif matched < traced:
        yield f"{traced - matched} of {traced} kernels have no counters: the two runs did not launch the same ones"
