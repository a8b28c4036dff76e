"""What the records of a run say, whichever experiment it is of: one number for each quantity of each subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import unit_of
from assay.experiments.comparing.values import Name, Number
from assay.experiments.contention.warm import WARM
from assay.experiments.times import CLOCKS
from assay.isolation.targets import targets
from assay.stats.intervals import restarts_interval
from assay.store.history.keys import conditions, host_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.core.plan import Role, Subject, Trial
    from assay.core.results import Record, Summary
    from assay.machine.model import Machine
    from assay.store.runs import RunFolder

NOT_COMPARED = CLOCKS | {"start_us"}
"""What is kept beside the times: how the clock was, and when a call began."""

FAILED = "call_us"
"""The time that would be there of what failed: every way of timing takes it."""

SHARED = "cores shared with"

Place = tuple[Name, str | None, str | None]


def numbers_of(folder: RunFolder) -> list[Number]:
    """Return every number of a run; of what was measured several times, the mean of the times it was."""
    trials = {trial.id: trial for decision in folder.decisions() for trial in decision.block.trials}
    found: dict[Place, list[Number]] = {}
    for record in folder.records():
        if record.trial in trials and trials[record.trial].settings.get("phase") != WARM:
            for number in _of_record(trials[record.trial], record, folder.machine):
                found.setdefault((number.name, number.device, number.model), []).append(number)
    return [_combined(several) for several in found.values()]


def _of_record(trial: Trial, record: Record, machine: Machine) -> Iterator[Number]:
    for role in trial.roles:
        if role.duty != "timed":
            continue
        device, model = _where(role, machine)
        for place, subject in enumerate(role.subjects):
            work, details = subject.label, tuple(_details(trial, role, subject))
            if record.status != "ok":
                name = Name(work, details, FAILED)
                yield Number(name, device, model, None, unit=unit_of(FAILED), reason=record.reason)
                continue
            for said in record.estimates:
                if (said.role, said.subject) == (role.name, place) and said.quantity not in NOT_COMPARED:
                    yield _number(Name(work, details, said.quantity), device, model, said, record)


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


def _where(role: Role, machine: Machine) -> tuple[str | None, str | None]:
    """Return which devices a role is on, and their model."""
    known = targets(machine)
    found = [known[device] for device in role.devices if device in known]
    if found:
        return " ".join(sorted({each.uuid for each in found})), ", ".join(dict.fromkeys(each.title for each in found))
    return f"{machine.host} {','.join(sorted(set(role.devices)))}", host_class(machine)


def _details(trial: Trial, role: Role, subject: Subject) -> Iterable[tuple[str, str]]:
    """Return what must be the same, beyond the work, for two numbers to be of the same thing."""
    yield "on", role.devices[0].partition(":")[0]
    yield from _written(subject.params)
    yield from ((f"config {name}", value) for name, value in _written(subject.config or {}))
    if subject.source is not None:
        yield "checkout", subject.source.checkout
    under = conditions(trial, role)
    if SHARED in under:  # the others' names tell only which of several devices this is
        under[SHARED] = f"{len(str(under[SHARED]).split(','))} more"
    yield from _written(under)


def _written(params: dict[str, str | int | float | bool | None]) -> Iterable[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in params.items())
