"""``assay contention variance``: compare two groups of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from assay.cli.commands import OTHER
from assay.cli.flags import JsonFlags, argument, flag, min_effect_flag, verb
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.experiments.compare.tunings import TuningGroup


class VarianceFlags(JsonFlags):
    """What `assay contention variance` can be asked for."""

    baseline: tuple[str, ...] = argument("BASELINE...", default=())
    against: tuple[str, ...] = flag(
        default=(), style="rest", item=r"[^-].*", metavar="CONCURRENT...", help="Results to compare with the baseline."
    )
    phase: Literal["naive", "isolated", "again"] = flag(
        default="naive", help="Phase of `assay contention run` to compare with its baseline."
    )
    minimum_effect: float = min_effect_flag(0.01, OTHER)
    output: Path | None = flag("--output -o", metavar="DIR", help="Write report.md and report.html.")


@verb("contention variance", VarianceFlags)
def compare_variance(flags: VarianceFlags) -> int:
    """Compare times, spread and picked configurations of two groups of results.

    Results are run folders of `assay contention run` or `assay run`, their records.jsonl, or JSON files of older tools.
    For a single run of `assay contention run`, its phases are compared with its baseline.

        assay contention variance runs/latest
        assay contention variance runs/before runs/after
        assay contention variance baseline/*.json --against concurrent/*.json
        assay contention variance base0.json,base1.json conc0.json,conc1.json
    """
    from assay.cli import show
    from assay.experiments.compare.variance import analyse_kernels, build_page, compare_kernels, describe_not_comparable
    from assay.reports.documents import write_report
    from assay.reports.terminal import print_page

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
    if flags.as_json:
        unusable = [note for group in groups for note in group.unusable]
        data = {**analysis.as_json(), "unusable": unusable, "not_comparable": list(different)}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        print_page(report_page, show.console(stderr=False))
    if report is not None:
        show.console(stderr=True).print(f"Report: {show.short_path(report)}/report.html", markup=False, soft_wrap=True)
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
