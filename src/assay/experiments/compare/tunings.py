"""Tuning results: one kernel on one device, from the records of a run or an older tuner's file; and groups."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydantic import JsonValue

from assay.core.errors import BadInput, DamagedFile
from assay.core.values import Value
from assay.experiments.reporting import primary_time
from assay.store.identity import Identity, identity_of
from assay.store.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from assay.core.results import Record, Tuning
    from assay.core.values import Role, Subject, Trial
    from assay.machine.model import Machine
    from assay.store.records import Records


Config = dict[str, JsonValue]
"""A configuration as a tuner writes it; values may be lists."""


class TuningPick(Value):
    """What one tuning chose, and the time it saw. Null: it does not say."""

    config: Config | None
    time_ms: float | None
    tuning_s: float | None = None


class RepeatedTimes(Value):
    """One configuration timed in several processes: the time in each, and the scatter within each where it is known.

    ``timer`` says who timed it: times of Assay's own instruments and of a tuner are not repeats of each other.
    """

    config: Config | None
    times_ms: tuple[float, ...]
    cvs: tuple[float, ...] = ()
    timer: str | None = None


class KernelTuning(Value):
    """One kernel on one device, as a file tells it; ``notes`` say what of it could not be used.

    ``identity`` is what was measured: parameters, configuration, schedule and so on. Null: the file does not say.
    """

    kernel: str
    device: str | None = None
    picks: tuple[TuningPick, ...] = ()
    timed: tuple[RepeatedTimes, ...] = ()
    configs_tested: int | None = None
    identity: Identity | None = None
    notes: tuple[str, ...] = ()


def most_common_pick(picks: tuple[TuningPick, ...]) -> TuningPick | None:
    """Return the configuration that was picked most often, with the median of its times; null where none was picked."""
    configs = [config_key(pick.config) for pick in picks if pick.config is not None]
    if not configs:
        return None
    most = max(dict.fromkeys(configs), key=configs.count)
    same = [pick for pick in picks if pick.config is not None and config_key(pick.config) == most]
    times = [pick.time_ms for pick in same if pick.time_ms is not None]
    return TuningPick(config=same[0].config, time_ms=median(times) if times else None)


def config_key(config: Config | None) -> str:
    """Return a text that is the same for the same configuration, whatever the order of its names."""
    return json.dumps(config, sort_keys=True)


TIMED_BY_ASSAY = "assay"
KernelOnDevice = tuple[str, str]
"""A kernel's name and the device it was on."""


class TimedRole(NamedTuple):
    """A role of a trial, and the record that has its times."""

    trial: Trial
    role: Role
    record: Record


def gather_tunings(pairs: Iterable[tuple[Trial, Record]], records: Records, machine: Machine) -> list[KernelTuning]:
    """Return what trials that were measured say, one for each kernel and device, in the order they were taken."""
    good = [(trial, record) for trial, record in pairs if record.status == "ok"]
    names = kernel_names([role.subjects[0] for trial, _ in good for role in trial.roles if role.duty == "timed"])
    by_location: dict[KernelOnDevice, list[TimedRole]] = {}
    for trial, record in good:
        for role in trial.roles:
            if role.duty == "timed":
                where = names[subject_key(role.subjects[0])], role_device(role)
                by_location.setdefault(where, []).append(TimedRole(trial, role, record))
    return [_kernel_tuning(where, timed, records, machine) for where, timed in sorted(by_location.items())]


def kernel_names(subjects: Sequence[Subject]) -> dict[str, str]:
    """Return what each subject is called: by its label, and by its parameters too where two share a label."""
    different = {subject_key(subject): subject for subject in subjects}
    labels = [subject.label for subject in different.values()]
    return {
        key: subject.label if labels.count(subject.label) == 1 else f"{subject.label} {_params_text(subject)}"
        for key, subject in different.items()
    }


def subject_key(subject: Subject) -> str:
    """Return a text that tells a subject from others, whatever its configuration."""
    return subject.model_copy(update={"config": None}).model_dump_json()


def _params_text(subject: Subject) -> str:
    return " ".join(f"{name}={value}" for name, value in subject.params.items())


def role_device(role: Role) -> str:
    """Return where a role ran; several workers of a device are several results of it."""
    return ", ".join(dict.fromkeys(role.devices))


def _kernel_tuning(
    where: KernelOnDevice, measured: list[TimedRole], records: Records, machine: Machine
) -> KernelTuning:
    kernel, device = where
    tunings = [t for _, role, record in measured for t in record.tunings if t.role == role.name]
    picks = tuple(
        TuningPick(config=dict(t.config), time_ms=None if t.time_us is None else t.time_us / 1e3, tuning_s=t.tuning_s)
        for t in tunings
        if t.config is not None
    )
    timed = (*_timed_configs(measured, records), *_tried_configs(tunings))
    return KernelTuning(
        kernel=kernel,
        device=device,
        picks=picks,
        timed=timed,
        configs_tested=max((len(t.tried) for t in tunings), default=None),
        identity=identity_of([(trial, role, role.subjects[0]) for trial, role, _ in measured], machine),
    )


def _timed_configs(measured: list[TimedRole], records: Records) -> list[RepeatedTimes]:
    """Return the configuration that was timed in every trial: its median in each process, and the scatter there."""
    times: dict[str, tuple[Role, list[float], list[float]]] = {}
    for _, role, record in measured:
        quantity = primary_time([record], role.name)
        for series in record.series:
            if (series.role, series.subject, series.rank, series.quantity) != (role.name, 0, 0, quantity):
                continue
            samples = records.samples(series)
            middle, mean = float(np.median(samples)), float(samples.mean())
            if len(samples) and middle > 0:
                _, medians, cvs = times.setdefault(config_key(_role_config(role)), (role, [], []))
                medians.append(middle / 1e3)
                cvs += [float(samples.std(ddof=1)) / mean] if len(samples) > 1 and mean > 0 else []
    return [
        RepeatedTimes(
            config=_role_config(role), times_ms=tuple(medians), cvs=tuple(c for c in cvs if c > 0), timer=TIMED_BY_ASSAY
        )
        for role, medians, cvs in times.values()
    ]


def _role_config(role: Role) -> Config | None:
    return None if role.subjects[0].config is None else dict(role.subjects[0].config)


def _tried_configs(tunings: list[Tuning]) -> list[RepeatedTimes]:
    """Return every configuration that tuners timed, with what they saw in each process."""
    times: dict[tuple[str, str], tuple[Tuning, int, list[float]]] = {}
    for tuning in tunings:
        for index, tried in enumerate(tuning.tried):
            if tried.time_us is not None and tried.time_us > 0:
                key = (tuning.tuner, config_key(dict(tried.config)))
                times.setdefault(key, (tuning, index, []))[2].append(tried.time_us / 1e3)
    return [
        RepeatedTimes(config=dict(tuning.tried[index].config), times_ms=tuple(process_times), timer=tuning.tuner)
        for tuning, index, process_times in times.values()
    ]


PHASED_EXPERIMENT = "contention"
READABLE_EXPERIMENTS = {PHASED_EXPERIMENT, "run"}
"""The experiments whose runs can be compared."""

RECORDS_FILE = "records.jsonl"


@dataclass(frozen=True)
class TuningSource:
    """One kernel on one device, and the file or folder that says so."""

    path: str
    tuning: KernelTuning


@dataclass(frozen=True)
class TuningGroup:
    """What could be read of one group, and in words what could not."""

    sources: tuple[TuningSource, ...]
    unusable: tuple[str, ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels it tells of, each once, in order."""
        return tuple(dict.fromkeys(source.tuning.kernel for source in self.sources))


def read_group(paths: Sequence[Path], phase: str) -> TuningGroup:
    """Read every path; ``phase`` is what a run of ``assay contention run`` stands for in this group."""
    sources: list[TuningSource] = []
    unusable: list[str] = []
    for path in paths:
        try:
            sources += _read_path(path, phase)
        except DamagedFile:
            raise
        except BadInput as error:
            unusable.append(str(error).rstrip("."))
    return TuningGroup(tuple(sources), tuple(unusable))


def is_phased_run(path: Path) -> bool:
    """Return whether a path is the folder of a run that has phases of its own."""
    folder = path.parent if path.name == RECORDS_FILE else path
    return (folder / "plan.json").is_file() and RunFolder.open(folder).plan.experiment == PHASED_EXPERIMENT


def _read_path(path: Path, phase: str) -> list[TuningSource]:
    if path.is_dir():
        return _read_folder(path, phase)
    if path.name == RECORDS_FILE:
        return _read_run(path.parent, phase)
    return [_read_older_file(path)]


def _read_folder(path: Path, phase: str) -> list[TuningSource]:
    """Read a run folder, or every older file in a folder of such."""
    if (path / "plan.json").is_file():
        return _read_run(path, phase)
    files = sorted(path.glob("*.json"))
    if not files:
        raise BadInput(f"{path} is neither a run folder nor a folder of .json files.")
    return [_read_older_file(file) for file in files]


def _read_older_file(path: Path) -> TuningSource:
    from assay.compat.contention import read_tuning_file

    return read_tuning_file(path)


def _read_run(path: Path, phase: str) -> list[TuningSource]:
    """Read the records of a run; of one with phases, those of the phase that is meant."""
    folder = RunFolder.open(path)
    if folder.plan.experiment not in READABLE_EXPERIMENTS:
        readable = " and ".join(
            f"`assay {'contention run' if name == PHASED_EXPERIMENT else name}`"
            for name in sorted(READABLE_EXPERIMENTS)
        )
        raise BadInput(
            f"{path} is a run of the experiment {folder.plan.experiment}; runs of {readable} can be compared."
        )
    trials = {trial.id: trial for decision in folder.decisions() for trial in decision.block.trials}
    records = folder.records()
    phased = folder.plan.experiment == PHASED_EXPERIMENT
    pairs = [
        (trials[record.trial], record)
        for record in records
        if record.trial in trials and _is_compared(trials[record.trial], record, phase if phased else None)
    ]
    tunings = gather_tunings(pairs, records, folder.machine)
    if not tunings:
        what = f"nothing that was measured in its phase {phase}" if phased else "nothing that was measured"
        raise BadInput(f"{path} holds {what}.")
    return [TuningSource(str(path), older) for older in tunings]


def _is_compared(trial: Trial, record: Record, phase: str | None) -> bool:
    return record.block != "yardsticks" and (phase is None or trial.settings.get("phase") == phase)
