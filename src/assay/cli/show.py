"""Consoles, paths as the user would type them, and how a result is displayed."""

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
    from assay.runner import RunResult


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


def short_path(path: Path) -> str:
    """Return a path as the user would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if here != Path("/") and path.is_relative_to(here) else str(path)


def show_and_save_result(findings: RunResult, folder: Path, *, as_json: bool) -> int:
    """Write the report's files, show the result, and return the exit code."""
    from assay.reports.html import write_report
    from assay.reports.terminal import print_page

    write_report(findings.page, folder)
    if as_json:
        click.echo(json.dumps(result_data(findings, folder), indent=2, ensure_ascii=False))
        return findings.exit_code
    print_page(brief_page(findings), console(stderr=False))
    screen = console(stderr=True)
    if any(record.status == "failed" and not record.invalid_request for record in findings.records):
        screen.print(f"Some trials failed; `assay resume {short_path(folder)}` tries them again.", markup=False)
    elif findings.untuned:
        screen.print(f"The tuner failed in all of its {findings.untuned} tries; the times are kept.", markup=False)
    lost = dict.fromkeys(gpu.gpu for record in findings.records for gpu in record.lost_gpus)
    for gpu in lost:
        screen.print(f"GPU {gpu} was lost while it was metered: the result is partial.", markup=False)
    screen.print(f"Report: {short_path(folder)}/report.html", markup=False, soft_wrap=True)
    return findings.exit_code


def show_transient_result(findings: RunResult, *, as_json: bool) -> int:
    """Show a result of which no file is left, and return the exit code."""
    from assay.reports.terminal import print_page

    if as_json:
        click.echo(json.dumps(result_data(findings, None), indent=2, ensure_ascii=False))
    else:
        print_page(brief_page(findings), console(stderr=False))
    return findings.exit_code


def brief_page(findings: RunResult) -> Page:
    """Return what fits a screen: the answer, the tables that carry it, and what went wrong."""
    sections = [
        s for s in findings.page.sections if s.title in {"Results", "What the command reported", "What went wrong"}
    ]
    return findings.page.model_copy(update={"sections": tuple(sections), "facts": ()})


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
