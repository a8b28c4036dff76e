"""``assay power budget``: which caps give the most work under so many watts, from sweeps that are there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import Fraction, verb

if TYPE_CHECKING:
    from assay.experiments.power.budget.plan import Plan

FOLDER = "budget"


class Watts(click.FloatRange):
    """So many watts: a number that is one, and finite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the watts."""
        watts = float(super().convert(value, param, ctx))
        if not math.isfinite(watts):
            self.fail(f"{value} is no number of watts.", param, ctx)
        return watts


@verb("budget")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--watts", type=Watts(0, min_open=True), required=True, help="Of the whole node or rack.")
@click.option("--overhead", "overhead_w", type=Watts(0), default=0.0, help="Watts of it that are not the GPUs'.")
@click.option("--min-share", type=Fraction(), help="Of its full rate every GPU keeps so much.")
@click.option("--workload", help="Which one, where several were swept.")
@click.option(
    "--output", "--output-dir", type=click.Path(path_type=Path), help="Where the report goes.  [default: by the runs]"
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(runs: tuple[Path, ...], **given: Any) -> int:
    """Say which caps give the most work under a power budget. Nothing is set.

    RUN is a run folder of `assay power sweep --limits`, a folder of such folders, or a .jsonl or .csv file of their
    rows; by default runs/latest. GPUs that were only characterized get the middle curve of their model.

    \b
    assay power budget --watts 2400 runs/latest
    assay power budget --watts 10200 --overhead 1800 --min-share 70% rack7
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import show
    from assay.cli.power_variability import beside
    from assay.cli.scaling_analyse import without_figures
    from assay.core.errors import BadInput
    from assay.experiments.power.budget import words
    from assay.experiments.power.budget.curves import curves_of, swept
    from assay.experiments.power.budget.page import findings_of, page
    from assay.experiments.power.budget.plan import plan_of
    from assay.experiments.power.row_files import gather, without_steps
    from assay.experiments.power.rows import GPUS_FILE, SWEEP_FILE, GpuRow, SweepRow
    from assay.reports.terminal import print_page
    from assay.reports.write import write_report

    paths = runs or (Path("runs/latest"),)
    others = gather([path for path in paths if path.is_dir() or without_steps(path)], GPUS_FILE, GpuRow)
    sweeps = gather([path for path in paths if not without_steps(path)], SWEEP_FILE, SweepRow)
    if not sweeps.rows:
        raise BadInput(f"Nothing can be used: {'; '.join(sweeps.unusable) or 'there is no row of a sweep'}.")
    work, rows = swept(sweeps.rows, given["workload"])
    curves, notes = curves_of(rows, others.rows)
    plan = plan_of(curves, given["watts"], given["overhead_w"], given["min_share"])
    findings = findings_of(plan, work)
    shown = page(plan, work, notes=(*sweeps.notes, *notes), unusable=sweeps.unusable)
    folder = given["output"] or beside(paths, FOLDER)
    written_files = write_report(shown, folder)
    if given["as_json"]:
        data = {**findings.as_json(), **as_data(plan), "unusable": sweeps.unusable, "notes": [*sweeps.notes, *notes]}
        files = [str(file) for file in written_files]
        click.echo(json.dumps({**data, "files": files}, indent=2, ensure_ascii=False))
    else:
        brief = without_figures(shown)
        sections = tuple(section for section in brief.sections if section.title != "Commands")
        print_page(brief.model_copy(update={"sections": sections}), show.console(stderr=False))
        if plan.binds:
            click.echo(f"\n# Nothing was set. Whoever may, runs:\n{words.script(plan)}")
    show.console(stderr=True).print(f"Report: {show.short(folder)}/report.html", markup=False, soft_wrap=True)
    return 0


def as_data(plan: Plan) -> dict[str, object]:
    """Return the caps as plain data."""
    from assay.experiments.power.budget import words

    return {
        "binds": plan.binds,
        "least_w": plan.least_w,
        "needed_w": plan.needed_w + plan.overhead_w,
        "loss": vars(plan.loss),
        "against_equal": None if plan.against_equal is None else vars(plan.against_equal),
        "caps": [
            {
                **vars(share.curve.card),
                "cap_w": share.cap_w if plan.binds else None,
                "counted_w": share.watts,
                "calls_per_s": share.rate,
                "share": share.share,
                "own_curve": share.curve.own,
            }
            for share in plan.shares
        ],
        "commands": [line for _, line in words.commands(plan)],
    }
