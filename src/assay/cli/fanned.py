"""What came of a fan-out: a row for each kind of GPU, and what was measured side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from assay.core.durable import replace_atomically
from assay.core.errors import BadInput
from assay.core.page import Column, Page, Section, Table, Text
from assay.core.units import format_span
from assay.hosts.choosing import usd
from assay.hosts.fan_out import COMPARISON, REPORT

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.page import Cell, Tone
    from assay.experiments.comparing.result import Result
    from assay.hosts.fan_out import FanOut, Leg

COLUMNS = ("GPU", "host", "$ an hour", "priced", "state", "exit code", "took", "about", "run, or why not")
MINIMUM_EFFECT = 0.02
TONES: dict[str, Tone] = {"done": "good", "failed": "bad", "refused": "unsure", "waits": "unsure"}


def shown(whole: FanOut, folder: Path, *, verb: str, as_json: bool) -> None:
    """Compare what was measured, write it into the folder, and show it."""
    from assay.cli import show
    from assay.reports.markdown import to_markdown
    from assay.reports.terminal import print_page

    result, comparison_page, reason = compared(whole, folder)
    page = Page(
        title=f"assay {verb} on {', '.join(leg.asked for leg in whole.legs)}",
        lead=_lead(whole),
        sections=(
            Section(title="Machines", elements=(_machines(whole),)),
            *(() if comparison_page is None else comparison_page.sections),
            *(() if reason is None else (Section(title="What to know", elements=(Text(text=reason, tone="unsure"),)),)),
        ),
        origin="real" if result is None else result.origin,
    )
    replace_atomically(folder / REPORT, to_markdown(page, {}).encode())
    if result is not None:
        text = json.dumps(result.as_json(), indent=2, ensure_ascii=False)
        replace_atomically(folder / COMPARISON, f"{text}\n".encode())
    if as_json:
        data = {"folder": str(folder), "exit_code": whole.exit_code, **whole.as_json()}
        comparison = None if result is None else result.as_json()
        click.echo(json.dumps({**data, "comparison": comparison}, indent=2, ensure_ascii=False))
    else:
        print_page(page, show.console(stderr=False))
    show.console(stderr=True).print(f"Report: {show.short(folder)}/{REPORT}", markup=False, soft_wrap=True)


def compared(whole: FanOut, folder: Path) -> tuple[Result | None, Page | None, str | None]:
    """Return the comparison of the runs and its page; or why there is none, as a sentence."""
    from assay.experiments.comparing.aligning import aligned
    from assay.experiments.comparing.page import page
    from assay.experiments.comparing.result import compare
    from assay.experiments.comparing.sources import read

    with_runs = [(leg, folder / leg.run) for leg in whole.legs if leg.run is not None]
    if len(with_runs) < 2:
        return None, None, "There is nothing to compare: of the kinds of GPU, fewer than two were measured."
    try:
        table = aligned([replace(read(path), path=leg.asked) for leg, path in with_runs])
        result = compare(table, MINIMUM_EFFECT)
    except BadInput as error:
        return None, None, str(error)
    return result, page(table, result), None


def _lead(whole: FanOut) -> str:
    counts = {state: sum(leg.state == state for leg in whole.legs) for state in ("done", "failed", "refused")}
    counts_text = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    spent = [leg.usd_per_hour * leg.took_s / 3600 for leg in whole.legs if leg.usd_per_hour and leg.took_s]
    money = f"; about {usd(sum(spent))} at the quoted prices" if spent else ""
    return f"{len(whole.legs)} kinds of GPU: {counts_text}{money}."


def _machines(whole: FanOut) -> Table:
    return Table(
        title="What was rented, and what was not",
        columns=tuple(Column(title=title, numeric=title in {"$ an hour", "took", "about"}) for title in COLUMNS),
        rows=tuple(_row(leg) for leg in whole.legs),
        tones=tuple(TONES[leg.state] for leg in whole.legs),
        note="“About” is the quoted price times how long it took; `assay rentals` has what was billed, where told.",
    )


def _row(leg: Leg) -> tuple[Cell, ...]:
    cost = None if leg.usd_per_hour is None or leg.took_s is None else usd(leg.usd_per_hour * leg.took_s / 3600)
    return (
        leg.asked if leg.gpu in {None, leg.asked} else f"{leg.asked} ({leg.gpu})",
        leg.host,
        None if leg.usd_per_hour is None else f"${leg.usd_per_hour:.2f}",
        None if leg.host is None else leg.priced_on or "now",
        leg.state,
        leg.exit_code,
        None if leg.took_s is None else format_span(leg.took_s),
        cost,
        leg.reason or leg.run,
    )
