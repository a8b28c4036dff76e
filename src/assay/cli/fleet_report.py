"""The state of a fleet: how many nodes and GPUs are done, which are missing and why.

Cards that were found twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from assay.core.errors import BadInput
from assay.core.page import Column, Page, Section, Table, Text
from assay.hosts import fleet as state

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.fleet import FleetFolder, FleetState, NodeState


def report_fleet(path: Path, *, as_json: bool) -> int:
    """Gather what a fleet has left, and show it; nothing is measured."""
    from assay.hosts.fleet import FleetFolder

    folder = FleetFolder.open(path)
    folder.fleet = folder.read_state()
    return show_fleet(folder, as_json=as_json)


def show_fleet(folder: FleetFolder, *, as_json: bool) -> int:
    """Show a fleet; return its exit code."""
    from assay.cli import show as usual
    from assay.reports.terminal import print_page

    code = folder.exit_code
    if as_json:
        data = {**folder.fleet.as_json(), "folder": str(folder.path), "exit_code": code}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return code
    print_page(fleet_page(folder.fleet, begun=folder.nodes_with_records()), usual.console(stderr=False))
    where = usual.short_path(folder.path)
    if code not in {0, BadInput.exit_code}:
        click.echo(f"`assay resume {where}` measures what is missing.", err=True)
    click.echo(f"Fleet: {where}", err=True)
    return code


def fleet_page(fleet: FleetState, begun: list[str]) -> Page:
    """Return what there is to see of a fleet."""
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
    groups = {
        "measured": [post.node for post in fleet.posts if post.state == "done"],
        "in part": [post.node for post in fleet.posts if post.state != "done" and post.node in begun],
        "missing": [post.node for post in fleet.posts if post.state != "done" and post.node not in begun],
    }
    rows = [
        (name, len(nodes), sum(any(sighting.node in nodes for sighting in card.locations) for card in fleet.gpus))
        for name, nodes in groups.items()
        if nodes
    ]
    return Table(
        title="How far they are",
        columns=(Column(title=""), Column(title="nodes", numeric=True), Column(title="GPUs", numeric=True)),
        rows=tuple((name, str(nodes), str(gpus) if name != "missing" else None) for name, nodes, gpus in rows),
    )


def _missing_table(posts: tuple[NodeState, ...]) -> Table:
    return Table(
        title="Without a whole result",
        columns=(Column(title="node"), Column(title="tries", numeric=True), Column(title="why"), Column(title="files")),
        rows=tuple((post.node, str(post.attempts), post.reason, post.files) for post in posts),
    )
