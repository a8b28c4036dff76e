"""What the matrix comes to: a judged claim for each cell, and all of it in one sentence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.core.results import Finding, Findings
from assay.experiments.matrix.cells import matrix_of
from assay.experiments.matrix.effects import MEASURES
from assay.experiments.matrix.intensity import intensities
from assay.experiments.matrix.words import in_percent, label, listed, outcome_text

if TYPE_CHECKING:
    from assay.core.results import Estimate, Verdict
    from assay.core.values import Params
    from assay.experiments.matrix.cells import Cell, Matrix
    from assay.experiments.matrix.effects import Outcome
    from assay.experiments.matrix.intensity import Intensity
    from assay.experiments.matrix.options import MatrixOptions
    from assay.store.records import Records

MOST_NAMED = 3
"""Victims that a sentence names at most."""
NOISY = 0.1
"""From this difference between two equal measurements on, it is said beside the result."""


def analyse(options: MatrixOptions, records: Records) -> Findings:
    """Return a finding for each aggressor, victim and measure, and one for what was asked and never measured."""
    matrix = matrix_of(options, records)
    strength = intensities(list(matrix.pairs))
    findings = tuple(_finding(options, matrix, cell, strength) for cell in matrix.cells)
    return Findings(headline=headline(options, matrix), findings=(*findings, *_missing(options, matrix)))


def _finding(options: MatrixOptions, matrix: Matrix, cell: Cell, strength: dict[tuple[str, str], Intensity]) -> Finding:
    behind = [
        record
        for meeting, record in matrix.pairs
        if (meeting.victim, meeting.device) == cell.row[:2]
        and meeting.aggressor in {None, cell.aggressor}
        and record.status == "ok"
    ]
    isolated, counts = cell.isolated, math.isfinite(cell.beyond)
    facts: Params = {
        "victim": options.victims[cell.row.victim].label,
        "device": cell.row.device,
        "quantity": cell.row.quantity,
        "aggressor": cell.aggressor,
        "measure": cell.measure,
        "outcome": cell.outcome,
        "isolated": isolated.value if isolated else None,
        "isolated_low": isolated.low if isolated else None,
        "isolated_high": isolated.high if isolated else None,
        "counts_beyond": cell.beyond if counts else None,
        **_pressed(cell.aggressor, strength),
    }
    where = label(options, cell.row)
    return Finding(
        claim=f"{cell.aggressor} beside {where}: its {MEASURES[cell.measure]} grows without isolation",
        estimate=cell.naive,
        verdict=_verdict(cell),
        reason=outcome_text(cell),
        records=tuple(record.trial for record in behind),
        facts=facts,
        origin=next((record.origin for record in behind if record.origin != "real"), "real"),
    )


def _verdict(cell: Cell) -> Verdict:
    """Return yes where it surely grows, no where it surely does not grow by what counts."""
    if cell.outcome in {"hurts", "cured by isolation", "not cured"}:
        return "yes"
    high = cell.naive.high if cell.naive else None
    return "no" if high is not None and high <= cell.beyond and math.isfinite(cell.beyond) else "unsure"


def _pressed(aggressor: str, strength: dict[tuple[str, str], Intensity]) -> Params:
    return {
        f"{phase}_{name}": value
        for phase in ("naive", "isolated")
        if (aggressor, phase) in strength
        for name, value in strength[aggressor, phase]._asdict().items()
    }


def _missing(options: MatrixOptions, matrix: Matrix) -> tuple[Finding, ...]:
    """Return what never worked, each with the last reason."""
    tried: dict[tuple[str, str | None], list[tuple[str, str | None, str]]] = {}
    for meeting, record in matrix.pairs:
        key = (f"{options.victims[meeting.victim].label} on {meeting.device}", meeting.aggressor)
        tried.setdefault(key, []).append((record.status, record.reason, record.trial))
    return tuple(
        Finding(
            claim=f"{victim} can be timed {f'beside {aggressor}' if aggressor else 'alone'}",
            estimate=None,
            verdict="no",
            reason=tries[-1][1],
            records=tuple(trial for _, _, trial in tries),
            facts={"victim": victim, "aggressor": aggressor, "status": tries[-1][0]},
        )
        for (victim, aggressor), tries in tried.items()
        if all(status != "ok" for status, _, _ in tries)
    )


def headline(options: MatrixOptions, matrix: Matrix) -> str:
    """Return in one sentence what isolation cures, what it does not, and what did nothing."""
    medians = [cell for cell in matrix.cells if cell.measure == "median"]
    if not medians:
        return "Nothing could be measured."
    unmoved = [cell for cell in medians if cell.outcome == "no effect seen"]
    parts = [
        _told(options, medians, "not cured", "isolation does not cure"),
        _told(options, medians, "cured by isolation", "isolation cures"),
        _told(options, medians, "hurts", "whether isolation cures is not clear for"),
        _told(options, medians, "hurts only isolated", "only isolated processes suffer from"),
        _nothing_seen(unmoved, everywhere=len(unmoved) == len(medians)),
        _unknown(options, medians),
    ]
    sentence = "; ".join(part for part in parts if part)
    return f"{sentence[:1].upper()}{sentence[1:]}.{_noise(medians)}"


def _told(options: MatrixOptions, cells: list[Cell], outcome: Outcome, words: str) -> str:
    """Name the aggressors of one outcome, and the worst cell with how much it is."""
    matching = sorted((c for c in cells if c.outcome == outcome), key=_size, reverse=True)
    if not matching:
        return ""
    names, worst = list(dict.fromkeys(c.aggressor for c in matching)), matching[0]
    cell_text = (
        f"beside {label(options, worst.row)}"
        if len(names) == 1
        else f"{worst.aggressor} beside " + label(options, worst.row)
    )
    return f"{words} {listed(names)} ({'worst ' if len(matching) > 1 else ''}{cell_text}: {_both(worst)})"


def _size(cell: Cell) -> float:
    return max((e.value for e in (cell.naive, cell.isolated) if e is not None), default=1.0)


def _both(cell: Cell) -> str:
    return f"{_ratio(cell.naive)} without, {_ratio(cell.isolated)} with"


def _ratio(estimate: Estimate | None) -> str:
    return "not measured" if estimate is None else f"{estimate.value:.2f}×"


def _nothing_seen(cells: list[Cell], *, everywhere: bool) -> str:
    if not cells:
        return ""
    rest = "" if everywhere else " elsewhere"
    at_most = max((c.naive.high for c in cells if c.naive and c.naive.high is not None), default=1.0)
    names = list(dict.fromkeys(cell.aggressor for cell in cells))
    return f"no effect is seen of {listed(names)}{rest} (at most {in_percent(max(at_most, 1.0))})"


def _noise(cells: list[Cell]) -> str:
    """Say so where two equal measurements differ by so much that smaller effects cannot be seen."""
    beyond = max((c.beyond for c in cells if math.isfinite(c.beyond)), default=1.0)
    if beyond <= 1 + NOISY:
        return ""
    return f" Alone, the same measurement differs by up to {in_percent(beyond)} here: smaller effects cannot be seen."


def _unknown(options: MatrixOptions, cells: list[Cell]) -> str:
    """Name what is not known: aggressors of the same victims together, each with the victims it is not known for."""
    by_aggressor: dict[str, list[str]] = {}
    for cell in cells:
        if cell.outcome == "not known":
            by_aggressor.setdefault(cell.aggressor, []).append(label(options, cell.row))
    by_victims: dict[tuple[str, ...], list[str]] = {}
    for aggressor, victims in by_aggressor.items():
        by_victims.setdefault(tuple(victims), []).append(aggressor)
    everyone = {label(options, cell.row) for cell in cells}
    texts = [f"{listed(names)} beside {_victims(victims, everyone)}" for victims, names in by_victims.items()]
    return f"nothing can be said yet of {', nor of '.join(texts)}" if texts else ""


def _victims(victims: tuple[str, ...], everyone: set[str]) -> str:
    if len(victims) == len(everyone) > MOST_NAMED:
        return "any victim"
    more = len(victims) - MOST_NAMED
    return listed([*victims[:MOST_NAMED], f"{more} more"] if more > 0 else list(victims))
