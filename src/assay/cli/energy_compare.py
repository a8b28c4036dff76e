"""``assay energy compare``.

Tokens per second against joules over models, batch sizes and placements, with the Pareto front.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.flags import JsonFlags, argument, flag, verb
from assay.core.errors import BadInput
from assay.core.values import SCHEMA_VERSION
from assay.experiments.energy.compare import ComparedBy, ComparedPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Page
    from assay.experiments.energy.compare import ComparedPoint

SUFFIXES = (".html", ".md", ".png", ".json")


class EnergyCompareFlags(JsonFlags):
    """What `assay energy compare` can be asked for."""

    runs: tuple[Path, ...] = argument("RUN...", default=())
    by: ComparedBy | None = flag(
        metavar="FACTOR",
        shown="what differs",
        help="Compare the values of model, batch, placement, mode, gpu or run.",
    )
    of: ComparedPhase | None = flag(
        metavar="PHASE",
        shown="decode; requests if a server is included",
        help="Tokens of: decode, prefill or requests.",
    )
    outputs: tuple[Path, ...] = flag(
        "--output -o",
        default=(),
        metavar="PATH",
        help="Write a .html, .md, .png or .json file, or a folder with all of them; repeatable.",
    )


@verb("energy compare", EnergyCompareFlags)
def compare_energy(flags: EnergyCompareFlags) -> int:
    """Compare tokens/s and J/token across cells of `assay energy run`, with the Pareto front.

    RUN is a run folder, a folder of such folders, an energy.json, or a .csv file with appended rows; by default
    runs/latest. A cell is dominated only if another is faster and uses less energy, both beyond their intervals.

        assay energy compare runs/latest
        assay energy compare llama-1b.csv llama-8b.csv --by model -o pareto.png
        assay energy compare runs/one-gpu runs/four-gpus --by placement -o out.html
    """
    from assay.cli import show
    from assay.cli.scaling_analyse import text_only_page
    from assay.experiments.energy.compare import (
        build_points,
        choose_compared_by,
        choose_phase,
        comparison_page,
        read_sources,
    )
    from assay.reports.terminal import print_page

    for path in flags.outputs:
        if path.suffix and path.suffix.lower() not in SUFFIXES:
            raise BadInput(f"--output {path} must end in {', '.join(SUFFIXES)}, or be a folder.")
    sources = read_sources(flags.runs or (Path("runs/latest"),))
    of: ComparedPhase = flags.of or choose_phase(sources.rows)
    cells = build_points(sources.rows, of)
    by: ComparedBy = flags.by or choose_compared_by(cells)
    notes = (*sources.skipped, *sources.unusable)
    report_page = comparison_page(cells, of, by, notes=notes)
    data = comparison_data(cells, of, by, report_page, notes)
    files = [file for path in flags.outputs for file in write_comparison(report_page, data, path)]
    if flags.as_json:
        click.echo(json.dumps({**data, "files": [str(file) for file in files]}, indent=2, ensure_ascii=False))
    else:
        print_page(text_only_page(report_page), show.console(stderr=False))
    screen = show.console(stderr=True)
    if files:
        screen.print(f"Written: {', '.join(show.short_path(file) for file in files)}", markup=False, soft_wrap=True)
    elif report_page.figures and not flags.as_json:
        screen.print("`-o pareto.png` draws the Pareto figure, `-o report.html` all of it.", markup=False)
    return 0


def comparison_data(
    points: Sequence[ComparedPoint], of: ComparedPhase, by: ComparedBy, page: Page, notes: Sequence[str]
) -> dict[str, Any]:
    """Return a comparison as plain data."""
    from assay.experiments.energy.compare import compute_changes, group_comparable, rank_points

    rows = []
    for part in group_comparable(points).values():
        for point, standing, standing_per_rate in zip(
            part, rank_points(part), rank_points(part, per_sequence=True), strict=True
        ):
            states = {
                "front": standing and standing.state,
                "front_per_sequence": standing_per_rate and standing_per_rate.state,
            }
            speeds = {"rate_per_sequence": point.rate_per_sequence and dataclasses.asdict(point.rate_per_sequence)}
            rows.append({**dataclasses.asdict(point), **speeds, **states})
    return {
        "schema": SCHEMA_VERSION,
        "headline": page.lead,
        "of": of,
        "by": by,
        "origin": page.origin,
        "points": rows,
        "changes": [dataclasses.asdict(change) for change in compute_changes(points, by)],
        "notes": list(notes),
    }


def write_comparison(page: Page, data: dict[str, Any], path: Path) -> list[Path]:
    """Write a page as its file's name says; a name without an ending is a folder of all."""
    from assay.core.files import replace_atomically, translate_os_errors
    from assay.reports.documents import to_html, to_markdown, write_report
    from assay.reports.figures import to_panels

    kind = path.suffix.lower()
    if not kind:
        return list(write_report(page, path))
    with translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".png":
        if not page.figures:
            raise BadInput(f"There is nothing to draw in {path}: {page.lead}")
        replace_atomically(path, to_panels(page.figures, origin=page.origin))
    elif kind == ".html":
        replace_atomically(path, to_html(page).encode())
    elif kind == ".md":
        replace_atomically(path, to_markdown(page, {}).encode())
    else:
        replace_atomically(path, json.dumps(data, indent=2, ensure_ascii=False).encode() + b"\n")
    return [path]
