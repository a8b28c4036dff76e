"""The findings and the headline of ``assay energy run``: joules and speed of every cell, eager against graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import format_significant
from assay.core.results import Estimate, Finding, Findings
from assay.experiments.energy.result import HEADLINE_FIGURE
from assay.experiments.energy.study import HOST_BOUND, PHASE_SUM_TOLERANCE, SERVER_STALLED
from assay.experiments.reporting import overall_origin
from assay.stats import ratios
from assay.stats.sensor_intervals import MIN_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.core.results import Verdict
    from assay.core.values import Params
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.result import EnergyCell, EnergyResult, EnergyRow
    from assay.experiments.energy.study import EnergyStudy


NOTHING_MEASURED = "Nothing could be measured"
REQUEST_FIGURE = "j_per_output_token"
"""The joules of a token where the phases of a request are not measured apart."""
MIN_SHOWN, MAX_SHOWN = 1e-4, 9.95
"""Narrower and wider intervals are not written as numbers."""
WHOLE_PERCENT = 0.0995
"""From here on an interval is written in whole percent; down to a tenth of it with one digit more."""


def end_sentence(text: str) -> str:
    """Return a text with one mark at its end: a full stop, unless it is a question or an exclamation."""
    stem = text.rstrip(".")
    return stem if stem.endswith(("?", "!")) else f"{stem}."


def format_half_width(estimate: Estimate) -> str:
    """Write the half-width of an interval: "±1.2 %", or that there is none."""
    half = estimate.relative_half_width
    if half is None:
        return "no interval"
    if half < MIN_SHOWN:
        return f"±<{100 * MIN_SHOWN:g} %"
    if half >= MAX_SHOWN:
        return f"±>{100 * MAX_SHOWN:.0f} %"
    return f"±{100 * half:.{0 if half >= WHOLE_PERCENT else 1 if half >= WHOLE_PERCENT / 10 else 2}f} %"


def write_headline(result: EnergyResult) -> str:
    """Return the answer."""
    if not result.rows:
        why = next(iter(result.skipped.values()), "")
        return end_sentence(f"{NOTHING_MEASURED}: {why}") if why else f"{NOTHING_MEASURED}."
    shown = smallest_and_largest(result.rows)
    energies = [(row, energy) for row in shown if (energy := token_energy(row)) is not None]
    where = f"{result.model} on {result.gpu}" if result.gpu else result.model
    origins = {"real": "", "fake": "The numbers are of a fake device.", "simulated": "It is simulated."}
    parts = [
        end_sentence(f"{where}: {_energy_clause(energies) if energies else _speed_clause(shown)}"),
        _few_processes_sentence(energies),
        _stalled_sentence(result.rows),
        _host_bound_sentence(result.rows),
        _left_out_sentence(result),
        origins[overall_origin(result.rows)],
    ]
    return " ".join(part for part in parts if part)


def smallest_and_largest(rows: Sequence[EnergyRow]) -> list[EnergyRow]:
    """Return the first and the last cell of each mode: the smallest batch or load, and the largest."""
    shown: list[EnergyRow] = []
    for mode in dict.fromkeys(row.cell.mode for row in rows):
        mine = [row for row in rows if row.cell.mode == mode]
        shown += [mine[0]] if len(mine) == 1 else [mine[0], mine[-1]]
    return shown


def token_energy(row: EnergyRow) -> Estimate | None:
    """Return the joules of an output token: while decoding, or of whole requests."""
    return row.figures.get(main_figure(row.cell))


def main_figure(cell: EnergyCell) -> str:
    """Return the figure of a token's joules: of whole requests, where the phases are not measured apart."""
    return REQUEST_FIGURE if cell.mode == "server" or cell.output_tokens == 1 else HEADLINE_FIGURE


def _energy_clause(energies: Sequence[tuple[EnergyRow, Estimate]]) -> str:
    """Write the joules of a token in each mode, with their interval; the unit stands once."""
    by_mode: dict[str, list[str]] = {}
    for row, energy in energies:
        unit = scope = ""
        if not by_mode:
            unit = " J per output token" if main_figure(row.cell) == REQUEST_FIGURE else " J per output token decoding"
            scope = ", GPU only"
        value = f"{format_significant(energy.value, 3)}{unit}"
        text = f"{value} at {row.cell.load} ({format_half_width(energy)}{scope})"
        by_mode.setdefault(row.cell.mode, []).append(text)
    return "; ".join(
        f"{f'in {mode} ' if len(by_mode) > 1 else ''}{', '.join(parts)}" for mode, parts in by_mode.items()
    )


def _speed_clause(rows: Sequence[EnergyRow]) -> str:
    """Write how fast tokens come, and why their energy is missing."""
    speeds = [row.figures.get("decode_tokens_per_s") or row.figures.get("output_tokens_per_s") for row in rows]
    parts = [
        f"{format_significant(speed.value, 3)} tokens/s at {row.cell.load}, {row.cell.mode}"
        for row, speed in zip(rows, speeds, strict=True)
        if speed is not None
    ]
    reasons = [why for row in rows if (why := row.missing_reasons.get(main_figure(row.cell)))]
    missing = f"; no energy reported: {reasons[0].rstrip('.')}" if reasons else ""
    return f"{', '.join(parts) or 'no token came while it was measured'}{missing}"


def _few_processes_sentence(energies: Sequence[tuple[EnergyRow, Estimate]]) -> str:
    """Say that joules are of too few processes to stand for a run."""
    few = [energy.n for _, energy in energies if energy.scope == "process"]
    if not few:
        return ""
    named = "one process" if max(few) == 1 else f"{max(few)} processes"
    return (
        f"Joules are of {named}: other processes may differ by more than the interval "
        f"(scenario.repeats: {MIN_PROCESSES} or more cover that)."
    )


def _stalled_sentence(rows: Sequence[EnergyRow]) -> str:
    """Say that a server was silent for far longer than usual while it was measured."""
    some = sum(has_stalled(row) for row in rows)
    where = "" if len(rows) == 1 else f" in {some} of {len(rows)} cells"
    return f"The server stalled meanwhile{where}, and that time counts." if some else ""


def has_stalled(row: EnergyRow) -> bool:
    """Return whether a server was silent for far longer than usual while a cell was measured."""
    return any(note.code == SERVER_STALLED for note in row.notes)


def _host_bound_sentence(rows: Sequence[EnergyRow]) -> str:
    """Say in which modes the GPU waited for the host."""
    waited: dict[str, list[float]] = {}
    for row in rows:
        busy = row.figures.get("busy_share")
        if busy is not None and busy.value < HOST_BOUND:
            waited.setdefault(row.cell.mode, []).append(100 * (1 - busy.value))
    clauses = []
    for mode, shares in waited.items():
        low, high = f"{min(shares):.0f}", f"{max(shares):.0f}"
        clauses.append(f"{mode} {low} %" if low == high else f"{mode} {low}–{high} %")
    return f"Host-bound: the GPU waited for the host in {', in '.join(clauses)} of the time." if clauses else ""


def _left_out_sentence(result: EnergyResult) -> str:
    """Count the cells without a result, or with only part of it."""
    every = len(result.rows) + len(result.skipped)
    some = sum(row.partial for row in result.rows)
    parts = []
    if result.skipped:
        why = next(iter(result.skipped.values())).rstrip(".")
        parts.append(f"{len(result.skipped)} of {every} cells left out ({why})")
    parts += [f"{some} of {every} only in part"] if some else []
    return f"{' and '.join(parts)}." if parts else ""


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
EXTRA_FIGURES = ("power_w", "idle_w", "busy_share", "bandwidth_share", "compute_share", "tokens_per_s_per_w")
MINIMUM_EFFECT = 0.01
COMPARED_FIGURES = (HEADLINE_FIGURE, "decode_tokens_per_s")


def build_findings(options: EnergyOptions, study: EnergyStudy) -> Findings:
    """Return the findings of a run."""
    result: list[Finding] = []
    for row in study.result.rows:
        result += [*_figure_findings(options, row), *_phase_sum_findings(options, row)]
    result += [*_mode_findings(options, study), *_left_out_findings(options, study)]
    return Findings(headline=write_headline(study.result), findings=tuple(result))


def cell_facts(options: EnergyOptions, cell: EnergyCell) -> Params:
    """Return a cell's identity, for programs."""
    return {
        "model": options.config.backend.model,
        "backend": options.config.backend.type,
        "gpus": ",".join(gpu.removeprefix("cuda:") for gpu in options.gpus) or None,
        "mode": cell.mode,
        "batch": cell.batch,
        "concurrency": cell.concurrency,
        "input_tokens": cell.input_tokens,
        "output_tokens": cell.output_tokens,
    }


def _figure_findings(options: EnergyOptions, row: EnergyRow) -> Iterator[Finding]:
    """Give the figures of a cell that are findings of their own; of those that are missing, the main one, with why."""
    precision = options.config.scenario.precision
    main = main_figure(row.cell)
    extras = {name: row.figures.get(name) for name in EXTRA_FIGURES}
    extra: Params = {name: None if figure is None else figure.value for name, figure in extras.items()}
    for name, words in CLAIMS.items():
        estimate = row.figures.get(name)
        if estimate is None and name != main:
            continue
        verdict, reason = _judge_precision(estimate, precision, row.missing_reasons.get(name))
        yield Finding(
            kind="energy",
            claim=f"{options.config.backend.model}, {row.cell.name}: {words} are known to ±{100 * precision:.3g} %",
            estimate=estimate,
            verdict=verdict,
            reason=reason,
            records=row.records,
            facts={
                **cell_facts(options, row.cell),
                "figure": name,
                "partial": row.partial,
                **(extra if name == main else {}),
            },
            origin=row.origin,
        )


def _judge_precision(estimate: Estimate | None, precision: float, why: str | None) -> tuple[Verdict, str | None]:
    if estimate is None:
        return "unsure", f"not measured: {why}"
    half = estimate.relative_half_width
    if half is None:
        return "unsure", f"{estimate.method}; more scenario.repeats give one over them"
    if half <= precision:
        return "yes", None
    return "no", f"it is known to ±{half:.2%}; a longer scenario.window_s or more repeats narrow it"


def _phase_sum_findings(options: EnergyOptions, row: EnergyRow) -> Iterator[Finding]:
    """Give whether prefill and decode, measured apart, add up to whole requests."""
    share = row.figures.get("phases_share")
    if share is None:
        return
    low, high = 1 - PHASE_SUM_TOLERANCE, 1 + PHASE_SUM_TOLERANCE
    verdict: Verdict = "unsure"
    if share.low is not None and share.high is not None:
        verdict = "yes" if low <= share.low and share.high <= high else verdict
        verdict = "no" if share.high < low or share.low > high else verdict
    yield Finding(
        kind="energy",
        claim=f"{options.config.backend.model}, {row.cell.name}: prefill and decode add up to the energy of whole "
        f"requests within {100 * PHASE_SUM_TOLERANCE:.0f} %",
        estimate=share,
        verdict=verdict,
        reason=None if verdict == "yes" else f"they are {100 * share.value:.1f} % of it",
        records=row.records,
        facts={**cell_facts(options, row.cell), "figure": "phases_share"},
        origin=row.origin,
    )


def _mode_findings(options: EnergyOptions, study: EnergyStudy) -> Iterator[Finding]:
    """Give what graphs change against eager, in joules and in speed, at the same sizes."""
    rows = {row.cell: row for row in study.result.rows}
    for cell, graphs in rows.items():
        eager = rows.get(cell.model_copy(update={"mode": "eager"}))
        if cell.mode != "graphs" or eager is None:
            continue
        for name in COMPARED_FIGURES:
            ratio = ratio_of_estimates(eager.figures.get(name), graphs.figures.get(name))
            if ratio is not None:
                yield _mode_finding(options, eager, graphs, name, ratio)


def ratio_of_estimates(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    """Return the ratio of the second to the first, as of independent numbers; null without both."""
    if first is None or second is None:
        return None
    levels = [ratios.log_estimate(estimate.value, estimate.low, estimate.high, None) for estimate in (first, second)]
    if levels[0] is None or levels[1] is None:
        return None
    quotient = ratios.divide_estimates(levels[0], levels[1])
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


def _mode_finding(options: EnergyOptions, eager: EnergyRow, graphs: EnergyRow, name: str, ratio: Estimate) -> Finding:
    cell = eager.cell
    better, worse = ("less", "more") if name == HEADLINE_FIGURE else ("more", "less")
    sign = 1 if name == HEADLINE_FIGURE else -1
    verdict: Verdict = "unsure"
    if ratio.low is not None and ratio.high is not None:
        low, high = sorted((ratio.low**sign, ratio.high**sign))
        verdict = "yes" if high < 1 / (1 + MINIMUM_EFFECT) else "no" if low > 1 + MINIMUM_EFFECT else "unsure"
    reasons: dict[Verdict, str | None] = {
        "yes": None,
        "no": f"it is {worse}: {ratio.value:.3g} times that of eager",
        "unsure": f"it is {ratio.value:.3g} times that of eager, not surely {better}",
    }
    does = f"takes {better} energy per output token" if name == HEADLINE_FIGURE else f"makes {better} tokens a second"
    sizes = f"batch {cell.batch}, {cell.input_tokens} in, {cell.output_tokens} out"
    return Finding(
        kind="modes",
        claim=f"{options.config.backend.model}, {sizes}: decoding with graphs {does} than eager",
        estimate=ratio,
        verdict=verdict,
        reason=reasons[verdict],
        records=tuple(dict.fromkeys((*eager.records, *graphs.records))),
        facts={**cell_facts(options, cell), "mode": "graphs", "against": "eager", "figure": name},
        origin=graphs.origin,
    )


def _left_out_findings(options: EnergyOptions, study: EnergyStudy) -> Iterator[Finding]:
    origin = overall_origin(study.progress.observations.records)
    for name, reason in study.result.skipped.items():
        yield Finding(
            kind="left_out",
            claim=f"{options.config.backend.model}, {name}: can be measured",
            estimate=None,
            verdict="no",
            reason=reason.rstrip("."),
            records=tuple(record.trial for record in study.progress.observations.records),
            facts={"model": options.config.backend.model, "cell": name},
            origin=origin,
        )
