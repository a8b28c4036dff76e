"""What the records of a run say of each kernel on each device, in the terms of the older files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.experiments.times import decisive
from assay.experiments.variance.older_format import Older, Pick, Repeats, key_of
from assay.store.identity import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.plan import Role, Subject, Trial
    from assay.core.results import Record, Tuning
    from assay.experiments.variance.older_format import Config
    from assay.machine.model import Machine
    from assay.store.records import Records

BY_ASSAY = "assay"
Where = tuple[str, str]
"""A kernel's name and the device it was on."""


class Timed(NamedTuple):
    """A role of a trial, and the record that has its times."""

    trial: Trial
    role: Role
    record: Record


def gathered(pairs: Iterable[tuple[Trial, Record]], records: Records, machine: Machine) -> list[Older]:
    """Return what trials that were measured say, one for each kernel and device, in the order they were taken."""
    good = [(trial, record) for trial, record in pairs if record.status == "ok"]
    names = kernel_names([role.subjects[0] for trial, _ in good for role in trial.roles if role.duty == "timed"])
    by_location: dict[Where, list[Timed]] = {}
    for trial, record in good:
        for role in trial.roles:
            if role.duty == "timed":
                where = names[key_of_subject(role.subjects[0])], device_of(role)
                by_location.setdefault(where, []).append(Timed(trial, role, record))
    return [_older(where, timed, records, machine) for where, timed in sorted(by_location.items())]


def kernel_names(subjects: Sequence[Subject]) -> dict[str, str]:
    """Return what each subject is called: by its label, and by its parameters too where two share a label."""
    different = {key_of_subject(subject): subject for subject in subjects}
    labels = [subject.label for subject in different.values()]
    return {
        key: subject.label if labels.count(subject.label) == 1 else f"{subject.label} {_written(subject)}"
        for key, subject in different.items()
    }


def key_of_subject(subject: Subject) -> str:
    """Return a text that tells a subject from others, whatever its configuration."""
    return subject.model_copy(update={"config": None}).model_dump_json()


def _written(subject: Subject) -> str:
    return " ".join(f"{name}={value}" for name, value in subject.params.items())


def device_of(role: Role) -> str:
    """Return where a role ran; several workers of a device are several results of it."""
    return ", ".join(dict.fromkeys(role.devices))


def _older(where: Where, measured: list[Timed], records: Records, machine: Machine) -> Older:
    kernel, device = where
    tunings = [t for _, role, record in measured for t in record.tunings if t.role == role.name]
    picks = tuple(
        Pick(config=dict(t.config), time_ms=None if t.time_us is None else t.time_us / 1e3, tuning_s=t.tuning_s)
        for t in tunings
        if t.config is not None
    )
    timed = (*_timed(measured, records), *_tried(tunings))
    return Older(
        kernel=kernel,
        device=device,
        picks=picks,
        timed=timed,
        configs_tested=max((len(t.tried) for t in tunings), default=None),
        identity=identity_of([(trial, role, role.subjects[0]) for trial, role, _ in measured], machine),
    )


def _timed(measured: list[Timed], records: Records) -> list[Repeats]:
    """Return the configuration that was timed in every trial: its median in each process, and the scatter there."""
    times: dict[str, tuple[Role, list[float], list[float]]] = {}
    for _, role, record in measured:
        quantity = decisive([record], role.name)
        for series in record.series:
            if (series.role, series.subject, series.rank, series.quantity) != (role.name, 0, 0, quantity):
                continue
            samples = records.samples(series)
            middle, mean = float(np.median(samples)), float(samples.mean())
            if len(samples) and middle > 0:
                _, medians, cvs = times.setdefault(key_of(_config(role)), (role, [], []))
                medians.append(middle / 1e3)
                cvs += [float(samples.std(ddof=1)) / mean] if len(samples) > 1 and mean > 0 else []
    return [
        Repeats(config=_config(role), times_ms=tuple(medians), cvs=tuple(c for c in cvs if c > 0), by=BY_ASSAY)
        for role, medians, cvs in times.values()
    ]


def _config(role: Role) -> Config | None:
    return None if role.subjects[0].config is None else dict(role.subjects[0].config)


def _tried(tunings: list[Tuning]) -> list[Repeats]:
    """Return every configuration that tuners timed, with what they saw in each process."""
    times: dict[tuple[str, str], tuple[Tuning, int, list[float]]] = {}
    for tuning in tunings:
        for index, tried in enumerate(tuning.tried):
            if tried.time_us is not None and tried.time_us > 0:
                key = (tuning.tuner, key_of(dict(tried.config)))
                times.setdefault(key, (tuning, index, []))[2].append(tried.time_us / 1e3)
    return [
        Repeats(config=dict(tuning.tried[index].config), times_ms=tuple(process_times), by=tuning.tuner)
        for tuning, index, process_times in times.values()
    ]
