"""``assay scaling analyse``: figures, a report and a gate from existing results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Page
    from assay.experiments.scaling.result_rows import ScalingFigures
    from assay.experiments.scaling.saved_results import JudgedRow

SHEETS = {
    "scaling": "scaling_efficiency_analysis.png",
    "memory": "memory_analysis.png",
    "heat_maps": "performance_heatmaps.png",
}
REPORT = "scaling_analysis_report.txt"
WIDTH = 110


class ScalingAnalyseFlags(cli.UnsureFlags, cli.JsonFlags):
    """What `assay scaling analyse` can be asked for."""

    results: Path | None = cli.argument("[RESULTS]")
    results_dir: Path | None = cli.flag(hidden=True)
    min_efficiency: float | None = cli.decide_flag(gt=0, lt=1, help="Exit with code 1 below this efficiency.")
    output: Path | None = cli.output_flag("--output -o", metavar="DIR", shown="RESULTS", help="Folder of the files.")


@cli.verb("scaling analyse", ScalingAnalyseFlags)
def analyse_scaling(flags: ScalingAnalyseFlags) -> int:
    """Report on results of `assay scaling run` or of the older tool, and apply a gate.

    RESULTS is a run folder, a folder of runs, a latest.json, or a folder of such JSON files; by default runs/latest.

        assay scaling analyse runs/latest
        assay scaling analyse benchmark_results --min-efficiency 0.7 --unsure fail
    """
    from assay.experiments.scaling.result_rows import draw_figures
    from assay.experiments.scaling.saved_results import (
        REQUIRED_EFFICIENCY,
        build_findings,
        build_page,
        combine_verdicts,
        judge_rows,
        read_sources,
    )

    if flags.unsure == "fail" and flags.min_efficiency is None:
        raise BadInput("--unsure fail needs --min-efficiency.")
    results, results_dir = flags.results, flags.results_dir
    if results is not None and results_dir is not None:
        raise BadInput(f"RESULTS ({results}) and --results-dir ({results_dir}) are the same option; give one.")
    path = results_dir or results or Path("runs/latest")
    sources = read_sources(path)
    least = flags.min_efficiency or REQUIRED_EFFICIENCY
    all_findings, drawings = build_findings(sources, least), draw_figures(sources.rows)
    shown = build_page(sources, all_findings, drawings, show.short_path(path.absolute()), least)
    folder = flags.output or (path.parent if path.is_file() else path)
    files = write_sheets(shown, drawings, folder)
    data = {**all_findings.as_json(), "unusable": list(sources.unusable), "files": [str(file) for file in files]}
    show.print_result(data, show.text_only_page(shown), as_json=flags.as_json)
    click.echo(f"Written: {', '.join(show.short_path(file) for file in files)}", err=True)
    if flags.min_efficiency is not None:
        rows = judge_rows(sources.rows, least)
        refuse_undecidable_gate(rows)
        gate = f"The gate of {100 * least:.0f} % efficiency"
        click.echo(flags.apply_gate(gate, combine_verdicts(rows), all_findings.headline), err=True)
    return 0


def write_sheets(page: Page, drawings: ScalingFigures, folder: Path) -> list[Path]:
    """Write the three sheets and the report as text; return where they are."""
    import io

    from rich.console import Console

    from assay.core.files import replace_atomically, translate_os_errors
    from assay.experiments.scaling.result_rows import draw_empty_figure
    from assay.reports.figures import to_panels
    from assay.reports.terminal import print_page

    with translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, file in SHEETS.items():
        words = name.replace("_", " ").capitalize()
        figures = getattr(drawings, name) or (draw_empty_figure(words, name),)
        replace_atomically(folder / file, to_panels(figures))
        files.append(folder / file)
    buffer = io.StringIO()
    print_page(show.text_only_page(page), Console(file=buffer, width=WIDTH, color_system=None))
    replace_atomically(folder / REPORT, buffer.getvalue().encode())
    return [*files, folder / REPORT]


def refuse_undecidable_gate(per_rate: Sequence[JudgedRow]) -> None:
    """Refuse a gate over results of which none could be judged, whatever their efficiency is.

    Raises:
        BadInput: No shape of several ranks has an interval over several starts.
    """
    from assay.experiments.scaling.saved_results import can_decide

    if not can_decide(per_rate):
        reasons = dict.fromkeys(one.reason for one in per_rate if one.reason is not None)
        why = "; ".join(reasons) or "nothing was measured with more than one rank"
        raise BadInput(f"--min-efficiency has nothing to decide on: {why}.")
