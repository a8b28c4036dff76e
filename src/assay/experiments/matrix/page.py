"""What ``assay contention matrix`` shows: the matrix in colours and in numbers, and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, HeatMap, Page, Section, Table, Text
from assay.experiments.contention.budget import overrun
from assay.experiments.matrix.cells import matrix_of
from assay.experiments.matrix.effects import MEASURES
from assay.experiments.matrix.grounds import grounds, trouble
from assay.experiments.matrix.words import label, outcome_text, ratio_text

if TYPE_CHECKING:
    from collections.abc import Sized

    from assay.core.page import Cell as Shown
    from assay.core.page import Element, Tone
    from assay.core.results import Findings
    from assay.experiments.matrix.cells import Cell, Matrix
    from assay.experiments.matrix.effects import Measure, Outcome
    from assay.experiments.matrix.options import MatrixOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

TONES: dict[Outcome, Tone] = {
    "no effect seen": "plain",
    "cured by isolation": "good",
    "not cured": "bad",
    "hurts": "unsure",
    "hurts only isolated": "bad",
    "not known": "unsure",
}
BEYOND_THE_MEDIAN: tuple[Measure, ...] = ("p99", "jitter")


def page(machine: Machine, options: MatrixOptions, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    matrix = matrix_of(options, records)
    sections = [
        Section(title="Results", elements=_results(options, matrix, findings)),
        Section(title="Tails and jitter", elements=_tails(options, matrix)),
        Section(title="What it rests on", elements=grounds(options, matrix, records)),
        *trouble(options, matrix),
    ]
    return Page(
        title=f"assay contention matrix: {_many(options.victims, 'victim')}, {_many(options.aggressors, 'aggressor')}",
        lead=findings.headline,
        lead_tone="bad" if not matrix.cells else "plain",
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options, matrix),
        origin=next((r.origin for r in records if r.origin != "real"), "real"),
    )


def _many(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _results(options: MatrixOptions, matrix: Matrix, findings: Findings) -> tuple[Element, ...]:
    missing = [
        Text(text=f"Missing: not so, that {f.claim}: {f.reason}.", tone="bad")
        for f in findings.findings
        if "status" in f.facts
    ]
    overrun_note = (
        overrun(options.budget_s, [record for _, record in matrix.pairs]) if options.budget_s is not None else None
    )
    late = [Text(text=f"{_capital(overrun_note)}.", tone="unsure")] if overrun_note is not None else []
    if not matrix.cells:
        return (*missing, *late)
    return (heat_map(options, matrix, "median"), table(options, matrix, "median"), *missing, *late)


def _tails(options: MatrixOptions, matrix: Matrix) -> tuple[Element, ...]:
    return tuple(
        element
        for what in BEYOND_THE_MEDIAN
        if _measured(matrix, what)
        for element in (heat_map(options, matrix, what), table(options, matrix, what))
    )


def _measured(matrix: Matrix, what: Measure) -> bool:
    return any(cell.measure == what and (cell.naive or cell.isolated) for cell in matrix.cells)


def heat_map(options: MatrixOptions, matrix: Matrix, what: Measure) -> HeatMap:
    """Return the matrix in colours: each aggressor without isolation, and with it beside."""
    columns = [(a.name, level) for a in options.aggressors for level in ("naive", "isolated")]
    return HeatMap(
        title=f"{_capital(MEASURES[what])} beside each aggressor, as a multiple of that alone",
        name=f"matrix_{what}",
        rows=tuple(label(options, row) for row in matrix.rows),
        columns=tuple(f"{name} {level}" for name, level in columns),
        cells=tuple(
            tuple(_ratio(matrix.cell(row, name, what), level) for name, level in columns) for row in matrix.rows
        ),
        unit="× alone",
        centre=1.0,
        unsure=tuple(
            tuple(_unsure(matrix.cell(row, name, what), level) for name, level in columns) for row in matrix.rows
        ),
        note=(
            "Naive: both may run on any core. Isolated: both are kept apart as far as this machine can. "
            "Grey: the 95 % interval includes 1, or there is none."
        ),
    )


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _ratio(cell: Cell, level: str) -> float | None:
    estimate = cell.naive if level == "naive" else cell.isolated
    return estimate.value if estimate is not None else None


def _unsure(cell: Cell, level: str) -> bool:
    """Return whether a ratio may as well be 1."""
    estimate = cell.naive if level == "naive" else cell.isolated
    return estimate is not None and (
        estimate.low is None or estimate.high is None or estimate.low <= 1.0 <= estimate.high
    )


def table(options: MatrixOptions, matrix: Matrix, what: Measure) -> Table:
    """Return the same with intervals and outcomes."""
    cells = [cell for cell in matrix.cells if cell.measure == what]
    rows: tuple[tuple[Shown, ...], ...] = tuple(
        (
            f"{label(options, cell.row)}, {cell.aggressor}",
            ratio_text(cell.naive),
            ratio_text(cell.isolated),
            outcome_text(cell),
        )
        for cell in cells
    )
    titles = ("victim, aggressor", "naive", "isolated", "outcome")
    return Table(
        title=f"{_capital(MEASURES[what])}, as a multiple of that alone, with 95 % intervals",
        columns=tuple(Column(title=t, numeric=t in {"naive", "isolated"}) for t in titles),
        rows=rows,
        tones=tuple(TONES[cell.outcome] for cell in cells),
        note=(
            f"Ratios are taken within each block, to the victim alone at the same isolation. A ratio counts when its "
            f"interval lies beyond {1 + options.minimum_effect:g} and beyond what the same measurement, made twice, "
            "differs by chance."
        ),
    )


def _facts(machine: Machine, options: MatrixOptions, matrix: Matrix) -> tuple[tuple[str, str], ...]:
    blocks = len({record.block for _, record in matrix.pairs})
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})"),
        ("devices", ", ".join(options.devices)),
        ("blocks", f"{blocks} of {options.repeat}"),
        ("per trial", f"{options.duration_s:g} s"),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )
