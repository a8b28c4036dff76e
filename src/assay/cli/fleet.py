"""Run a verb on every node of a Slurm partition: an array of tasks, one run folder per node, collected by GPU.

Show how far a fleet is: how many nodes and GPUs are done, which are missing and why.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli import show
from assay.cli.flags import flag_rows
from assay.cli.host_flags import (
    LOCAL,
    NOT_FORWARDED,
    HostFlags,
    build_job,
    dispatch_remote,
    given_host_flags,
    remote_flag,
    slurm_flag,
)
from assay.core.errors import BadInput, EndedEarly, MachineCannot, StopRequested
from assay.core.format import MAX_REPEATS
from assay.core.page import Column, Page, Section, Table, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.hosts.base import Job
    from assay.hosts.fleet import FleetFolder, FleetState, NodeState

MAX_ATTEMPTS = 2
SLURM = "slurm"


class FleetFlags(HostFlags):
    """Where a verb runs that measures all nodes of a partition, one process on each."""

    nodes: int | None = remote_flag(ge=1, le=MAX_REPEATS, shown="all that are up", help="Number of nodes.")
    nproc: int | None = None
    nodelist: str | None = slurm_flag(metavar="n1,n[4-7]", shown="all", help="Names of the nodes.")
    max_concurrent: int | None = slurm_flag(ge=1, le=MAX_REPEATS, help="Measure at most this many nodes at a time.")
    attempts: int | None = slurm_flag(ge=1, le=MAX_REPEATS, shown=str(MAX_ATTEMPTS), help="Attempts per node.")


NOT_FORWARDED_BY_FLEET = NOT_FORWARDED | {"nodelist", "max_concurrent", "attempts", "output_dir", "as_json"}
"""What says where, or how it is shown here; each node has a folder of its own."""


def dispatch_fleet(flags: FleetFlags) -> int | None:
    """Return the exit code of the verb on all of its nodes; null when it is to be run here."""
    from assay.hosts import registry

    name, partition = registry.parse_host(flags.on)
    if name != SLURM:
        return dispatch_remote(flags)
    registry.find_host(name)
    job = _fleet_job(flags, partition)
    from assay.hosts.slurm import commands as nodes

    if flags.nodes and flags.nodelist:
        raise BadInput("--nodes and --nodelist exclude each other; give one.")
    names = nodes.expand_node_list(flags.nodelist) if flags.nodelist else ()
    available = nodes.partition_nodes(job.host_place)
    job = job.model_copy(update={"host_place": job.host_place or available[0].partition})
    chosen_nodes = nodes.choose_nodes(available, count=flags.nodes, names=names)
    if flags.dry_run:
        return _dry_run(job, chosen_nodes, flags.max_concurrent)
    return _begin_fleet(job, chosen_nodes, flags)


def resume_fleet(flags: HostFlags, path: Path) -> int:
    """Resume a fleet: only what is missing is measured; return the exit code."""
    from assay.hosts import registry
    from assay.hosts.fleet import FleetFolder, nodes_without_result

    name, _ = registry.parse_host(flags.on)
    fixed = [row.title for row in given_host_flags(flags) if row.name not in {"time", "remote_python"}]
    if name not in {SLURM, LOCAL} or fixed:
        what = fixed[0] if fixed else f"--on {flags.on}"
        raise BadInput(
            f"A fleet resumes where it was started, so {what} cannot be changed; only --time and --remote-python can."
        )
    folder = FleetFolder.open(path)
    if not nodes_without_result(folder.fleet):
        click.echo("Nothing was left to measure.", err=True)
        return show_fleet(folder, as_json=flags.as_json)
    registry.find_host(SLURM)
    change: dict[str, Any] = {"limit_s": flags.time} if flags.time else {}
    if flags.remote_python:
        change |= {"python": flags.remote_python, "python_path": None}
    job = folder.fleet.job.model_copy(update=change)
    folder.fleet = folder.fleet.model_copy(update={"job": job})
    return _run_fleet(folder, as_json=flags.as_json)


def _fleet_job(flags: FleetFlags, partition: str | None) -> Job:
    """Return what each node gets; nodes are known by their names here, so runs may record them too."""
    single_node = flags.model_copy(update={"nodes": 1, "nproc": 1})
    job = build_job(single_node, SLURM, partition, but=NOT_FORWARDED_BY_FLEET)
    path, words = Path(job.folder), job.words
    if any(row.name == "name_host" for row in flag_rows(type(flags))) and "name_host" not in flags.line.named:
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


def _begin_fleet(job: Job, nodes_to_measure: Mapping[str, str | None], flags: FleetFlags) -> int:
    """Make the fleet's folder and measure."""
    from assay.hosts import fleet as state
    from assay.hosts.fleet import FleetFolder, FleetState
    from assay.hosts.slurm.script import array_script

    array_script(job, 1, 1, None)  # refuses invalid options before anything is created
    fleet = FleetState(
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        job=job,
        tries=flags.attempts or MAX_ATTEMPTS,
        at_once=flags.max_concurrent,
        posts=state.initial_node_states(nodes_to_measure),
    )
    folder = FleetFolder.create(fleet)
    able = [node for node, why in nodes_to_measure.items() if why is None]
    click.echo(f"Fleet {show.short_path(folder.path)}: {state.join_nodes(able)}", err=True)
    return _run_fleet(folder, as_json=flags.as_json)


def _run_fleet(folder: FleetFolder, *, as_json: bool) -> int:
    """Measure what is missing, and show what there is; return the exit code."""
    from assay.hosts.fleet import measure_fleet
    from assay.hosts.slurm.array import SlurmArrays

    try:
        measure_fleet(folder, SlurmArrays(), lambda line: click.echo(line, err=True))
    except (StopRequested, EndedEarly, MachineCannot) as error:
        whole, every = sum(post.state == "done" for post in folder.fleet.posts), len(folder.fleet.posts)
        way_on = f"{whole} of {every} nodes measured. `assay resume {show.short_path(folder.path)}` resumes"
        raise type(error)(f"{str(error).rstrip('.')}; {way_on}.") from None
    return show_fleet(folder, as_json=as_json)


def report_fleet(path: Path, *, as_json: bool) -> int:
    """Show the state of a fleet; nothing is measured."""
    from assay.hosts.fleet import FleetFolder

    folder = FleetFolder.open(path)
    folder.fleet = folder.read_state()
    return show_fleet(folder, as_json=as_json)


def show_fleet(folder: FleetFolder, *, as_json: bool) -> int:
    """Show a fleet; return its exit code."""
    code, where = folder.exit_code, show.short_path(folder.path)
    data = {**folder.fleet.as_json(), "folder": str(folder.path), "exit_code": code}
    show.print_result(data, fleet_page(folder.fleet, begun=folder.nodes_with_records()), as_json=as_json)
    if as_json:
        return code
    if code not in {0, BadInput.exit_code}:
        click.echo(f"`assay resume {where}` measures what is missing.", err=True)
    click.echo(f"Fleet: {where}", err=True)
    return code


def fleet_page(fleet: FleetState, begun: list[str]) -> Page:
    """Return the state of a fleet as a page; ``begun`` are the nodes with records."""
    from assay.hosts import fleet as state

    unfinished = state.nodes_without_result(fleet)
    elements: list[Table | Text] = [_progress_table(fleet, begun)]
    if unfinished:
        elements.append(_missing_table(unfinished))
    elements += [
        Text(
            text=f"{card.uuid} ({card.model}) was found on "
            f"{' and '.join(sighting.node for sighting in card.locations)}: "
            "it was moved, or these are one machine.",
            tone="unsure",
        )
        for card in state.moved_gpus(fleet)
    ]
    return Page(
        title="Fleet",
        lead=state.fleet_headline(fleet),
        lead_tone="unsure" if unfinished else "good",
        sections=(Section(title="Nodes", elements=tuple(elements)),),
        origin="fake" if any(card.origin == "fake" for card in fleet.gpus) else "real",
    )


def _progress_table(fleet: FleetState, begun: list[str]) -> Table:
    """Return nodes and GPUs by how far they are."""
    groups: dict[str, list[str]] = {"measured": [], "in part": [], "missing": []}
    for post in fleet.posts:
        state_name = "measured" if post.state == "done" else "in part" if post.node in begun else "missing"
        groups[state_name].append(post.node)
    gpus = {
        name: sum(any(sighting.node in nodes for sighting in card.locations) for card in fleet.gpus)
        for name, nodes in groups.items()
    }
    return Table(
        title="How far they are",
        columns=(Column(title=""), Column(title="nodes", numeric=True), Column(title="GPUs", numeric=True)),
        rows=tuple(
            (name, str(len(nodes)), None if name == "missing" else str(gpus[name]))
            for name, nodes in groups.items()
            if nodes
        ),
    )


def _missing_table(posts: tuple[NodeState, ...]) -> Table:
    return Table(
        title="Without a whole result",
        columns=(Column(title="node"), Column(title="tries", numeric=True), Column(title="why"), Column(title="files")),
        rows=tuple((post.node, str(post.attempts), post.reason, post.files) for post in posts),
    )
