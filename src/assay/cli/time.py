"""``assay time``: how long a call of a function or a workload takes, or which of several is faster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.core.errors import BadInput, TrialFailed
from assay.core.values import Cache
from assay.timing.options import MethodChoice

if TYPE_CHECKING:
    from assay.core.results import Disturbance
    from assay.core.values import Subject
    from assay.launch.one_shot import ProcessFailure, ProcessOutcomes
    from assay.machine.interference import ProcessSnapshot
    from assay.worker.request import TimeRequest, TimeResult

TAIL_LINES = 10


class TimeFlags(cli.JsonFlags):
    """What `assay time` can be asked for."""

    targets: tuple[str, ...] = cli.argument("TARGET...", default=())
    params: tuple[str, ...] = cli.param_flag("Set a parameter of the targets.")
    device: str | None = cli.what_flag(metavar="cpu", shown="a GPU if a target uses one", help="cpu, cuda or cuda:1.")
    cache: Cache | None = cli.cache_flag()
    method: MethodChoice = cli.how_flag(
        default="auto", metavar="METHOD", help="GPU timer: auto, graph, queue, trace or wall."
    )
    precision: float | None = cli.how_flag(gt=0, lt=1, shown="1%", help="Stop at this precision (one target).")
    processes: int = cli.how_flag(default=5, ge=1, help="Number of fresh processes.")
    budget_s: float | None = cli.how_flag(gt=0, shown="30s on a GPU, else 10s", help="Total time.")
    decide_on: Literal["busy", "span", "call"] | None = cli.how_flag(help="Time that decides between several targets.")
    minimum_effect: float | None = cli.how_flag(gt=0, lt=1, shown="1%", help="Ignore effects smaller than this.")
    timeout_s: float = cli.how_flag(default=60.0, gt=0, help="Time limit for a single call.")
    lock_mhz: int | None = cli.how_flag("--lock-clock", ge=1, metavar="MHZ", help="Lock the GPU clock while timing.")
    seed: int = cli.seed_flag()


@cli.verb("time", TimeFlags)
def time_targets(flags: TimeFlags) -> int:
    """Time a function or workload, or compare several with the first.

    A TARGET is file.py:function, package.module:function, or a workload such as softmax or softmax@numpy.
    Each fresh process is one sample; the confidence interval covers the mean over process starts.

        assay time path/to/file.py:function
        assay time old.py:work new.py:work
        assay time softmax --device cpu --param rows=4096
    """
    outcome, disturbance = run_request(build_request(flags))
    show_measurements(outcome.timed(), disturbance, as_json=flags.as_json)
    if outcome.printed:
        size = f"{outcome.printed:,} bytes"
        warning = f"it printed {size} while it was timed: they are not shown, and printing is part of its time"
        click.echo(f"note: {warning}", err=True)
    if not outcome.failures:
        return 0
    failed = f"{len(outcome.failures)} of {outcome.planned} processes failed"
    click.echo(f"assay: {failed}; the times are those of the other {len(outcome.answers)}.", err=True)
    return TrialFailed.exit_code


def build_request(flags: TimeFlags) -> TimeRequest:
    """Return the request; invalid combinations of flags are refused."""
    from assay.timing.options import PRECISION
    from assay.worker.request import TimeRequest

    targets = flags.targets
    if not targets:
        raise BadInput("Nothing to time: name a file.py:function, or a workload (`assay list` shows them).")
    several = len(targets) > 1
    if several and flags.precision is not None:
        raise BadInput("--precision applies to one target; use --min-effect to compare several.")
    if not several and (flags.decide_on is not None or flags.minimum_effect is not None):
        raise BadInput("--decide-on and --min-effect compare targets; name a second one.")
    chosen, device = build_subjects(targets, flags.params, flags.device)
    return TimeRequest(
        subjects=chosen,
        device=device,
        cache=flags.cache,
        method=flags.method,
        precision=flags.precision or PRECISION,
        budget_s=flags.budget_s,
        processes=flags.processes,
        by=flags.decide_on,
        minimum_effect=flags.minimum_effect or 0.01,
        limit_s=flags.timeout_s,
        lock_mhz=flags.lock_mhz,
        seed=flags.seed,
    )


def build_subjects(
    targets: tuple[str, ...], params: tuple[str, ...], device: str | None
) -> tuple[tuple[Subject, ...], str | None]:
    """Return the subjects of the targets, and the device; null for functions alone: it is detected."""
    from assay.workloads import registry
    from assay.workloads.function import is_function_spec

    if device is None and not all(map(is_function_spec, targets)):
        device = device_for_workloads()
    kind = (device or "cpu").partition(":")[0]
    if kind not in {"cpu", "cuda"}:
        raise BadInput(f"--device must be cpu, cuda or cuda:N, not {device!r}.")
    named = cli.parse_assignments(params)
    return tuple(registry.resolve_subject(target, device_kind=kind, explicit=named) for target in targets), device


def device_for_workloads() -> str:
    """Return the GPU where there is one and PyTorch to use it with, otherwise the CPU."""
    from importlib.util import find_spec

    from assay.machine import nvidia

    return "cuda" if find_spec("torch") is not None and nvidia.list_gpus().gpus else "cpu"


def run_request(request: TimeRequest) -> tuple[ProcessOutcomes, Disturbance]:
    """Run a request in processes of its own; return the outcome of each, and interference by others."""
    from assay.core.guardian import Guardian
    from assay.core.processes import stop_on_signals
    from assay.launch.one_shot import time_in_processes
    from assay.machine import nvidia
    from assay.machine.interference import take_snapshot
    from assay.reports.progress import StatusLine

    vendor = nvidia if nvidia.list_gpus().gpus else None
    before = take_snapshot(vendor=vendor)
    line = StatusLine(show.console(stderr=True))

    def on_failure(failure: ProcessFailure) -> None:
        line.close()
        if isinstance(failure.error, TrialFailed):
            print_tail(failure.tail)
        if failure.process > 1:
            click.echo(f"process {failure.process} of {request.processes} failed: {failure.error}", err=True)

    with stop_on_signals(), Guardian():
        try:
            outcome = time_in_processes(request, line, on_failure=on_failure)
            return outcome, activity_during(outcome.answers[0][1], before, take_snapshot(vendor=vendor))
        finally:
            line.close()


def activity_during(timed: TimeResult, before: ProcessSnapshot, after: ProcessSnapshot) -> Disturbance:
    """Return what other processes did between two snapshots, also on the GPU that was timed on."""
    from assay.machine.interference import assess_disturbance

    result = timed.measurement or timed.comparison
    gpus = gpu_uuids(result.device if result is not None else "cpu")
    return assess_disturbance(before, after, cpus=len(os.sched_getaffinity(0)), gpus=gpus)


def gpu_uuids(device: str) -> tuple[str, ...]:
    """Return the UUID of the whole GPU that a device of CUDA's is; nothing for a CPU."""
    from assay.launch.one_shot import subprocess_environment
    from assay.machine import nvidia
    from assay.machine.devices import cuda_order

    kind, _, number = device.partition(":")
    if kind != "cuda":
        return ()
    gpus = nvidia.list_gpus().gpus
    index = next(
        one.gpu for one in cuda_order(gpus, subprocess_environment()).devices if one.cuda_index == int(number or 0)
    )
    return tuple(gpu.uuid for gpu in gpus if gpu.index == index)


def print_tail(tail: str) -> None:
    """Show the end of what a failed target printed."""
    from assay.reports.text import visible_text

    for text in visible_text(tail).splitlines()[-TAIL_LINES:]:
        click.echo(f"  | {text}", err=True)


def show_measurements(timed: TimeResult, activity: Disturbance, *, as_json: bool) -> None:
    """Show the result."""
    from assay.core.values import SCHEMA_VERSION
    from assay.experiments.reporting import process_interference_line
    from assay.reports.terminal import print_comparison, print_measurement

    if as_json:
        result = timed.measurement or timed.comparison
        data = {
            "schema": SCHEMA_VERSION,
            "scope": None if result is None else result.scope,
            "processes": None if result is None else result.processes,
            **timed.model_dump(mode="json", exclude={"kind", "budget_s"}),
            "disturbance": activity.as_json(),
        }
        show.print_json(data)
        return
    quality = process_interference_line(activity.complaints)
    if timed.measurement is not None:
        print_measurement(timed.measurement, show.console(stderr=False), quality)
    if timed.comparison is not None:
        print_comparison(timed.comparison, show.console(stderr=False), quality)
