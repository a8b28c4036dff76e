"""What was measured: the details that must agree before two numbers may be compared, and the key of a history series.

Points of different runs form one series when work, device, conditions and estimation method agree. What may change
from run to run is not part of the key but stored with each point: the commit, the host within its class, the driver,
versions, and the measurement duration.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from assay.core.results import method_key
from assay.core.values import Adaptive, Continuous, Counted, Paired, Params, Staged, Value
from assay.machine.devices import gpu_targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import JsonValue

    from assay.core.results import Findings, Record
    from assay.core.values import Role, Scalar, Subject, Trial
    from assay.machine.devices import GpuTarget
    from assay.machine.model import Machine


EXCLUSIVE_CORES = frozenset({"cpu", "numa", "full"})


class SeriesKey(Value):
    """What all points of a series have in common."""

    workload: str
    impl: str
    params: Params
    config: Params | None
    project: str | None
    location: str
    gpu: str | None
    device: str | None
    device_kind: str
    conditions: Params
    quantity: str
    method: str

    @property
    def label(self) -> str:
        """A readable name of what is measured: ``softmax@numpy call_us``."""
        work = self.workload if self.impl in {"python", "command"} else f"{self.workload}@{self.impl}"
        return f"{work} {self.quantity}"

    @property
    def where(self) -> str:
        """A readable name of the device it is measured on."""
        return self.gpu or f"{self.device}, {self.location}"

    @property
    def details(self) -> str:
        """Parameters, configuration and conditions on one line."""
        named = {**self.params, **{f"config {name}": value for name, value in (self.config or {}).items()}}
        return " ".join(f"{name}={value}" for name, value in {**named, **self.conditions}.items())


class SeriesKeys:
    """The keys of one run's series."""

    def __init__(self, machine: Machine, cwd: str) -> None:
        self._host = host_class(machine)
        self._targets = gpu_targets(machine)
        self._project = PurePath(cwd).name or None

    def described(self, trial: Trial, role: Role, subject: Subject) -> str:
        """Return what all series of a subject have in common, as canonical JSON."""
        is_user_code = subject.impl in {"python", "command"}
        kind = role.devices[0].partition(":")[0]
        gpus = _gpus_of(role, self._targets) if kind == "cuda" else None
        description = {
            "workload": subject.workload,
            "impl": subject.impl,
            "params": subject.params,
            "config": subject.config,
            "project": self._project if is_user_code else None,
            "location": gpus[0] if gpus else self._host,
            "gpu": gpus[1] if gpus else None,
            "device": None if gpus else ",".join(sorted(set(role.devices))),
            "device_kind": kind,
            "conditions": trial_conditions(trial, role),
        }
        return canonical_json(description)


def _gpus_of(role: Role, targets_by_name: Mapping[str, GpuTarget]) -> tuple[str, str] | None:
    """Return the UUIDs and the models of the GPUs that a role is on; null where there are none."""
    targets = [targets_by_name[device] for device in role.devices if device in targets_by_name]
    if not targets:
        return None
    uuids = sorted({target.uuid for target in targets})
    return " ".join(uuids), ", ".join(dict.fromkeys(target.title for target in targets))


def host_class(machine: Machine) -> str:
    """Return the class of equivalent hosts: the model and number of their cores."""
    return f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"


def trial_conditions(trial: Trial, role: Role) -> Params:
    """Return the conditions under which a role is timed, beyond its work and device; defaults are left out."""
    conditions: Params = {"isolation": role.isolation}
    if trial.schedule == "together":
        conditions["schedule"] = trial.schedule
    if role.ranks > 1:
        conditions["ranks"] = role.ranks
    if role.metered:
        conditions["metered"] = ",".join(sorted(role.metered))
    if role.isolation in EXCLUSIVE_CORES and set(trial.placed_with) - set(role.devices):
        conditions["cores shared with"] = ",".join(sorted(set(trial.placed_with) - set(role.devices)))
    if trial.cpu_groups is not None:
        conditions["cpu_groups"] = trial.cpu_groups
    if isinstance(trial.mode, Staged):
        conditions["in stages"] = True
    elif len(role.subjects) > 1 or trial.schedule == "turns":
        conditions["in turns"] = True
    # Loads run at the same time, and under the schedule ``together`` also the other roles.
    others = [r for r in trial.roles if r.name != role.name and (r.duty == "load" or trial.schedule == "together")]
    if others:
        labels = sorted(f"{s.label} on {','.join(other.devices)}" for other in others for s in other.subjects)
        conditions["beside"] = ", ".join(labels)
    return {**conditions, **_mode_conditions(trial), **trial.settings}


def _mode_conditions(trial: Trial) -> Params:
    """Return how calls are timed, where it differs from the default."""
    mode = trial.mode
    conditions: Params = {}
    if isinstance(mode, Adaptive | Paired) and mode.cache is not None:
        conditions["cache"] = mode.cache
    if isinstance(mode, Counted):
        conditions["counted"] = True
    if isinstance(mode, Continuous):
        conditions["duty"] = mode.duty
    if trial.settle_s is not None:
        conditions["settled"] = True
    return conditions


@lru_cache(maxsize=100_000)
def series_key(described: str, quantity: str, method: str) -> tuple[str, SeriesKey]:
    """Return one quantity's name and key; the name is a hash of all but the GPU's title, which its UUID implies."""
    content = {**json.loads(described), "quantity": quantity, "method": method_key(method)}
    return short_hash({name: value for name, value in content.items() if name != "gpu"}), SeriesKey(**content)


def canonical_json(content: object) -> str:
    """Return plain data as text, the same on any machine."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def short_hash(content: object) -> str:
    """Return a short hash of plain data."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:12]


if TYPE_CHECKING:
    Part = tuple[Trial, Role, Subject]

Aspect = Literal[
    "workload",
    "device",
    "parameters",
    "configuration",
    "dtype",
    "schedule",
    "isolation",
    "conditions",
    "checkout",
    "device model",
]
"""The aspects in which two numbers may differ, as far as their trials say."""

MODEL: Aspect = "device model"
"""The model of a device is not part of the identity: numbers of different models are compared side by side."""

ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
DTYPE, ISOLATION, SHARED_CORES = "dtype", "isolation", "cores shared with"
SCHEDULE = frozenset({"schedule", "in turns", "in stages", "beside", "phase"})
"""Conditions that say what ran when, and what ran concurrently."""


Identity = dict[str, dict[str, str]]
"""Values that must agree, by aspect and name, as stored in files."""


class IdentityDetail(NamedTuple):
    """One detail that must agree: ``parameters``, ``rows``, ``256``."""

    aspect: Aspect
    name: str
    value: str


def work_name(subject: Subject) -> str:
    """Return a name of a subject's work that is unique: for a command all of its arguments."""
    return subject.workload if subject.impl == "command" else subject.label


def subject_details(
    trial: Trial, role: Role, subject: Subject, loaded_dtype: str | None = None
) -> tuple[IdentityDetail, ...]:
    """Return the details beyond the work that must agree for two numbers to measure the same thing.

    ``loaded_dtype`` is that of a model's weights as loaded; null: it has none.
    """
    conditions = trial_conditions(trial, role)
    if SHARED_CORES in conditions:  # the other devices' names only identify which of several devices this is
        conditions[SHARED_CORES] = f"{len(str(conditions[SHARED_CORES]).split(','))} more"
    details = [IdentityDetail("device", "on", role.devices[0].partition(":")[0])]
    for name, value in _sorted_params(subject.params):
        details.append(IdentityDetail("dtype" if name == DTYPE else "parameters", name, value))
    for name, value in _sorted_params(subject.config or {}):
        details.append(IdentityDetail("configuration", f"config {name}", value))
    if loaded_dtype is not None:
        details.append(IdentityDetail("dtype", "dtype of the weights", loaded_dtype))
    if subject.source is not None:
        details.append(IdentityDetail("checkout", "checkout", subject.source.checkout))
    for name, value in _sorted_params(conditions):
        details.append(IdentityDetail(_aspect_of(name), name, value))
    return tuple(details)


def loaded_dtype_of(record: Record, role: str, subject: int) -> str | None:
    """Return the dtype of a model's weights as loaded by the workers of a role; null where none reports it."""
    facts = (facts for evidence in record.evidence if evidence.role == role for facts in evidence.subjects)
    return next((fact.dtype for fact in facts if fact.subject == subject and fact.dtype is not None), None)


def machine_model(machine: Machine) -> str:
    """Return the models of a machine's GPUs, or the host class if it has none."""
    return ", ".join(dict.fromkeys(target.title for target in gpu_targets(machine).values())) or host_class(machine)


def devices_and_model(role: Role, machine: Machine) -> tuple[str, str]:
    """Return the devices a role is on, and their model: that of the host for CPU cores."""
    if gpus := _gpus_of(role, gpu_targets(machine)):
        return gpus
    return f"{machine.host} {','.join(sorted(set(role.devices)))}", host_class(machine)


def with_identity(findings: Findings, trials: Iterable[Trial], machine: Machine) -> Findings:
    """Return findings with their identity, so that they can be compared without their run folder."""
    trials_by_id = {trial.id: trial for trial in trials}
    identified = [
        finding.model_copy(
            update={"identity": identity_of([part for trial in of for part in timed_parts(trial)], machine)}
        )
        if (of := [trials_by_id[trial] for trial in finding.records if trial in trials_by_id])
        else finding
        for finding in findings.findings
    ]
    return findings.model_copy(update={"findings": tuple(identified)})


def timed_parts(trial: Trial) -> list[Part]:
    """Return everything that a trial times."""
    return [(trial, role, subject) for role in trial.roles if role.duty == "timed" for subject in role.subjects]


def identity_of(parts: Iterable[Part], machine: Machine) -> Identity:
    """Return what was measured: values by aspect and name, joined where they differ.

    A configuration chosen by a tuner is a result, so it is not part of it.
    """
    values_by_detail: dict[tuple[str, str], dict[str, None]] = {}
    for trial, role, subject in parts:
        is_tuned = role.tuner is not None
        details = [d for d in subject_details(trial, role, subject) if not (is_tuned and d.aspect == "configuration")]
        for detail in (IdentityDetail("workload", "workload", work_name(subject)), *details):
            values_by_detail.setdefault((detail.aspect, detail.name), {})[detail.value] = None
        values_by_detail.setdefault((MODEL, "model"), {})[devices_and_model(role, machine)[1]] = None
    identity: Identity = {}
    for (aspect, name), values in values_by_detail.items():
        identity.setdefault(aspect, {})[name] = ", ".join(sorted(values))
    return identity


def parse_identity(content: JsonValue) -> Identity | None:
    """Return an identity as read from a file; null where it has none."""
    if not isinstance(content, dict):
        return None
    return {
        aspect: {name: str(value) for name, value in values.items()}
        for aspect, values in content.items()
        if isinstance(values, dict)
    }


def identity_model(identity: Identity) -> str | None:
    """Return the device model in an identity; null where it has none."""
    return identity.get(MODEL, {}).get("model")


def identity_details(identity: Identity) -> tuple[IdentityDetail, ...]:
    """Return a stored identity as details."""
    return tuple(
        IdentityDetail(aspect, name, value)
        for aspect in ASPECTS
        if aspect != MODEL
        for name, value in sorted(identity.get(aspect, {}).items())
    )


def _aspect_of(condition: str) -> Aspect:
    return "isolation" if condition == ISOLATION else "schedule" if condition in SCHEDULE else "conditions"


def _sorted_params(params: Mapping[str, Scalar]) -> Sequence[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in params.items())
