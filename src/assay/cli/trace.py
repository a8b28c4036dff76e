"""``assay trace``: every kernel of a workload over time, with clocks, watts and counters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import CALLS, CALLS_OR_NONE, Duration, Listed, verb
from assay.core.errors import BadInput, MachineCannot, StopRequested

if TYPE_CHECKING:
    from assay.launch.following import Trace, TraceOrder
    from assay.machine.model import Machine

GPU = r"\d+(/\d+)?|(GPU|MIG)-\S+"


@verb("trace")
@click.argument("workload")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the workload.")
@click.option("--gpus", cls=Listed, item=GPU, metavar="0", help="Which GPU, by number or UUID.  [default: the first]")
@click.option("--device", metavar="cpu", help="cpu, cuda or cuda:1.  [default: a GPU where there is one]")
@click.option("--calls", type=CALLS, default=10, show_default=True, help="That are traced, back to back.")
@click.option("--warmup", type=CALLS_OR_NONE, default=3, show_default=True, help="Calls before them.")
@click.option(
    "--counters",
    type=click.Choice(["auto", "ncu", "none"]),
    default="auto",
    show_default=True,
    help="Of each kernel by ncu: where it may read them, or else it is an error.",
)
@click.option("--csv", type=click.Path(path_type=Path), metavar="FILE", help="Also put the kernels here.")
@click.option("--perfetto", type=click.Path(path_type=Path), metavar="FILE", help="Also put the trace here.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For the calls, and for ncu.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--print-commands", is_flag=True, help="Only print ready command lines for ncu and nsys.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(workload: str, **given: Any) -> int:
    """Trace every kernel of a workload, with clocks, power and counters beside it.

    A WORKLOAD is one of `assay list`, such as softmax or softmax@torch, or file.py:function.

    \b
    assay trace softmax
    assay trace path/to/file.py:function --gpus 1 --calls 3
    assay trace softmax@numpy --device cpu --csv kernels.csv
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.launch.profilers import ready_made
    from assay.machine.detect import detect

    machine = detect()
    job = build(workload, given, machine)
    if given["print_commands"]:
        show_commands(ready_made(job.calls), as_json=given["as_json"])
        return 0
    folder, traced = carry_out(job, given, machine)
    show(job, folder, traced, as_json=given["as_json"])
    refused = traced.summary.counters.refused
    if given["counters"] == "ncu" and refused is not None:
        raise MachineCannot(f"There are no counters: {refused}; the rest is kept.")
    return 0


def build(workload: str, given: dict[str, Any], machine: Machine) -> TraceOrder:
    """Return what is to be traced; what makes no sense is said here."""
    from assay.cli.run import parameter
    from assay.launch.following import TraceOrder
    from assay.launch.profilers import Calls
    from assay.workloads import registry

    device, visible = device_for(machine, given["gpus"], given["device"])
    kind = device.partition(":")[0]
    if given["counters"] == "ncu" and kind == "cpu":
        raise BadInput("--counters ncu reads a GPU's counters, and this would be a trace of a CPU.")
    named = dict(parameter(text) for text in given["params"])
    subject = registry.subject(workload, device_kind=kind, given=named)
    spec = subject.workload if subject.impl == "python" and ":" in subject.workload else subject.label
    calls = Calls(
        workload=spec,
        params=named,
        device=device,
        calls=given["calls"],
        warmup=given["warmup"],
        seed=given["seed"],
        visible=visible,
    )
    return TraceOrder(subject=subject, calls=calls, counters=given["counters"], timeout_s=given["timeout"])


def device_for(machine: Machine, gpus: tuple[str, ...], device: str | None) -> tuple[str, str | None]:
    """Return the device that is meant and, of a GPU, the UUID that alone a process shall see."""
    from importlib.util import find_spec

    from assay.isolation.devices import choose
    from assay.isolation.targets import targets

    if device is not None and device not in {"cpu", "cpu:0"} and not device.startswith("cuda"):
        raise BadInput(f"--device is cpu, cuda or cuda:N, not {device!r}.")
    if len(gpus) > 1:
        raise BadInput(f"A trace is of one GPU, and --gpus names {len(gpus)}.")
    chosen = choose(machine, gpus=gpus, devices=() if device is None else (device,))[0]
    by_itself = device is None and not gpus
    if not chosen.startswith("cuda") or (by_itself and find_spec("torch") is None):
        return "cpu:0", None
    return chosen, targets(machine)[chosen].uuid


def carry_out(order: TraceOrder, given: dict[str, Any], machine: Machine) -> tuple[Path, Trace]:
    """Trace, and keep what came out; of a trace that failed no folder is left."""
    from assay.cli import show as screen
    from assay.cli.time import print_tail
    from assay.core.guardian import Guardian
    from assay.core.stopping import stop_on_signals
    from assay.launch.following import trace
    from assay.monitor.perfetto import check_writable
    from assay.reports.waiting import WaitingLine
    from assay.store import traces

    for path in (given["csv"], given["perfetto"]):
        if path is not None:
            check_writable(path)
    folder = traces.create(given["output_dir"].absolute())
    line = WaitingLine(screen.console(stderr=True), order.timeout_s)
    try:
        with stop_on_signals(), Guardian():
            traced = trace(order, folder, machine, line)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        line.close()
        print_tail("\n".join(getattr(error, "__notes__", ())))
        if isinstance(error, StopRequested):
            raise StopRequested(f"{error}; nothing was traced.") from None
        raise
    line.close()
    traces.keep(folder, traced, machine)
    if given["csv"] is not None:
        traces.write_csv(given["csv"], traced)
    if given["perfetto"] is not None:
        traces.write_perfetto(given["perfetto"], traced)
    return folder, traced


def show(order: TraceOrder, folder: Path, traced: Trace, *, as_json: bool) -> None:
    """Put the result before the user."""
    from assay.cli import show as screen
    from assay.core.values import SCHEMA_VERSION
    from assay.launch.profilers import ready_made
    from assay.monitor.kernels.page import page_of
    from assay.reports.terminal import print_page
    from assay.store.traces import KERNELS, PERFETTO

    commands = ready_made(order.calls)
    if as_json:
        summary = traced.summary.model_dump(mode="json", exclude={"schema_version"})
        data = {"schema": SCHEMA_VERSION, "folder": str(folder), **summary, "commands": commands}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        print_page(page_of(traced.summary), screen.console(stderr=False))
        if order.calls.visible is not None:
            click.echo()
            show_commands(commands, as_json=False)
    folder_text = screen.short(folder)
    click.echo(f"Rows: {folder_text}/{KERNELS}, trace for ui.perfetto.dev: {folder_text}/{PERFETTO}", err=True)


def show_commands(commands: dict[str, str], *, as_json: bool) -> None:
    """Print command lines, each whole on a line, so that it can be copied."""
    if as_json:
        click.echo(json.dumps(commands, indent=2, ensure_ascii=False))
        return
    for purpose, line in commands.items():
        click.echo(f"# {purpose}\n{line}")
