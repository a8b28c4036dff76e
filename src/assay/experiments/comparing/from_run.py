"""What the records of a run say, whichever experiment it is of: one number for each quantity of each subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import unit_of
from assay.experiments.comparing.values import Name, Number
from assay.experiments.contention.warm import WARM
from assay.experiments.times import CLOCKS
from assay.stats.intervals import restarts_interval
from assay.store.identity import details_of, dtype_of, placed_on, work_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.plan import Trial
    from assay.core.results import Record, Summary
    from assay.machine.model import Machine
    from assay.store.runs import RunFolder

NOT_COMPARED = CLOCKS | {"start_us"}
"""What is kept beside the times: how the clock was, and when a call began."""

FAILED = "call_us"
"""The time that would be there of what failed: every way of timing takes it."""

Place = tuple[Name, str | None, str | None]


def numbers_of(folder: RunFolder) -> list[Number]:
    """Return every number of a run; of what was measured several times, the mean of the times it was."""
    trials = {trial.id: trial for decision in folder.decisions() for trial in decision.block.trials}
    by_location: dict[Place, list[Number]] = {}
    for record in folder.records():
        if record.trial in trials and trials[record.trial].settings.get("phase") != WARM:
            for number in _of_record(trials[record.trial], record, folder.machine):
                by_location.setdefault((number.name, number.device, number.model), []).append(number)
    return [_combined(several) for several in by_location.values()]


def _of_record(trial: Trial, record: Record, machine: Machine) -> Iterator[Number]:
    for role in trial.roles:
        if role.duty != "timed":
            continue
        device, model = placed_on(role, machine)
        for index, subject in enumerate(role.subjects):
            details = details_of(trial, role, subject, dtype_of(record, role.name, index))
            if record.status != "ok":
                name = Name(work_of(subject), details, FAILED)
                yield Number(name, device, model, None, unit=unit_of(FAILED), reason=record.reason)
                continue
            for summary in record.estimates:
                if (summary.role, summary.subject) == (role.name, index) and summary.quantity not in NOT_COMPARED:
                    name = Name(work_of(subject), details, summary.quantity, summary.estimate.method_key)
                    yield _number(name, device, model, summary, record)


def _number(name: Name, device: str | None, model: str | None, said: Summary, record: Record) -> Number:
    estimate = said.estimate
    alike = [s for s in record.series if (s.role, s.subject, s.quantity) == (said.role, said.subject, said.quantity)]
    restarts = len({series.restart for series in alike})
    return Number(
        name=name,
        device=device,
        model=model,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        unit=estimate.unit,
        processes=max(restarts, 1) if estimate.scope == "process" or restarts > 1 else estimate.n,
    )


def _combined(several: list[Number]) -> Number:
    """Return one number for several of the same thing: each record is one draw."""
    good = [number for number in several if number.value is not None]
    if len(good) < 2:
        return (good or several)[0]
    values = [number.value for number in good if number.value is not None]
    centre, low, high, _ = restarts_interval(values)
    first = good[0]
    return Number(first.name, first.device, first.model, centre, low, high, first.unit, len(good))
