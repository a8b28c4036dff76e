"""A verb on every node of a Slurm partition: an array of tasks, one run folder a node, gathered by GPU.

A verb takes part with the decorator `fleeted` and, first of all in its function::

    if (code := power_fleet.sent(ctx, given)) is not None:
        return code
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.cli import on_host
from assay.cli.on_host import HostOption
from assay.cli.params import COUNT
from assay.core.errors import BadInput, EndedEarly, MachineCannot, StopRequested

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.hosts.base import Order
    from assay.hosts.fleet.folder import FleetFolder

FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")

TRIES = 2
SLURM = "slurm"
OPTIONS = {
    "nodes": click.option("--nodes", type=COUNT, cls=HostOption, help="So many.  [default: all that are up]"),
    "nodelist": click.option("--nodelist", cls=HostOption, metavar="n1,n[4-7]", help="Which nodes.  [default: all]"),
    "at_once": click.option("--at-once", type=COUNT, cls=HostOption, help="Nodes at a time, at most."),
    "tries": click.option("--tries", type=COUNT, cls=HostOption, help=f"Of a node that fails.  [default: {TRIES}]"),
}
"""The options of a fleet, by their names."""

NOT_SENT = frozenset({*on_host.NOT_SENT, *OPTIONS, "output_dir", "as_json"})
"""What says where, or how it is shown here; each node has a folder of its own."""

STILL_TAKEN = ("time", "remote_python")
"""What may be said again when a fleet goes on: the rest is as it was."""


def fleeted(function: FunctionT) -> FunctionT:
    """Add the options about machines elsewhere, and those of a fleet."""
    for option in reversed(OPTIONS.values()):
        function = option(function)
    return on_host.hosted(but=("nodes", "nproc"))(function)


def sent(ctx: click.Context, given: Mapping[str, Any]) -> int | None:
    """Return the exit code of the verb on all of its nodes; null when it is to be run here."""
    from assay.hosts import registry

    name, partition = registry.parse(given["on"])
    if name != SLURM:
        return on_host.sent(ctx, {**given, "nproc": None})
    registry.find(name)
    job = _order(ctx, given, partition)
    from assay.hosts.slurm import nodes

    if given["nodes"] and given["nodelist"]:
        raise BadInput("--nodes says how many nodes and --nodelist which; give one of them.")
    names = nodes.expanded(given["nodelist"]) if given["nodelist"] else ()
    available = nodes.seen(job.place)
    job = job.model_copy(update={"place": job.place or available[0].partition})
    chosen_nodes = nodes.chosen(available, count=given["nodes"], names=names)
    if given.get("dry_run"):
        return _dry_run(job, chosen_nodes, given["at_once"])
    return _begun(job, chosen_nodes, given)


def resumed(ctx: click.Context, given: Mapping[str, Any]) -> int:
    """Go on with a fleet: only what is missing is measured; return the exit code."""
    from assay.cli.fleet_show import show
    from assay.hosts import registry
    from assay.hosts.fleet.book import missing
    from assay.hosts.fleet.folder import FleetFolder

    name, _ = registry.parse(given["on"])
    about_machines = [p for p in ctx.command.params if isinstance(p, HostOption) and p.name not in {"on", *STILL_TAKEN}]
    host_flags = [p.opts[0] for p in about_machines if given[str(p.name)]]
    if name not in {SLURM, on_host.LOCAL} or host_flags:
        what = host_flags[0] if host_flags else f"--on {given['on']}"
        raise BadInput(
            f"A fleet goes on where it was begun; {what} cannot change that, only --time and --remote-python."
        )
    folder = FleetFolder.open(given["run"])
    if not missing(folder.fleet):
        click.echo("Nothing was left to measure.", err=True)
        return show(folder, as_json=given["as_json"])
    registry.find(SLURM)
    change: dict[str, Any] = {"limit_s": given["time"]} if given["time"] else {}
    if given["remote_python"]:
        change |= {"python": given["remote_python"], "python_path": None}
    job = folder.fleet.order.model_copy(update=change)
    folder.fleet = folder.fleet.model_copy(update={"order": job})
    return _carried_out(folder, as_json=given["as_json"])


def _order(ctx: click.Context, given: Mapping[str, Any], place: str | None) -> Order:
    """Return what each node gets; nodes are known by their names here, so runs may tell them too."""
    from assay.cli.ordering import order_of

    job = order_of(ctx, {**given, "nodes": 1, "nproc": 1}, SLURM, place, but=NOT_SENT)
    path = Path(job.folder)
    words = job.words
    if any(parameter.name == "name_host" for parameter in ctx.command.params) and not given["name_host"]:
        cut = words.index("--") if "--" in words else len(words)
        words = (*words[:cut], "--name-host", *words[cut:])
    folder = str(path.with_name(path.name.replace(SLURM, "fleet", 1)))
    return job.model_copy(update={"folder": folder, "words": words})


def _dry_run(order: Order, wanted: Mapping[str, str | None], at_once: int | None) -> int:
    from assay.hosts.fleet.book import listed, troubles
    from assay.hosts.slurm.array_script import array_script

    able = [node for node, why in wanted.items() if why is None]
    click.echo(array_script(order, len(able), 1, at_once), nl=False)
    click.echo(f"One task on each of {listed(able)}: assay {' '.join(order.words)}", err=True)
    if len(able) < len(wanted):
        click.echo(f"Out of order, and left out: {troubles(wanted)}", err=True)
    return 0


def _begun(order: Order, wanted: Mapping[str, str | None], given: Mapping[str, Any]) -> int:
    """Make the fleet's folder and measure."""
    from datetime import UTC, datetime

    from assay.cli.show import short
    from assay.hosts.fleet import book
    from assay.hosts.fleet.folder import FleetFolder
    from assay.hosts.fleet.model import Fleet
    from assay.hosts.slurm.array_script import array_script

    array_script(order, 1, 1, None)  # refuses options that cannot be meant, before anything is made
    fleet = Fleet(
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        order=order,
        tries=given["tries"] or TRIES,
        at_once=given["at_once"],
        posts=book.posts(wanted),
    )
    folder = FleetFolder.create(fleet)
    able = [node for node, why in wanted.items() if why is None]
    click.echo(f"Fleet {short(folder.path)}: {book.listed(able)}", err=True)
    return _carried_out(folder, as_json=given["as_json"])


def _carried_out(folder: FleetFolder, *, as_json: bool) -> int:
    """Measure what is missing, and show what there is; return the exit code."""
    from assay.cli.fleet_show import show
    from assay.cli.show import short
    from assay.hosts.fleet.rounds import carry_out
    from assay.hosts.slurm.array import SlurmArrays

    try:
        carry_out(folder, SlurmArrays(), lambda line: click.echo(line, err=True))
    except (StopRequested, EndedEarly, MachineCannot) as error:
        whole, every = sum(post.state == "done" for post in folder.fleet.posts), len(folder.fleet.posts)
        way_on = f"{whole} of {every} nodes measured. `assay resume {short(folder.path)}` goes on"
        raise type(error)(f"{str(error).rstrip('.')}; {way_on}.") from None
    return show(folder, as_json=as_json)
