"""``assay scaling analyse``: figures, a report and a gate from results that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import Fraction, verb
from assay.core.errors import BadInput, GateSaysNo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Page
    from assay.core.results import Verdict
    from assay.experiments.scaling.drawn import Drawn
    from assay.experiments.scaling.judging import Judged

SHEETS = {
    "scaling": "scaling_efficiency_analysis.png",
    "memory": "memory_analysis.png",
    "heat_maps": "performance_heatmaps.png",
}
REPORT = "scaling_analysis_report.txt"
WIDTH = 110


@verb("analyse")
@click.argument("results", type=click.Path(path_type=Path), required=False)
@click.option("--results-dir", type=click.Path(path_type=Path), help="The same as RESULTS.")
@click.option("--output-dir", type=click.Path(path_type=Path), help="Where the files go.  [default: RESULTS]")
@click.option("--min-efficiency", "least", type=Fraction(), help="Exit with 1 where a shape surely has less.")
@click.option(
    "--unsure",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="What the gate does where it cannot be told.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(results: Path | None, results_dir: Path | None, **given: Any) -> int:
    """Draw and judge results of `assay scaling run`, or of the older tool.

    RESULTS is a run folder, a folder of runs, a latest.json, or a folder of such JSON files; by default runs/latest.

    \b
    assay scaling analyse runs/latest
    assay scaling analyse benchmark_results --min-efficiency 0.7 --unsure fail
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import show
    from assay.experiments.scaling.analysed import ENOUGH, findings, page
    from assay.experiments.scaling.drawn import figures
    from assay.experiments.scaling.judging import judged, verdict_of
    from assay.experiments.scaling.sources import read
    from assay.reports.terminal import print_page

    if given["unsure"] == "fail" and given["least"] is None:
        raise BadInput("--unsure fail is of the gate, and there is none without --min-efficiency.")
    if results is not None and results_dir is not None:
        raise BadInput(f"RESULTS ({results}) and --results-dir ({results_dir}) mean the same; say one of the two.")
    path = results_dir or results or Path("runs/latest")
    sources = read(path)
    least = given["least"] or ENOUGH
    all_findings, drawings = findings(sources, least), figures(sources.rows)
    shown = page(sources, all_findings, drawings, show.short(path.absolute()), least)
    folder = given["output_dir"] or (path.parent if path.is_file() else path)
    files = write(shown, drawings, folder)
    if given["as_json"]:
        data = {**all_findings.as_json(), "unusable": list(sources.unusable), "files": [str(file) for file in files]}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        print_page(without_figures(shown), show.console(stderr=False))
    screen = show.console(stderr=True)
    screen.print(f"Written: {', '.join(show.short(file) for file in files)}", markup=False, soft_wrap=True)
    if given["least"] is not None:
        refuse_blind(judged(sources.rows, least))
        answer(verdict_of(judged(sources.rows, least)), least, all_findings.headline, strict=given["unsure"] == "fail")
    return 0


def write(page: Page, drawn: Drawn, folder: Path) -> list[Path]:
    """Write the three sheets and the report as text; return where they are."""
    import io

    from rich.console import Console

    from assay.core.durable import friendly_os_errors, replace_atomically
    from assay.experiments.scaling.drawn import not_known
    from assay.reports.panels import save_panels
    from assay.reports.terminal import print_page

    with friendly_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, file in SHEETS.items():
        words = name.replace("_", " ").capitalize()
        save_panels(getattr(drawn, name) or (not_known(words, name),), folder / file)
        files.append(folder / file)
    buffer = io.StringIO()
    print_page(without_figures(page), Console(file=buffer, width=WIDTH, color_system=None))
    replace_atomically(folder / REPORT, buffer.getvalue().encode())
    return [*files, folder / REPORT]


def without_figures(page: Page) -> Page:
    """Return what of a page is written rather than drawn."""
    from assay.core.page import Table, Text

    sections = (
        section.model_copy(update={"elements": tuple(e for e in section.elements if isinstance(e, Text | Table))})
        for section in page.sections
    )
    return page.model_copy(update={"sections": tuple(section for section in sections if section.elements)})


def refuse_blind(each: Sequence[Judged]) -> None:
    """Refuse a gate over results of which none could be judged, whatever their efficiency is.

    Raises:
        BadInput: No shape of several ranks has an interval over several starts.
    """
    from assay.experiments.scaling.judging import can_decide

    if not can_decide(each):
        reasons = dict.fromkeys(one.reason for one in each if one.reason is not None)
        why = "; ".join(reasons) or "nothing was measured with more than one rank"
        raise BadInput(f"--min-efficiency has nothing it could decide on: {why}.")


def answer(verdict: Verdict, least: float, headline: str, *, strict: bool) -> None:
    """Let the gate speak."""
    if verdict == "no" or (verdict == "unsure" and strict):
        outcome = "says no" if verdict == "no" else "cannot tell, and --unsure fail says that is not enough"
        raise GateSaysNo(f"The gate of {100 * least:.0f} % efficiency {outcome}. {headline}")
    outcome = "is passed" if verdict == "yes" else "cannot tell, and lets it pass; --unsure fail would not"
    click.echo(f"The gate of {100 * least:.0f} % efficiency {outcome}.", err=True)
