"""The matrix: what each aggressor does to each victim, with and without isolation, beyond what chance shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.matrix.effects import MEASURES, effect, judge, logs, margin, together
from assay.experiments.matrix.meetings import Reading, met, of, readings, rows_of

if TYPE_CHECKING:
    from assay.core.results import Estimate, Record
    from assay.experiments.matrix.effects import Measure, Outcome
    from assay.experiments.matrix.meetings import Readings, Row
    from assay.experiments.matrix.options import MatrixOptions
    from assay.experiments.matrix.plan import Meeting
    from assay.store.records import Records


@dataclass(frozen=True)
class Cell:
    """One aggressor beside one victim. Ratios are to the victim alone at the same isolation; null: not measured.

    ``beyond`` is the ratio that counts, infinite where nothing does.
    """

    row: Row
    aggressor: str
    measure: Measure
    naive: Estimate | None
    isolated: Estimate | None
    less: Estimate | None
    beyond: float
    outcome: Outcome


@dataclass(frozen=True)
class Quiet:
    """A victim without aggressor: the same measured twice, and unpinned over pinned."""

    row: Row
    measure: Measure
    twice: Estimate | None
    bare: Estimate | None


@dataclass(frozen=True)
class Matrix:
    """All that the records say, and what the numbers come from."""

    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    quiet: tuple[Quiet, ...]
    pairs: tuple[tuple[Meeting, Record], ...]

    def cell(self, row: Row, aggressor: str, what: Measure = "median") -> Cell:
        """Return one cell."""
        return next(c for c in self.cells if (c.row, c.aggressor, c.measure) == (row, aggressor, what))


def matrix_of(options: MatrixOptions, records: Records) -> Matrix:
    """Return the whole matrix from the records."""
    pairs = met(options, records)
    rows = rows_of(pairs)
    values_by_reading = readings(options, records, pairs, rows)
    quiet = tuple(_quiet(values_by_reading, row, what) for row in rows for what in MEASURES)
    cells = tuple(
        _cell(values_by_reading, one, aggressor.name, options.minimum_effect)
        for one in quiet
        for aggressor in options.aggressors
    )
    return Matrix(rows, cells, quiet, tuple(pairs))


def _quiet(found: Readings, row: Row, what: Measure) -> Quiet:
    alone, again, bare = (of(found, Reading(row, phase, None, what)) for phase in ("alone", "again", "bare"))
    return Quiet(row, what, effect(again, alone), effect(bare, together(alone, again)))


def _cell(found: Readings, quiet: Quiet, aggressor: str, minimum_effect: float) -> Cell:
    """Return one cell; each level is held against the victim alone at that level."""
    row, what = quiet.row, quiet.measure
    alone, again, bare = (of(found, Reading(row, phase, None, what)) for phase in ("alone", "again", "bare"))
    loud = {phase: of(found, Reading(row, phase, aggressor, what)) for phase in ("naive", "isolated")}
    pinned = together(alone, again)
    naive, isolated = effect(loud["naive"], bare), effect(loud["isolated"], pinned)
    less = effect(_over(loud["naive"], bare), _over(loud["isolated"], pinned))
    beyond = margin(logs(again, alone), minimum_effect)
    return Cell(row, aggressor, what, naive, isolated, less, beyond, judge(naive, isolated, less, beyond))


def _over(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {block: value / other[block] for block, value in one.items() if block in other}
