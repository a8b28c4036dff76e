"""All that the records of a study of power say, as values, gathered once for findings, page and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.power.characterize.effects import company_effects, near_against_far, spreads
from assay.experiments.power.characterize.fitting import reasons
from assay.experiments.power.characterize.gpus import rows_of
from assay.experiments.power.characterize.numbers import per_gpu
from assay.experiments.power.characterize.plan import by_trial, is_idle

if TYPE_CHECKING:
    from assay.core.results import Record
    from assay.experiments.power.characterize.effects import Effect, Spread
    from assay.experiments.power.characterize.numbers import GpuCase
    from assay.experiments.power.characterize.options import Case, CharacterizeOptions
    from assay.experiments.power.characterize.placing import Placed
    from assay.experiments.power.rows import GpuRow
    from assay.machine.model import Machine
    from assay.store.records import Records


@dataclass(frozen=True)
class Study:
    """All that the records say, as values; ``left_out`` has the cases that do not fit here with the reason."""

    rows: tuple[GpuRow, ...]
    gpus: tuple[GpuCase, ...]
    company: tuple[Effect, ...]
    far: tuple[Effect, ...]
    spreads: tuple[Spread, ...]
    left_out: dict[str, str]
    pairs: tuple[tuple[Placed, Record], ...]


def study_of(machine: Machine, options: CharacterizeOptions, records: Records) -> Study:
    """Return what the records say; cases are in the order of the file."""
    rows = tuple(rows_of(machine, options, records))
    cases = by_trial(machine, options, options.repeats)
    order = {case.name: index for index, case in enumerate(options.cases)}
    idle = {case.name for case in options.cases if is_idle(case)}
    busy = [row for row in rows if row.case not in idle]
    return Study(
        rows=rows,
        gpus=tuple(sorted(per_gpu(rows), key=lambda gpu: order[gpu.case])),
        company=tuple(company_effects(options, busy)),
        far=tuple(near_against_far(options, busy)),
        spreads=tuple(spreads(options, busy)),
        left_out=reasons(machine, options),
        pairs=tuple((cases[record.trial], record) for record in records if record.trial in cases),
    )


def plainest(options: CharacterizeOptions, study: Study) -> Case | None:
    """Return the case with the least company that was measured, idleness left out; null where there is none."""
    measured = {gpu.case for gpu in study.gpus}
    busy = [case for case in options.cases if not is_idle(case) and case.name in measured]
    return min(busy, key=lambda case: (len(case.noise), case.base.count or len(options.devices)), default=None)
