"""``assay compare``, ``assay contention variance`` and ``assay energy compare``: compare existing results.

With a baseline and optionally a regression gate; two groups of timings and tuner picks; tokens per second against
joules, with the Pareto front.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.cli.commands import OTHER
from assay.core.errors import BadInput
from assay.core.files import replace_atomically, translate_os_errors
from assay.core.values import SCHEMA_VERSION
from assay.experiments.energy.compare import ComparedBy, ComparedPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Page
    from assay.experiments.compare.report import ComparisonResult
    from assay.experiments.compare.tunings import TuningGroup
    from assay.experiments.energy.compare import ComparedPoint


class CompareFlags(cli.RegressionGateFlags, cli.UnsureFlags, cli.JsonFlags):
    """What `assay compare` can be asked for."""

    results: tuple[str, ...] = cli.argument("RESULT...", default=())
    quantities: tuple[str, ...] = cli.what_flag(
        "--quantity", default=(), metavar="NAME", help="Compare only this, such as call_us; repeatable."
    )
    minimum_effect: float = cli.min_effect_flag(0.02)
    output: cli.OutputFile | None = cli.output_flag("--output -o", metavar="FILE", help="Write the report as Markdown.")


@cli.verb("compare", CompareFlags)
def compare_with_first(flags: CompareFlags) -> int:
    """Compare results with the first one, quantity by quantity.

    A RESULT is a run folder of any experiment, its findings.json, what --json printed, a result of `assay threshold`,
    or a file of the older tools. Two numbers are comparable only if workload, implementation, parameters,
    configuration, dtype, schedule, isolation, conditions, method and device model match; otherwise the difference is
    reported. Results of different device models are shown without a verdict.

        assay compare runs/before runs/after
        assay compare runs/before runs/after --fail-on-regression --min-effect 5%
        assay compare t4.json l4.json a100.json -o gpus.md
    """
    from assay.experiments.compare.pairing import align_results
    from assay.experiments.compare.report import build_page, compare_results
    from assay.experiments.compare.sources import read_source
    from assay.reports.documents import to_markdown

    if flags.unsure == "fail" and not flags.fail_on_regression:
        raise BadInput("--unsure fail needs --fail-on-regression.")
    table = align_results([read_source(path) for path in result_paths(flags.results)], flags.quantities)
    result = compare_results(table, flags.minimum_effect)
    if flags.fail_on_regression:
        refuse_undecidable_gate(result)
    report_page = build_page(result)
    if flags.output is not None:
        replace_atomically(flags.output, to_markdown(report_page, {}).encode())
    show.print_result(result.as_json(), report_page, as_json=flags.as_json)
    if flags.output is not None:
        click.echo(f"Report: {show.short_path(flags.output)}", err=True)
    if flags.fail_on_regression:
        passed = flags.apply_gate("The gate", result.verdict, result.headline)
        skipped = "; ".join(item.text for item in result.not_comparable)
        click.echo(f"{passed}{skipped and f' Not compared: {skipped}.'}", err=True)
    return 0


def result_paths(words: Sequence[str]) -> list[Path]:
    """Return the paths that words name: two at least, and none of them twice."""
    from assay.experiments.compare.tunings import expand_paths

    paths, missing = expand_paths(words)
    if missing:
        raise BadInput(f"{'; '.join(missing)}.")
    if len(paths) == 1 and len(words) > 1:
        raise BadInput(f"{paths[0]} is named {len(words)} times; name two different results, the baseline first.")
    if len(paths) < 2:
        raise BadInput("Nothing to compare: name at least two results, the baseline first.")
    resolved = [path.resolve() for path in paths]
    duplicate = next((path for index, path in enumerate(paths) if resolved[index] in resolved[:index]), None)
    if duplicate is not None:
        raise BadInput(f"{duplicate} is the same as {paths[resolved.index(duplicate.resolve())]}, named before.")
    return paths


def refuse_undecidable_gate(result: ComparisonResult) -> None:
    """Refuse a gate that has nothing it could decide on.

    Raises:
        BadInput: No two numbers are comparable, or none of those that are could ever get a verdict.
    """
    if result.can_decide:
        return
    if not result.pairs:
        reason = "; ".join(item.text for item in result.not_comparable[:3]) or result.headline.rstrip(".")
        raise BadInput(f"The gate cannot compare anything: {reason}.")
    reasons = dict.fromkeys(pair.reason for pair in result.pairs if pair.reason is not None)
    reason = "; ".join(reasons) or "it is unknown in which direction any of the numbers is better"
    few = any(pair.doubt in {"one process", "no interval"} for pair in result.pairs)
    more = (
        " Measure both results in several processes: --restarts 5, with a --duration that they fit in." if few else ""
    )
    raise BadInput(f"The gate cannot decide on any number: {reason}.{more}")


class VarianceFlags(cli.JsonFlags):
    """What `assay contention variance` can be asked for."""

    baseline: tuple[str, ...] = cli.argument("BASELINE...", default=())
    against: tuple[str, ...] = cli.flag(
        default=(), style="rest", item=r"[^-].*", metavar="CONCURRENT...", help="Results to compare with the baseline."
    )
    phase: Literal["naive", "isolated", "again"] = cli.flag(
        default="naive", help="Phase of `assay contention run` to compare with its baseline."
    )
    minimum_effect: float = cli.min_effect_flag(0.01, OTHER)
    output: Path | None = cli.flag("--output -o", metavar="DIR", help="Write report.md and report.html.")


@cli.verb("contention variance", VarianceFlags)
def compare_variance(flags: VarianceFlags) -> int:
    """Compare times, spread and picked configurations of two groups of results.

    Results are run folders of `assay contention run` or `assay run`, their records.jsonl, or JSON files of older tools.
    For a single run of `assay contention run`, its phases are compared with its baseline.

        assay contention variance runs/latest
        assay contention variance runs/before runs/after
        assay contention variance baseline/*.json --against concurrent/*.json
        assay contention variance base0.json,base1.json conc0.json,conc1.json
    """
    from assay.experiments.compare.variance import analyse_kernels, build_page, compare_kernels, describe_not_comparable
    from assay.reports.documents import write_report

    report, minimum_effect = flags.output, flags.minimum_effect
    groups = read_groups(flags.baseline, flags.against, flags.phase)
    kernels = compare_kernels(*(group.tunings for group in groups))
    if not kernels:
        raise BadInput(no_common_kernels(groups))
    different = describe_not_comparable(*(group.tunings for group in groups))
    analysis = analyse_kernels(kernels, minimum_effect)
    report_page = build_page(kernels, analysis, groups, minimum_effect)
    if report is not None:
        write_report(report_page, report)
    unusable = [note for group in groups for note in group.unusable]
    data = {**analysis.as_json(), "unusable": unusable, "not_comparable": list(different)}
    show.print_result(data, report_page, as_json=flags.as_json)
    if report is not None:
        click.echo(f"Report: {show.short_path(report)}/report.html", err=True)
    return 0


def read_groups(baseline: tuple[str, ...], against: tuple[str, ...], phase: str) -> tuple[TuningGroup, TuningGroup]:
    """Return both groups as far as they can be read; say so where one is empty."""
    from assay.experiments.compare.tunings import (
        TuningGroup,
        expand_paths,
        is_phased_run,
        missing_paths,
        read_group,
        split_sides,
    )

    missing = missing_paths(baseline)
    if missing and not against:
        raise BadInput(f"{', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not exist.")
    two_sides = split_sides(baseline, against, is_phased=is_phased_run)
    groups: list[TuningGroup] = []
    for name, words, part in (
        ("baseline", two_sides.baseline, "baseline"),
        ("concurrent group", two_sides.concurrent, phase),
    ):
        paths, missing = expand_paths(words)
        group = read_group(paths, part)
        unusable = (*missing, *group.unusable)
        if not group.tunings:
            raise BadInput(f"Nothing of the {name} can be used: {'; '.join(unusable) or 'no file is named'}.")
        groups.append(TuningGroup(group.tunings, unusable))
    return groups[0], groups[1]


def no_common_kernels(groups: tuple[TuningGroup, TuningGroup]) -> str:
    """Say in what the kernels of the groups differ, or which each of them has."""
    from assay.experiments.compare.variance import describe_not_comparable

    different = describe_not_comparable(*(group.tunings for group in groups))
    if different:
        return f"Nothing is comparable: {'; '.join(different)}."
    first, second = (", ".join(group.kernels) for group in groups)
    return f"The groups have no kernel in common: the baseline has {first}, the other {second}."


SUFFIXES = (".html", ".md", ".png", ".json")


class EnergyCompareFlags(cli.JsonFlags):
    """What `assay energy compare` can be asked for."""

    runs: tuple[Path, ...] = cli.argument("[RUN]...", default=())
    by: ComparedBy | None = cli.flag(
        metavar="FACTOR", shown="what differs", help="Compare the values of model, batch, placement, mode, gpu or run."
    )
    of: ComparedPhase | None = cli.flag(
        metavar="PHASE",
        shown="decode; requests if a server is included",
        help="Tokens of: decode, prefill or requests.",
    )
    outputs: tuple[Path, ...] = cli.flag(
        "--output -o",
        default=(),
        metavar="PATH",
        help="Write a .html, .md, .png or .json file, or a folder with all of them; repeatable.",
    )


@cli.verb("energy compare", EnergyCompareFlags)
def compare_energy(flags: EnergyCompareFlags) -> int:
    """Compare tokens/s and J/token across cells of `assay energy run`, with the Pareto front.

    RUN is a run folder, a folder of such folders, an energy.json, or a .csv file with appended rows; by default
    runs/latest. A cell is dominated only if another is faster and uses less energy, both beyond their intervals.

        assay energy compare runs/latest
        assay energy compare llama-1b.csv llama-8b.csv --by model -o pareto.png
        assay energy compare runs/one-gpu runs/four-gpus --by placement -o out.html
    """
    from assay.experiments.energy.compare import (
        build_points,
        choose_compared_by,
        choose_phase,
        comparison_page,
        read_sources,
    )

    for path in flags.outputs:
        if path.suffix and path.suffix.lower() not in SUFFIXES:
            raise BadInput(f"--output {path} must end in {', '.join(SUFFIXES)}, or be a folder.")
    sources = read_sources(flags.runs or (cli.LATEST_RUN,))
    of: ComparedPhase = flags.of or choose_phase(sources.rows)
    cells = build_points(sources.rows, of)
    by: ComparedBy = flags.by or choose_compared_by(cells)
    notes = (*sources.skipped, *sources.unusable)
    report_page = comparison_page(cells, of, by, notes=notes)
    data = comparison_data(cells, of, by, report_page, notes)
    files = [file for path in flags.outputs for file in write_comparison(report_page, data, path)]
    data["files"] = [str(file) for file in files]
    show.print_result(data, show.text_only_page(report_page), as_json=flags.as_json)
    if files:
        click.echo(f"Written: {', '.join(show.short_path(file) for file in files)}", err=True)
    elif report_page.figures and not flags.as_json:
        click.echo("`-o pareto.png` draws the Pareto figure, `-o report.html` all of it.", err=True)
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
