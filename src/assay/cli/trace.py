"""``assay trace``: every kernel of a workload over time, with clocks, power and hardware counters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.core.errors import BadInput, MachineCannot, StopRequested
from assay.core.format import MAX_CALLS

if TYPE_CHECKING:
    from assay.launch.tracing import TraceSpec, WorkloadTrace
    from assay.machine.model import Machine


class TraceFlags(cli.JsonFlags):
    """What `assay trace` can be asked for."""

    workload: str = cli.argument("WORKLOAD", required=True)
    params: tuple[str, ...] = cli.param_flag()
    gpus: tuple[str, ...] = cli.what_flag(
        default=(), item=cli.GPU, metavar="0", shown="the first", help="GPU, by index or UUID."
    )
    device: str | None = cli.what_flag(metavar="cpu", shown="a GPU if present", help="cpu, cuda or cuda:1.")
    calls: int = cli.how_flag(default=10, ge=1, le=MAX_CALLS, help="Calls to trace, back to back.")
    warmup: int = cli.how_flag(default=3, ge=0, le=MAX_CALLS, help="Warm-up calls.")
    counters: Literal["auto", "ncu", "none"] = cli.how_flag(
        default="auto", help="Read hardware counters with ncu; `ncu` fails if they cannot be read."
    )
    timeout_s: float = cli.how_flag(default=120.0, gt=0, help="Time limit for the calls and for ncu.")
    seed: int = cli.seed_flag()
    csv: Path | None = cli.output_flag(metavar="FILE", help="Also write the kernels as CSV.")
    perfetto: Path | None = cli.output_flag(metavar="FILE", help="Also write a trace for ui.perfetto.dev.")
    output_dir: Path = cli.output_dir_flag()
    print_commands: bool = cli.output_flag(default=False, help="Only print command lines for ncu and nsys.")


@cli.verb("trace", TraceFlags)
def trace_kernels(flags: TraceFlags) -> int:
    """Trace every kernel of a workload, with clocks, power and counters.

    A WORKLOAD is one of `assay list`, such as softmax or softmax@torch, or file.py:function.

        assay trace softmax
        assay trace path/to/file.py:function --gpus 1 --calls 3
        assay trace softmax@numpy --device cpu --csv kernels.csv
    """
    from assay.launch.tracing import profiler_commands
    from assay.machine.detect import detect

    machine = detect()
    job = build_request(flags, machine)
    if flags.print_commands:
        show_commands(profiler_commands(job.calls), as_json=flags.as_json)
        return 0
    folder, traced = run_trace(job, flags, machine)
    show_trace(job, folder, traced, as_json=flags.as_json)
    refused = traced.summary.counters.refused
    if flags.counters == "ncu" and refused is not None:
        raise MachineCannot(f"No counters: {refused}; the rest of the trace is kept.")
    return 0


def build_request(flags: TraceFlags, machine: Machine) -> TraceSpec:
    """Return what to trace; invalid combinations of flags are refused."""
    from assay.launch.tracing import ProfilerCalls, TraceSpec
    from assay.workloads import registry

    device, visible = device_for(machine, flags.gpus, flags.device)
    kind = device.partition(":")[0]
    if flags.counters == "ncu" and kind == "cpu":
        raise BadInput("--counters ncu needs a GPU; remove it to trace a CPU.")
    named = cli.parse_assignments(flags.params)
    subject = registry.resolve_subject(flags.workload, device_kind=kind, explicit=named)
    spec = subject.workload if subject.impl == "python" and ":" in subject.workload else subject.label
    calls = ProfilerCalls(
        workload=spec,
        params=named,
        device=device,
        calls=flags.calls,
        warmup=flags.warmup,
        seed=flags.seed,
        visible=visible,
    )
    return TraceSpec(subject=subject, calls=calls, counters=flags.counters, timeout_s=flags.timeout_s)


def device_for(machine: Machine, gpus: tuple[str, ...], device: str | None) -> tuple[str, str | None]:
    """Return the device and, for a GPU, the UUID that the process is restricted to."""
    from importlib.util import find_spec

    from assay.machine.devices import choose_devices, gpu_targets

    if device is not None and device not in {"cpu", "cpu:0"} and not device.startswith("cuda"):
        raise BadInput(f"--device must be cpu, cuda or cuda:N, not {device!r}.")
    if len(gpus) > 1:
        raise BadInput(f"A trace covers one GPU, but --gpus names {len(gpus)}; name one.")
    chosen = choose_devices(machine, gpus=gpus, devices=() if device is None else (device,))[0]
    by_itself = device is None and not gpus
    if not chosen.startswith("cuda") or (by_itself and find_spec("torch") is None):
        return "cpu:0", None
    return chosen, gpu_targets(machine)[chosen].uuid


def run_trace(job: TraceSpec, flags: TraceFlags, machine: Machine) -> tuple[Path, WorkloadTrace]:
    """Trace, and save the result; a failed trace leaves no folder."""
    from assay.cli.time import print_tail
    from assay.core.guardian import Guardian
    from assay.core.processes import stop_on_signals
    from assay.launch.tracing import trace_workload
    from assay.monitor.perfetto import check_writable
    from assay.reports.progress import StatusLine
    from assay.store import run_folder

    for path in (flags.csv, flags.perfetto):
        if path is not None:
            check_writable(path)
    folder = run_folder.create_trace_folder(flags.output_dir.absolute())
    line = StatusLine(show.console(stderr=True), job.timeout_s)
    try:
        with stop_on_signals(), Guardian():
            traced = trace_workload(job, folder, machine, line)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        line.close()
        print_tail("\n".join(getattr(error, "__notes__", ())))
        if isinstance(error, StopRequested):
            raise StopRequested(f"{error}; nothing was traced.") from None
        raise
    line.close()
    run_folder.write_trace_folder(folder, traced, machine)
    if flags.csv is not None:
        run_folder.write_kernels_csv(flags.csv, traced)
    if flags.perfetto is not None:
        run_folder.write_perfetto_trace(flags.perfetto, traced)
    return folder, traced


def show_trace(job: TraceSpec, folder: Path, traced: WorkloadTrace, *, as_json: bool) -> None:
    """Show the result."""
    from assay.core.values import SCHEMA_VERSION
    from assay.launch.tracing import profiler_commands
    from assay.monitor.kernel_trace.report import trace_page
    from assay.store.run_folder import TRACE_KERNELS, TRACE_PERFETTO

    commands = profiler_commands(job.calls)
    summary = traced.summary.model_dump(mode="json", exclude={"schema_version"})
    data = {"schema": SCHEMA_VERSION, "folder": str(folder), **summary, "commands": commands}
    show.print_result(data, trace_page(traced.summary), as_json=as_json)
    if job.calls.visible is not None and not as_json:
        click.echo()
        show_commands(commands, as_json=False)
    folder_text = show.short_path(folder)
    click.echo(
        f"Rows: {folder_text}/{TRACE_KERNELS}, trace for ui.perfetto.dev: {folder_text}/{TRACE_PERFETTO}", err=True
    )


def show_commands(commands: dict[str, str], *, as_json: bool) -> None:
    """Print command lines, each whole on a line, so that it can be copied."""
    if as_json:
        show.print_json(commands)
        return
    for purpose, line in commands.items():
        click.echo(f"# {purpose}\n{line}")
