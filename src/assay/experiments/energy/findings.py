"""What the records of ``assay energy run`` say, as findings: every cell's joules and speed, modes side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate, Finding, Findings
from assay.experiments.energy.headline import headline, main_of
from assay.experiments.energy.rows import HEADLINE
from assay.experiments.energy.words import PHASES_WITHIN
from assay.stats import ratios

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import Verdict
    from assay.core.values import Params
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.result import Study
    from assay.experiments.energy.rows import Cell, EnergyRow

CLAIMS = {
    "decode_j_per_token": "joules per output token while decoding",
    "prefill_j_per_token": "joules per input token while the prompt is read",
    "j_per_output_token": "joules of whole requests per output token",
    "j_per_request": "joules of a whole request",
    "decode_tokens_per_s": "output tokens a second while decoding",
    "output_tokens_per_s": "output tokens a second of whole requests",
    "ttft_ms": "milliseconds until the first token",
}
"""Figures that are findings of their own, in words."""
BESIDE = ("power_w", "idle_w", "busy_share", "bandwidth_share", "compute_share", "tokens_per_s_per_w")
MINIMUM_EFFECT = 0.01
COMPARED = (HEADLINE, "decode_tokens_per_s")


def findings_of(options: EnergyOptions, study: Study) -> Findings:
    """Return what was found."""
    result: list[Finding] = []
    for row in study.result.rows:
        result += [*_figures(options, row), *_phases(options, row)]
    result += [*_modes(options, study), *_left_out(options, study)]
    return Findings(headline=headline(study.result), findings=tuple(result))


def facts_of(options: EnergyOptions, cell: Cell) -> Params:
    """Return what a cell is, for machines."""
    return {
        "about": "energy",
        "model": options.config.backend.model,
        "backend": options.config.backend.type,
        "gpus": ",".join(gpu.removeprefix("cuda:") for gpu in options.gpus) or None,
        "mode": cell.mode,
        "batch": cell.batch,
        "concurrency": cell.concurrency,
        "input_tokens": cell.input_tokens,
        "output_tokens": cell.output_tokens,
    }


def _figures(options: EnergyOptions, row: EnergyRow) -> Iterator[Finding]:
    """Give the figures of a cell that are findings of their own; of those that are not told, the first, with why."""
    precision = options.config.scenario.precision
    main = main_of(row.cell)
    extra: Params = {name: _value(row, name) for name in BESIDE}
    for name, words in CLAIMS.items():
        estimate = row.figures.get(name)
        if estimate is None and name != main:
            continue
        verdict, reason = _judged(estimate, precision, row.why_not.get(name))
        yield Finding(
            claim=f"{options.config.backend.model}, {row.cell.name}: {words} are known to ±{100 * precision:.3g} %",
            estimate=estimate,
            verdict=verdict,
            reason=reason,
            records=row.records,
            facts={
                **facts_of(options, row.cell),
                "figure": name,
                "partial": row.partial,
                **(extra if name == main else {}),
            },
            origin=row.origin,
        )


def _value(row: EnergyRow, name: str) -> float | None:
    estimate = row.figures.get(name)
    return None if estimate is None else estimate.value


def _judged(estimate: Estimate | None, precision: float, why: str | None) -> tuple[Verdict, str | None]:
    if estimate is None:
        return "unsure", f"it is not told: {why}"
    half = estimate.relative_half_width
    if half is None:
        return "unsure", f"{estimate.method}; more scenario.repeats give one over them"
    if half <= precision:
        return "yes", None
    return "no", f"it is known to ±{half:.2%}; a longer scenario.window_s or more repeats narrow it"


def _phases(options: EnergyOptions, row: EnergyRow) -> Iterator[Finding]:
    """Give whether prefill and decode, measured apart, add up to whole requests."""
    share = row.figures.get("phases_share")
    if share is None:
        return
    low, high = 1 - PHASES_WITHIN, 1 + PHASES_WITHIN
    verdict: Verdict = "unsure"
    if share.low is not None and share.high is not None:
        verdict = "yes" if low <= share.low and share.high <= high else verdict
        verdict = "no" if share.high < low or share.low > high else verdict
    yield Finding(
        claim=f"{options.config.backend.model}, {row.cell.name}: prefill and decode add up to the energy of whole "
        f"requests within {100 * PHASES_WITHIN:.0f} %",
        estimate=share,
        verdict=verdict,
        reason=None if verdict == "yes" else f"they are {100 * share.value:.1f} % of it",
        records=row.records,
        facts={**facts_of(options, row.cell), "figure": "phases_share"},
        origin=row.origin,
    )


def _modes(options: EnergyOptions, study: Study) -> Iterator[Finding]:
    """Give what graphs change against eager, in joules and in speed, at the same sizes."""
    rows = {row.cell: row for row in study.result.rows}
    for cell, graphs in rows.items():
        eager = rows.get(cell.model_copy(update={"mode": "eager"}))
        if cell.mode != "graphs" or eager is None:
            continue
        for name in COMPARED:
            ratio = ratio_of(eager.figures.get(name), graphs.figures.get(name))
            if ratio is not None:
                yield _mode_finding(options, (eager, graphs), name, ratio)


def ratio_of(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    """Return how many times the first the second is, as if neither knew of the other; null without both."""
    if first is None or second is None:
        return None
    levels = [ratios.level(estimate.value, estimate.low, estimate.high, None) for estimate in (first, second)]
    if levels[0] is None or levels[1] is None:
        return None
    quotient = ratios.ratio(levels[0], levels[1])
    low, high = quotient.interval() or (None, None)
    scope = "run" if first.scope == second.scope == "run" else "process"
    return Estimate(
        value=quotient.value,
        low=low,
        high=high,
        unit="×",
        scope=scope,
        method="ratio of the two, Welch's t on logarithms, tails as of few",
        n=first.n + second.n,
    )


def _mode_finding(options: EnergyOptions, both: tuple[EnergyRow, EnergyRow], name: str, ratio: Estimate) -> Finding:
    eager, graphs = both
    cell = eager.cell
    sizes = f"batch {cell.batch}, {cell.input_tokens} in, {cell.output_tokens} out"
    better, worse = ("less", "more") if name == HEADLINE else ("more", "less")
    sign = 1 if name == HEADLINE else -1
    verdict: Verdict = "unsure"
    if ratio.low is not None and ratio.high is not None:
        low, high = sorted((ratio.low**sign, ratio.high**sign))
        verdict = "yes" if high < 1 / (1 + MINIMUM_EFFECT) else "no" if low > 1 + MINIMUM_EFFECT else "unsure"
    what = "takes {} energy per output token" if name == HEADLINE else "makes {} tokens a second"
    return Finding(
        claim=f"{options.config.backend.model}, {sizes}: decoding with graphs {what.format(better)} than eager",
        estimate=ratio,
        verdict=verdict,
        reason=None
        if verdict == "yes"
        else f"it is {ratio.value:.3g} times that of eager, not surely {better}"
        if verdict == "unsure"
        else f"it is {worse}: {ratio.value:.3g} times that of eager",
        records=tuple(dict.fromkeys((*eager.records, *graphs.records))),
        facts={**facts_of(options, cell), "about": "modes", "mode": "graphs", "against": "eager", "figure": name},
        origin=graphs.origin,
    )


def _left_out(options: EnergyOptions, study: Study) -> Iterator[Finding]:
    origin = next((record.origin for record in study.walk.gathered.records if record.origin != "real"), "real")
    for name, reason in study.result.left_out.items():
        yield Finding(
            claim=f"{options.config.backend.model}, {name}: can be measured",
            estimate=None,
            verdict="no",
            reason=reason.rstrip("."),
            records=tuple(record.trial for record in study.walk.gathered.records),
            facts={"about": "left out", "model": options.config.backend.model, "cell": name},
            origin=origin,
        )
