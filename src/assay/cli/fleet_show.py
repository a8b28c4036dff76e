"""A fleet put before the user: how many nodes and GPUs, who is missing and why, and cards that turned up twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from assay.core.errors import BadInput
from assay.core.page import Column, Page, Section, Table, Text
from assay.hosts.fleet import book

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.fleet.folder import FleetFolder
    from assay.hosts.fleet.model import Fleet, Post


def report(path: Path, *, as_json: bool) -> int:
    """Gather what a fleet has left, and show it; nothing is measured."""
    from assay.hosts.fleet.folder import FleetFolder

    folder = FleetFolder.open(path)
    folder.fleet = folder.found()
    return show(folder, as_json=as_json)


def show(folder: FleetFolder, *, as_json: bool) -> int:
    """Show a fleet; return its exit code."""
    from assay.cli import show as usual
    from assay.reports.terminal import print_page

    code = folder.exit_code
    if as_json:
        data = {**folder.fleet.as_json(), "folder": str(folder.path), "exit_code": code}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return code
    print_page(page(folder.fleet, begun=folder.begun()), usual.console(stderr=False))
    where = usual.short(folder.path)
    if code not in {0, BadInput.exit_code}:
        click.echo(f"`assay resume {where}` measures what is missing.", err=True)
    click.echo(f"Fleet: {where}", err=True)
    return code


def page(fleet: Fleet, begun: list[str]) -> Page:
    """Return what there is to see of a fleet."""
    unfinished = book.missing(fleet)
    elements: list[Table | Text] = [_counts(fleet, begun)]
    if unfinished:
        elements.append(_missing(unfinished))
    elements += [
        Text(
            text=f"{card.uuid} ({card.model}) was found on {' and '.join(sighting.node for sighting in card.seen)}: "
            "it was moved, or these are one machine.",
            tone="unsure",
        )
        for card in book.moved(fleet)
    ]
    return Page(
        title="Fleet",
        lead=book.headline(fleet),
        lead_tone="unsure" if unfinished else "good",
        sections=(Section(title="Nodes", elements=tuple(elements)),),
        origin="fake" if any(card.origin == "fake" for card in fleet.gpus) else "real",
    )


def _counts(fleet: Fleet, begun: list[str]) -> Table:
    """Return nodes and GPUs by how far they are."""
    groups = {
        "measured": [post.node for post in fleet.posts if post.state == "done"],
        "in part": [post.node for post in fleet.posts if post.state != "done" and post.node in begun],
        "missing": [post.node for post in fleet.posts if post.state != "done" and post.node not in begun],
    }
    rows = [
        (name, len(nodes), sum(any(sighting.node in nodes for sighting in card.seen) for card in fleet.gpus))
        for name, nodes in groups.items()
        if nodes
    ]
    return Table(
        title="How far they are",
        columns=(Column(title=""), Column(title="nodes", numeric=True), Column(title="GPUs", numeric=True)),
        rows=tuple((name, str(nodes), str(gpus) if name != "missing" else None) for name, nodes, gpus in rows),
    )


def _missing(posts: tuple[Post, ...]) -> Table:
    return Table(
        title="Without a whole result",
        columns=(Column(title="node"), Column(title="tries", numeric=True), Column(title="why"), Column(title="files")),
        rows=tuple((post.node, str(post.attempts), post.reason, post.files) for post in posts),
    )
