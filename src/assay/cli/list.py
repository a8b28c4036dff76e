"""``assay list``: what can be measured, on what, and what has been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import verb

if TYPE_CHECKING:
    from rich.table import Table

KINDS = ("workloads", "devices", "runs")


@verb("list")
@click.argument("kinds", type=click.Choice(KINDS), nargs=-1)
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(kinds: tuple[str, ...], output_dir: Path, as_json: bool) -> int:
    """Show workloads, devices and runs; name one kind to see only that."""
    from assay.cli import show

    kinds_to_show = kinds or KINDS
    rows_by_kind = {kind: _rows(kind, output_dir) for kind in kinds_to_show}
    if as_json:
        click.echo(json.dumps(rows_by_kind, indent=2, ensure_ascii=False))
        return 0
    screen = show.console(stderr=False)
    for kind, rows in rows_by_kind.items():
        screen.print(_table(kind, rows) if rows else f"No {kind} yet.")
    return 0


def _rows(kind: str, output_dir: Path) -> list[dict[str, Any]]:
    if kind == "runs":
        return runs(output_dir)
    return devices() if kind == "devices" else workloads()


def workloads() -> list[dict[str, Any]]:
    """Return every registered workload with its parameters on this machine; one that cannot be loaded says why."""
    from assay.machine.detect import detect
    from assay.workloads.registry import known

    usual = "cuda" if detect().gpus else "cpu"
    rows: list[dict[str, Any]] = []
    for key, entry in known().items():
        try:
            workload = entry.load()
        except ImportError as error:
            rows.append({"workload": key, "parameters": None, "configurations": None, "about": f"not here: {error}"})
            continue
        params = workload.defaults(usual if usual in workload.device_kinds else min(workload.device_kinds))
        rows.append(
            {
                "workload": key,
                "parameters": " ".join(f"{name}={value}" for name, value in params.items()),
                "configurations": len(workload.configs(params)),
                "about": workload.summary,
            }
        )
    return rows


def devices() -> list[dict[str, Any]]:
    """Return the GPUs and the groups of cores that runs may name."""
    from assay.isolation.allot import allot, device_names
    from assay.isolation.targets import targets
    from assay.machine.detect import detect

    machine = detect()
    gpus = {name: target.title for name, target in targets(machine).items()}
    rows: list[dict[str, Any]] = []
    for name in device_names(machine):
        cpus = None if name in gpus else allot(machine, (name,), "cpu").of(name).cpus
        rows.append({"device": name, "is": gpus.get(name) or f"cores {','.join(map(str, cpus or ()))}"})
    return rows


def runs(output_dir: Path) -> list[dict[str, Any]]:
    """Return the runs under a folder, oldest first."""
    from assay.core.errors import BadInput
    from assay.store.runs import RunFolder, run_paths

    rows: list[dict[str, Any]] = []
    for path in run_paths(output_dir):
        try:
            folder = RunFolder.open(path)
            states = [record.status for record in folder.counting()]
        except BadInput as error:
            rows.append({"run": str(path), "begun": None, "trials": None, "failed": None, "state": str(error)})
            continue
        rows.append(
            {
                "run": str(path),
                "begun": folder.plan.created_at,
                "trials": len(states),
                "failed": states.count("failed"),
                "state": "finished" if (path / "findings.json").exists() else "unfinished",
            }
        )
    return rows


def _table(kind: str, rows: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=kind.capitalize(), box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("–" if value is None else escape(str(value)) for value in row.values()))
    return table
