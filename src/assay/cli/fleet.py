"""Run a verb on every node of a Slurm partition: an array of tasks, one run folder per node, collected by GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.cli import host_options
from assay.cli.host_options import HostOption
from assay.cli.params import COUNT
from assay.core.errors import BadInput, EndedEarly, MachineCannot, StopRequested

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.hosts.base import Job
    from assay.hosts.fleet import FleetFolder

FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")

MAX_ATTEMPTS = 2
SLURM = "slurm"
FLEET_OPTIONS = {
    "nodes": click.option("--nodes", type=COUNT, cls=HostOption, help="Number of nodes.  [default: all that are up]"),
    "nodelist": click.option(
        "--nodelist", cls=HostOption, metavar="n1,n[4-7]", help="Names of the nodes.  [default: all]"
    ),
    "max_concurrent": click.option(
        "--max-concurrent", type=COUNT, cls=HostOption, help="Measure at most this many nodes at a time."
    ),
    "attempts": click.option(
        "--attempts", type=COUNT, cls=HostOption, help=f"Attempts per node.  [default: {MAX_ATTEMPTS}]"
    ),
}
"""The options of a fleet, by their names."""

NOT_FORWARDED_BY_FLEET = frozenset({*host_options.NOT_FORWARDED, *FLEET_OPTIONS, "output_dir", "as_json"})
"""What says where, or how it is shown here; each node has a folder of its own."""

SUPPORTED_HOST_OPTIONS = ("time", "remote_python")
"""What may be said again when a fleet goes on: the rest is as it was."""


def fleet_options(function: FunctionT) -> FunctionT:
    """Add the options about machines elsewhere, and those of a fleet."""
    for option in reversed(FLEET_OPTIONS.values()):
        function = option(function)
    return host_options.host_options(but=("nodes", "nproc"))(function)


def dispatch_fleet(ctx: click.Context, flags: Mapping[str, Any]) -> int | None:
    """Return the exit code of the verb on all of its nodes; null when it is to be run here."""
    from assay.hosts import registry

    name, partition = registry.parse_host(flags["on"])
    if name != SLURM:
        return host_options.dispatch_remote(ctx, {**flags, "nproc": None})
    registry.find_host(name)
    job = _fleet_job(ctx, flags, partition)
    from assay.hosts.slurm import commands as nodes

    if flags["nodes"] and flags["nodelist"]:
        raise BadInput("--nodes and --nodelist exclude each other; give one.")
    names = nodes.expand_node_list(flags["nodelist"]) if flags["nodelist"] else ()
    available = nodes.partition_nodes(job.host_place)
    job = job.model_copy(update={"host_place": job.host_place or available[0].partition})
    chosen_nodes = nodes.choose_nodes(available, count=flags["nodes"], names=names)
    if flags.get("dry_run"):
        return _dry_run(job, chosen_nodes, flags["max_concurrent"])
    return _begin_fleet(job, chosen_nodes, flags)


def resume_fleet(ctx: click.Context, flags: Mapping[str, Any]) -> int:
    """Resume a fleet: only what is missing is measured; return the exit code."""
    from assay.cli.fleet_report import show_fleet
    from assay.hosts import registry
    from assay.hosts.fleet import FleetFolder, nodes_without_result

    name, _ = registry.parse_host(flags["on"])
    about_machines = [
        p for p in ctx.command.params if isinstance(p, HostOption) and p.name not in {"on", *SUPPORTED_HOST_OPTIONS}
    ]
    host_flags = [p.opts[0] for p in about_machines if flags[str(p.name)]]
    if name not in {SLURM, host_options.LOCAL} or host_flags:
        what = host_flags[0] if host_flags else f"--on {flags['on']}"
        raise BadInput(
            f"A fleet resumes where it was started, so {what} cannot be changed; only --time and --remote-python can."
        )
    folder = FleetFolder.open(flags["run"])
    if not nodes_without_result(folder.fleet):
        click.echo("Nothing was left to measure.", err=True)
        return show_fleet(folder, as_json=flags["as_json"])
    registry.find_host(SLURM)
    change: dict[str, Any] = {"limit_s": flags["time"]} if flags["time"] else {}
    if flags["remote_python"]:
        change |= {"python": flags["remote_python"], "python_path": None}
    job = folder.fleet.job.model_copy(update=change)
    folder.fleet = folder.fleet.model_copy(update={"job": job})
    return _run_fleet(folder, as_json=flags["as_json"])


def _fleet_job(ctx: click.Context, flags: Mapping[str, Any], partition: str | None) -> Job:
    """Return what each node gets; nodes are known by their names here, so runs may tell them too."""
    from assay.cli.host_options import build_job

    job = build_job(ctx, {**flags, "nodes": 1, "nproc": 1}, SLURM, partition, but=NOT_FORWARDED_BY_FLEET)
    path = Path(job.folder)
    words = job.words
    if any(parameter.name == "name_host" for parameter in ctx.command.params) and not flags["name_host"]:
        cut = words.index("--") if "--" in words else len(words)
        words = (*words[:cut], "--name-host", *words[cut:])
    folder = str(path.with_name(path.name.replace(SLURM, "fleet", 1)))
    return job.model_copy(update={"folder": folder, "words": words})


def _dry_run(job: Job, nodes_to_measure: Mapping[str, str | None], at_once: int | None) -> int:
    from assay.hosts.fleet import join_nodes, unavailable_text
    from assay.hosts.slurm.script import array_script

    able = [node for node, why in nodes_to_measure.items() if why is None]
    click.echo(array_script(job, len(able), 1, at_once), nl=False)
    click.echo(f"One task on each of {join_nodes(able)}: assay {' '.join(job.words)}", err=True)
    if len(able) < len(nodes_to_measure):
        click.echo(f"Out of order, and left out: {unavailable_text(nodes_to_measure)}", err=True)
    return 0


def _begin_fleet(job: Job, nodes_to_measure: Mapping[str, str | None], flags: Mapping[str, Any]) -> int:
    """Make the fleet's folder and measure."""
    from datetime import UTC, datetime

    from assay.cli.show import short_path
    from assay.hosts import fleet as state
    from assay.hosts.fleet import FleetFolder, FleetState
    from assay.hosts.slurm.script import array_script

    array_script(job, 1, 1, None)  # refuses options that cannot be meant, before anything is made
    fleet = FleetState(
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        job=job,
        tries=flags["attempts"] or MAX_ATTEMPTS,
        at_once=flags["max_concurrent"],
        posts=state.initial_node_states(nodes_to_measure),
    )
    folder = FleetFolder.create(fleet)
    able = [node for node, why in nodes_to_measure.items() if why is None]
    click.echo(f"Fleet {short_path(folder.path)}: {state.join_nodes(able)}", err=True)
    return _run_fleet(folder, as_json=flags["as_json"])


def _run_fleet(folder: FleetFolder, *, as_json: bool) -> int:
    """Measure what is missing, and show what there is; return the exit code."""
    from assay.cli.fleet_report import show_fleet
    from assay.cli.show import short_path
    from assay.hosts.fleet import measure_fleet
    from assay.hosts.slurm.array import SlurmArrays

    try:
        measure_fleet(folder, SlurmArrays(), lambda line: click.echo(line, err=True))
    except (StopRequested, EndedEarly, MachineCannot) as error:
        whole, every = sum(post.state == "done" for post in folder.fleet.posts), len(folder.fleet.posts)
        way_on = f"{whole} of {every} nodes measured. `assay resume {short_path(folder.path)}` resumes"
        raise type(error)(f"{str(error).rstrip('.')}; {way_on}.") from None
    return show_fleet(folder, as_json=as_json)
