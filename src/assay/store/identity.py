"""What a number is of: the work, and every detail that must agree before two numbers may be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from assay.isolation.targets import targets
from assay.store.history.keys import conditions, host_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import JsonValue

    from assay.core.plan import Role, Subject, Trial
    from assay.core.results import Findings, Record
    from assay.core.values import Scalar
    from assay.machine.model import Machine

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
"""In what two numbers may differ, as far as their trials say."""

MODEL: Aspect = "device model"
"""The model of a device is no detail of a number: across models numbers stand side by side."""

ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
DTYPE, ISOLATION, SHARED = "dtype", "isolation", "cores shared with"
SCHEDULE = frozenset({"schedule", "in turns", "in stages", "beside", "phase"})
"""Conditions that say what ran when, and at the same time as what."""


Identity = dict[str, dict[str, str]]
"""By aspect and name what must agree, as it is kept in files."""


class Detail(NamedTuple):
    """One thing that must agree: ``parameters``, ``rows``, ``256``."""

    aspect: Aspect
    name: str
    value: str


def work_of(subject: Subject) -> str:
    """Return what a subject is, in words that no other work has: of a command all of its words."""
    return subject.workload if subject.impl == "command" else subject.label


def details_of(trial: Trial, role: Role, subject: Subject, loaded_dtype: str | None = None) -> tuple[Detail, ...]:
    """Return what must agree, beyond the work, for two numbers to be of the same thing.

    ``loaded_dtype`` is that of a model's weights as they were loaded; null: it has none.
    """
    under = conditions(trial, role)
    if SHARED in under:  # the others' names say only which of several devices this is
        under[SHARED] = f"{len(str(under[SHARED]).split(','))} more"
    return (
        Detail("device", "on", role.devices[0].partition(":")[0]),
        *(Detail("dtype" if name == DTYPE else "parameters", name, value) for name, value in _sorted(subject.params)),
        *(Detail("configuration", f"config {name}", value) for name, value in _sorted(subject.config or {})),
        *([] if loaded_dtype is None else [Detail("dtype", "dtype of the weights", loaded_dtype)]),
        *([] if subject.source is None else [Detail("checkout", "checkout", subject.source.checkout)]),
        *(Detail(_aspect_of(name), name, value) for name, value in _sorted(under)),
    )


def dtype_of(record: Record, role: str, subject: int) -> str | None:
    """Return the dtype of a model's weights, as the workers of a role loaded them; null where none says."""
    facts = (facts for evidence in record.evidence if evidence.role == role for facts in evidence.subjects)
    return next((one.dtype for one in facts if one.subject == subject and one.dtype is not None), None)


def model_of(machine: Machine) -> str:
    """Return the models of a machine's GPUs, or of the host where it has none."""
    return ", ".join(dict.fromkeys(target.title for target in targets(machine).values())) or host_class(machine)


def placed_on(role: Role, machine: Machine) -> tuple[str, str]:
    """Return which devices a role is on, and their model: that of the host where they are cores."""
    targets_by_name = targets(machine)
    chosen = [targets_by_name[device] for device in role.devices if device in targets_by_name]
    if chosen:
        uuids = sorted({target.uuid for target in chosen})
        return " ".join(uuids), ", ".join(dict.fromkeys(target.title for target in chosen))
    return f"{machine.host} {','.join(sorted(set(role.devices)))}", host_class(machine)


def with_identity(findings: Findings, trials: Iterable[Trial], machine: Machine) -> Findings:
    """Return findings that name what they are of, so that they can be compared without their run folder."""
    trials_by_id = {trial.id: trial for trial in trials}
    named = [
        finding.model_copy(
            update={"identity": identity_of([part for trial in of for part in timed_in(trial)], machine)}
        )
        if (of := [trials_by_id[trial] for trial in finding.records if trial in trials_by_id])
        else finding
        for finding in findings.findings
    ]
    return findings.model_copy(update={"findings": tuple(named)})


def timed_in(trial: Trial) -> list[Part]:
    """Return everything whose time a trial takes."""
    return [(trial, role, subject) for role in trial.roles if role.duty == "timed" for subject in role.subjects]


def identity_of(parts: Iterable[Part], machine: Machine) -> Identity:
    """Return what was measured: by aspect and name the values, all of them where they differ.

    A configuration that a tuner chooses is a result, and no part of it.
    """
    values_by_detail: dict[tuple[str, str], dict[str, None]] = {}
    for trial, role, subject in parts:
        chosen = role.tuner is not None
        details = [d for d in details_of(trial, role, subject) if not (chosen and d.aspect == "configuration")]
        for detail in (Detail("workload", "workload", work_of(subject)), *details):
            values_by_detail.setdefault((detail.aspect, detail.name), {})[detail.value] = None
        values_by_detail.setdefault((MODEL, "model"), {})[placed_on(role, machine)[1]] = None
    identity: Identity = {}
    for (aspect, name), values in values_by_detail.items():
        identity.setdefault(aspect, {})[name] = ", ".join(sorted(values))
    return identity


def as_identity(content: JsonValue) -> Identity | None:
    """Return an identity as a file has it; null where it has none."""
    if not isinstance(content, dict):
        return None
    return {
        aspect: {name: str(value) for name, value in values.items()}
        for aspect, values in content.items()
        if isinstance(values, dict)
    }


def model_in(identity: Identity) -> str | None:
    """Return the model of the devices that an identity names; null where it names none."""
    return identity.get(MODEL, {}).get("model")


def details_in(identity: Identity) -> tuple[Detail, ...]:
    """Return an identity as it was written, as details."""
    return tuple(
        Detail(aspect, name, value)
        for aspect in ASPECTS
        if aspect != MODEL
        for name, value in sorted(identity.get(aspect, {}).items())
    )


def _aspect_of(condition: str) -> Aspect:
    return "isolation" if condition == ISOLATION else "schedule" if condition in SCHEDULE else "conditions"


def _sorted(params: Mapping[str, Scalar]) -> Sequence[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in params.items())
