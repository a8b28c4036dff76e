"""Consoles, paths as the user would type them, and how a result is displayed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.core.errors import StopRequested
from assay.core.values import SCHEMA_VERSION
from assay.reports.progress import LiveProgress, PlainProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import JsonValue
    from rich.console import Console

    from assay.core.page import Page
    from assay.experiments.base import RunResult


def console(*, stderr: bool) -> Console:
    """Return a console for results (stdout) or for everything else (stderr)."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


@contextmanager
def progress_display() -> Iterator[PlainProgress]:
    """Show progress on stderr: a live line on a terminal, plain lines elsewhere."""
    screen = console(stderr=True)
    shown = LiveProgress(screen) if screen.is_terminal else PlainProgress(screen)
    try:
        yield shown
    finally:
        shown.close()


def print_json(data: object) -> None:
    """Print plain data as JSON."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_result(data: object, page: Page, *, as_json: bool) -> None:
    """Print a result as JSON, or as a page."""
    from assay.reports.terminal import print_page

    if as_json:
        print_json(data)
    else:
        print_page(page, console(stderr=False))


def short_path(path: Path) -> str:
    """Return a path as the user would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if here != Path("/") and path.is_relative_to(here) else str(path)


def show_result(findings: RunResult, folder: Path, *, as_json: bool) -> int:
    """Write the report's files, show the result, and return the exit code; if interrupted, say that nothing is lost."""
    try:
        return _show_result(findings, folder, as_json=as_json)
    except StopRequested as stopped:
        way_on = f"`assay report {short_path(folder)}` draws it"
        raise StopRequested(
            f"{stopped} while the report was drawn; everything measured is kept, and {way_on}."
        ) from None


def _show_result(findings: RunResult, folder: Path, *, as_json: bool) -> int:
    from assay.reports.documents import write_report

    write_report(findings.page, folder)
    print_result(result_data(findings, folder), brief_page(findings), as_json=as_json)
    if as_json:
        return findings.exit_code
    if any(record.status == "failed" and not record.invalid_request for record in findings.records):
        click.echo(f"Some trials failed; `assay resume {short_path(folder)}` tries them again.", err=True)
    elif findings.untuned:
        click.echo(f"The tuner failed in all of its {findings.untuned} tries; the times are kept.", err=True)
    for gpu in dict.fromkeys(gpu.gpu for record in findings.records for gpu in record.lost_gpus):
        click.echo(f"GPU {gpu} was lost while it was metered: the result is partial.", err=True)
    click.echo(f"Report: {short_path(folder)}/report.html", err=True)
    return findings.exit_code


def brief_page(findings: RunResult) -> Page:
    """Return what fits a screen: the answer, the tables that carry it, and what went wrong."""
    sections = tuple(section for section in findings.page.sections if section.brief)
    return findings.page.model_copy(update={"sections": sections, "facts": ()})


def result_data(findings: RunResult, folder: Path | None) -> dict[str, JsonValue]:
    """Return a result as plain JSON data."""
    return {
        "schema": SCHEMA_VERSION,
        "run": None if folder is None else str(folder),
        "exit_code": findings.exit_code,
        "headline": findings.findings.headline,
        "quality": None if findings.findings.quality is None else findings.findings.quality.as_json(),
        "findings": [finding.as_json() for finding in findings.findings.findings],
        "records": [record.as_json() for record in findings.records],
    }


def text_only_page(page: Page) -> Page:
    """Return what of a page is written rather than drawn."""
    from assay.core.page import Table, Text

    sections = (
        section.model_copy(update={"elements": tuple(e for e in section.elements if isinstance(e, Text | Table))})
        for section in page.sections
    )
    return page.model_copy(update={"sections": tuple(section for section in sections if section.elements)})
