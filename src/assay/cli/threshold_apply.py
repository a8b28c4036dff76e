"""``assay threshold apply``: decide from results that are there, with another margin if need be, and write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Page
    from assay.experiments.threshold.answers import Answer
    from assay.experiments.threshold.saved import Saved


@verb("apply")
@click.argument("results", type=click.Path(path_type=Path))
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default="configs/base.yaml",
    show_default=True,
    help="The configuration to write.",
)
@click.option("--safety-margin", metavar="X", help="1.2, or conservative, balanced, aggressive.  [default: as it was]")
@click.option(
    "--decide-on", type=click.Choice(["call", "span", "cautious"]), help="By which time.  [default: as measured]"
)
@click.option(
    "--update-config/--dry-run", "update", default=True, help="Write it, or show only what would be written.  [write]"
)
@click.option("--json", "as_json", is_flag=True, help="What was decided as JSON on stdout.")
def command(**given: Any) -> int:
    """Decide from RESULTS, a run folder or a JSON file, and write the configuration. Nothing is measured.

    Exit code 1: the fast path was not found right, so that nothing is written.

    \b
    assay threshold apply runs/latest --config configs/base.yaml
    assay threshold apply results.json --safety-margin 1.5 --dry-run
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import threshold_after
    from assay.experiments.threshold.answers import answer
    from assay.experiments.threshold.older import results
    from assay.experiments.threshold.saved import read
    from assay.experiments.threshold.spec import margin_of

    margin = None if given["safety_margin"] is None else margin_of(given["safety_margin"])
    saved = read(given["results"])
    decide_on = given["decide_on"] or saved.decide_on
    answers = [answer(judgement, decide_on) for judgement in saved.judged(margin, decide_on)]
    threshold_after.has_keys(
        given["config"], {threshold_answer.key: threshold_answer.judged.threshold.never for threshold_answer in answers}
    )
    for note in notes(saved):
        click.echo(note, err=True)
    if given["as_json"]:
        identity = None if saved.results is None else saved.results.identity
        result = results(saved.device, answers, decide_on, saved.measured_at, identity)
        click.echo(json.dumps(result.as_json(), indent=2, ensure_ascii=False))
    else:
        shown(page(given["results"], saved, answers))
    refused = threshold_after.parity_says_no(answers)
    threshold_after.update(given["config"], answers, write=given["update"] and not refused, as_json=given["as_json"])
    return 1 if refused else 0


def notes(saved: Saved) -> list[str]:
    """Say what is to be known of the results: where they are from, and what they lack."""
    from assay.machine.detect import detect

    here = {gpu.name for gpu in detect().gpus}
    device = saved.device.device_name
    lines = [f"Measured on {device or 'a device that the file does not name'}."]
    if here and device not in here:
        lines.append(f"This machine has {', '.join(sorted(here))}: thresholds of another device may not hold here.")
    return [*lines, *saved.notes]


def page(path: Path, saved: Saved, answers: Sequence[Answer]) -> Page:
    """Return what to show."""
    from assay.core.page import Page, Section
    from assay.experiments.threshold.findings import headline
    from assay.experiments.threshold.page import why
    from assay.experiments.threshold.tables import answers_table

    return Page(
        title=f"assay threshold apply: {path}",
        lead=headline(answers),
        sections=(Section(title="Results", elements=(answers_table(answers), *why(answers))),),
        facts=(("measured", saved.measured_at or "not said"),),
    )


def shown(found: Page) -> None:
    """Print it."""
    from assay.cli.show import console
    from assay.reports.terminal import print_page

    print_page(found, console(stderr=False))
