"""Consoles, and how a result is put before the user."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.core.values import SCHEMA_VERSION
from assay.reports.progress import LiveProgress, PlainProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import JsonValue
    from rich.console import Console

    from assay.core.page import Page
    from assay.runner import Result


def console(*, stderr: bool) -> Console:
    """Return a console for results (stdout) or for everything else (stderr)."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


@contextmanager
def progress() -> Iterator[PlainProgress]:
    """Show progress on stderr: a live line on a terminal, plain lines elsewhere."""
    screen = console(stderr=True)
    shown = LiveProgress(screen) if screen.is_terminal else PlainProgress(screen)
    try:
        yield shown
    finally:
        shown.close()


def short(path: Path) -> str:
    """Return a path as the user would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if here != Path("/") and path.is_relative_to(here) else str(path)


def result(found: Result, folder: Path, *, as_json: bool) -> int:
    """Write the report's files, show the result, and return the exit code."""
    from assay.reports.terminal import print_page
    from assay.reports.write import write_report

    write_report(found.page, folder)
    if as_json:
        click.echo(json.dumps(as_data(found, folder), indent=2, ensure_ascii=False))
        return found.exit_code
    print_page(brief(found), console(stderr=False))
    screen = console(stderr=True)
    if any(record.status == "failed" and not record.senseless for record in found.records):
        screen.print(f"Some trials failed; `assay resume {short(folder)}` tries them again.", markup=False)
    elif found.untuned:
        screen.print(f"The tuner failed in all of its {found.untuned} tries; the times are kept.", markup=False)
    lost = dict.fromkeys(gpu.gpu for record in found.records for gpu in record.lost_gpus)
    for gpu in lost:
        screen.print(f"GPU {gpu} was lost while it was metered: the result is partial.", markup=False)
    screen.print(f"Report: {short(folder)}/report.html", markup=False, soft_wrap=True)
    return found.exit_code


def passing(found: Result, *, as_json: bool) -> int:
    """Show a result of which no file is left, and return the exit code."""
    from assay.reports.terminal import print_page

    if as_json:
        click.echo(json.dumps(as_data(found, None), indent=2, ensure_ascii=False))
    else:
        print_page(brief(found), console(stderr=False))
    return found.exit_code


def brief(found: Result) -> Page:
    """Return what fits a screen: the answer, the tables that carry it, and what went wrong."""
    sections = [
        s for s in found.page.sections if s.title in {"Results", "What the command reported", "What went wrong"}
    ]
    return found.page.model_copy(update={"sections": tuple(sections), "facts": ()})


def as_data(found: Result, folder: Path | None) -> dict[str, JsonValue]:
    """Return a result as plain JSON data."""
    return {
        "schema": SCHEMA_VERSION,
        "run": None if folder is None else str(folder),
        "exit_code": found.exit_code,
        "headline": found.findings.headline,
        "quality": None if found.findings.quality is None else found.findings.quality.as_json(),
        "findings": [finding.as_json() for finding in found.findings.findings],
        "records": [record.as_json() for record in found.records],
    }
