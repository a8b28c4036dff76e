"""What was measured, laid out by shape and repeat: the samples of every rank, and what workers found out."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.scaling.plan import planned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.core.results import Record, SubjectFacts
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.plan import Kind, Planned
    from assay.experiments.scaling.shapes import Shape
    from assay.store.records import Records

    Samples = NDArray[np.float64]

TIME = "call_us"


@dataclass(frozen=True, eq=False)
class Timing:
    """One trial that came off: microseconds of each subject by name, a row a rank and a column an iteration."""

    plan: Planned
    record: Record
    by_rank: dict[str, Samples]

    @property
    def seed(self) -> int:
        """A number that is the same whenever this trial is looked at."""
        return zlib.crc32(self.record.trial.encode())

    def facts(self, name: str) -> dict[int, SubjectFacts]:
        """Return what each rank found out about a subject, by rank."""
        number = self.plan.names.index(name)
        return {e.rank: f for e in self.record.evidence for f in e.subjects if f.subject == number}


@dataclass(frozen=True, eq=False)
class Laid:
    """Every trial that was tried, those that came off with their samples."""

    tried: tuple[tuple[Planned, Record], ...]
    timings: tuple[Timing, ...]

    def of(self, kind: Kind, shape: Shape) -> dict[int, Timing]:
        """Return what came off of a shape, by repeat."""
        return {t.plan.repeat: t for t in self.timings if (t.plan.kind, t.plan.shape) == (kind, shape)}

    def why_not(self, kind: Kind, shape: Shape) -> str:
        """Return why a shape has no samples."""
        reasons = [r.reason for p, r in self.tried if (p.kind, p.shape) == (kind, shape) and r.status != "ok"]
        return reasons[-1] or "it does not say why" if reasons else "it was not measured"

    def status(self, kind: Kind, shape: Shape) -> str | None:
        """Return what became of a shape in the end; null where it was never tried."""
        states = [r.status for p, r in self.tried if (p.kind, p.shape) == (kind, shape)]
        return "ok" if "ok" in states else states[-1] if states else None

    def trials(self, *shapes: Shape) -> tuple[str, ...]:
        """Return the trials of some shapes, those of their shares among them."""
        return tuple(r.trial for p, r in self.tried if p.shape in shapes and p.kind in {"ring", "share"})


def laid_out(options: ScalingOptions, records: Records) -> Laid:
    """Lay out what the records hold."""
    plans = {planned_trial.trial.id: planned_trial for planned_trial in planned(options)}
    tried = tuple((plans[record.trial], record) for record in records if record.trial in plans)
    timings = (_timing(plan, record, records) for plan, record in tried if record.status == "ok")
    return Laid(tried, tuple(timing for timing in timings if timing.by_rank))


def _timing(plan: Planned, record: Record, records: Records) -> Timing:
    rows: dict[str, list[Samples]] = {}
    for number, name in enumerate(plan.names):
        series = sorted((s for s in record.series if (s.subject, s.quantity) == (number, TIME)), key=lambda s: s.rank)
        rows[name] = [records.samples(s) for s in series]
    common = min((len(row) for rank_rows in rows.values() for row in rank_rows), default=0)
    whole = common and all(len(rank_rows) == plan.trial.roles[0].ranks for rank_rows in rows.values())
    by_rank = {name: np.array([row[:common] for row in rank_rows]) for name, rank_rows in rows.items()} if whole else {}
    return Timing(plan, record, by_rank)
