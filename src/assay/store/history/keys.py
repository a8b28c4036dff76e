"""What makes points of different runs one series: the same work, on the same device, under the same conditions.

The method of the estimate is part of it: numbers that another estimator gives are another series, and no regression.
Left out is what may change from run to run and is told beside each point: the code (its commit), the host of a class,
the driver, versions, how long was measured.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from assay.core.results import method_key
from assay.core.values import Params, Value
from assay.isolation.targets import targets

if TYPE_CHECKING:
    from assay.core.plan import Method, Role, Subject, Trial
    from assay.machine.model import Machine

CORES_OF_ITS_OWN = frozenset({"cpu", "numa", "full"})


class Key(Value):
    """All that a series' points have in common."""

    workload: str
    impl: str
    params: Params
    config: Params | None
    project: str | None
    place: str
    gpu: str | None
    device: str | None
    device_kind: str
    conditions: Params
    quantity: str
    method: str

    @property
    def label(self) -> str:
        """What is measured, for people: ``softmax@numpy call_us``."""
        work = self.workload if self.impl in {"python", "command"} else f"{self.workload}@{self.impl}"
        return f"{work} {self.quantity}"

    @property
    def where(self) -> str:
        """On what it is measured, for people."""
        return self.gpu or f"{self.device}, {self.place}"

    @property
    def details(self) -> str:
        """Parameters, configuration and conditions on one line."""
        named = {**self.params, **{f"config {name}": value for name, value in (self.config or {}).items()}}
        return " ".join(f"{name}={value}" for name, value in {**named, **self.conditions}.items())


class Keys:
    """The keys of one run's series."""

    def __init__(self, machine: Machine, cwd: str) -> None:
        self._host = host_class(machine)
        self._targets = targets(machine)
        self._project = PurePath(cwd).name or None

    def described(self, trial: Trial, role: Role, subject: Subject) -> str:
        """Return all that the series of a subject have in common, as text."""
        own = subject.impl in {"python", "command"}
        description = {
            "workload": subject.workload,
            "impl": subject.impl,
            "params": subject.params,
            "config": subject.config,
            "project": self._project if own else None,
            **self._where(role),
            "conditions": conditions(trial, role),
        }
        return as_text(description)

    def _where(self, role: Role) -> dict[str, str | None]:
        """Return which GPUs, or which cores of which class of host."""
        kind = role.devices[0].partition(":")[0]
        device_targets = [self._targets[device] for device in role.devices if device in self._targets]
        if kind == "cuda" and device_targets:
            names = dict.fromkeys(target.title for target in device_targets)
            uuids = sorted({target.uuid for target in device_targets})
            return {"place": " ".join(uuids), "gpu": ", ".join(names), "device": None, "device_kind": kind}
        device = ",".join(sorted(set(role.devices)))
        return {"place": self._host, "gpu": None, "device": device, "device_kind": kind}


def host_class(machine: Machine) -> str:
    """Return what hosts have in common that are as good as each other: the model and number of their cores."""
    return f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"


def conditions(trial: Trial, role: Role) -> Params:
    """Return under what a role is timed, beyond its work and device; what is as usual is left out."""
    result: Params = {"isolation": role.isolation}
    if trial.schedule == "together":
        result["schedule"] = trial.schedule
    if role.ranks > 1:
        result["ranks"] = role.ranks
    if role.metered:
        result["metered"] = ",".join(sorted(role.metered))
    if role.isolation in CORES_OF_ITS_OWN and set(trial.placed_with) - set(role.devices):
        result["cores shared with"] = ",".join(sorted(set(trial.placed_with) - set(role.devices)))
    if trial.cpu_groups is not None:
        result["cpu_groups"] = trial.cpu_groups
    if role.in_stages:
        result["in stages"] = True
    elif len(role.subjects) > 1 or trial.schedule == "turns":
        result["in turns"] = True
    if concurrent := _company(trial, role):
        result["beside"] = concurrent
    return {**result, **_of_method(trial.method), **trial.settings}


def _of_method(method: Method) -> Params:
    """Return how calls are timed, where it is not as usual."""
    result: Params = {}
    if method.cache is not None:
        result["cache"] = method.cache
    if method.benchmark_runs is not None:
        result["counted"] = True
    if method.continuous:
        result["duty"] = method.duty
    if method.settle_s is not None:
        result["settled"] = True
    return result


def _company(trial: Trial, role: Role) -> str:
    """Return what runs at the same time: loads, and under `together` the other roles."""
    others = [
        other
        for other in trial.roles
        if other.name != role.name and (other.duty == "load" or trial.schedule == "together")
    ]
    return ", ".join(
        sorted(f"{subject.label} on {','.join(other.devices)}" for other in others for subject in other.subjects)
    )


@lru_cache(maxsize=100_000)
def named(described: str, quantity: str, method: str) -> tuple[str, Key]:
    """Return the key of one quantity, and its name: a hash of all but a GPU's title, which adds nothing to its UUID."""
    content = {**json.loads(described), "quantity": quantity, "method": method_key(method)}
    return short_hash({name: value for name, value in content.items() if name != "gpu"}), Key(**content)


def as_text(content: object) -> str:
    """Return plain data as text, the same on any machine."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def short_hash(content: object) -> str:
    """Return a short hash of plain data."""
    return hashlib.sha256(as_text(content).encode()).hexdigest()[:12]
