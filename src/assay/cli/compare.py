"""``assay compare``: compare results with a baseline; optionally a regression gate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from assay.cli.flags import (
    JsonFlags,
    OutputFile,
    RegressionGateFlags,
    UnsureFlags,
    argument,
    min_effect_flag,
    output_flag,
    verb,
    what_flag,
)
from assay.core.errors import BadInput, GateFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from assay.experiments.compare.report import ComparisonResult


class CompareFlags(RegressionGateFlags, UnsureFlags, JsonFlags):
    """What `assay compare` can be asked for."""

    results: tuple[str, ...] = argument("RESULT...", default=())
    quantities: tuple[str, ...] = what_flag(
        "--quantity", default=(), metavar="NAME", help="Compare only this, such as call_us; repeatable."
    )
    minimum_effect: float = min_effect_flag(0.02)
    output: OutputFile | None = output_flag("--output -o", metavar="FILE", help="Write the report as Markdown.")


@verb("compare", CompareFlags)
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
    from assay.cli import show
    from assay.core.files import replace_atomically
    from assay.experiments.compare.pairing import align_results
    from assay.experiments.compare.report import build_page, compare_results
    from assay.experiments.compare.sources import read_source
    from assay.reports.documents import to_markdown
    from assay.reports.terminal import print_page

    if flags.unsure == "fail" and not flags.fail_on_regression:
        raise BadInput("--unsure fail needs --fail-on-regression.")
    table = align_results([read_source(path) for path in result_paths(flags.results)], flags.quantities)
    result = compare_results(table, flags.minimum_effect)
    if flags.fail_on_regression:
        refuse_undecidable_gate(result)
    report_page = build_page(result)
    if flags.output is not None:
        replace_atomically(flags.output, to_markdown(report_page, {}).encode())
    if flags.as_json:
        click.echo(json.dumps(result.as_json(), indent=2, ensure_ascii=False))
    else:
        print_page(report_page, show.console(stderr=False))
    if flags.output is not None:
        show.console(stderr=True).print(f"Report: {show.short_path(flags.output)}", markup=False, soft_wrap=True)
    if flags.fail_on_regression:
        apply_gate(result, strict=flags.unsure == "fail")
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


def apply_gate(result: ComparisonResult, *, strict: bool) -> None:
    """Let the gate speak."""
    if result.verdict == "no" or (result.verdict == "unsure" and strict):
        outcome = "says no" if result.verdict == "no" else "cannot tell, and --unsure fail says that is not enough"
        raise GateFailed(f"The gate {outcome}. {result.headline}")
    outcome = "is passed" if result.verdict == "yes" else "cannot tell, and lets it pass; --unsure fail would not"
    skipped = (
        f" Not compared: {'; '.join(item.text for item in result.not_comparable)}." if result.not_comparable else ""
    )
    click.echo(f"The gate {outcome}.{skipped}", err=True)
