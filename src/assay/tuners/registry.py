"""Find the tuner that a job names, have it tune, and judge what it chose."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.tuners.base import Found, why
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.plan import Subject, TunerName
    from assay.tuners.base import Job, Tunes

TUNERS: Mapping[TunerName, str] = {
    "pick": "assay.tuners.own",
    "triton": "assay.tuners.triton",
    "helion": "assay.tuners.helion",
    "command": "assay.tuners.command",
}

OWN_SPACE: frozenset[TunerName] = frozenset({"helion"})
"""Tuners that draw configurations from a space of their own, for workloads that list none."""

JUDGED: frozenset[TunerName] = frozenset({"triton", "helion"})
"""Tuners of others whose choice we can compute with: what they chose is checked as any subject is."""


def find(name: TunerName) -> Tunes:
    """Return a tuner by its name."""
    tunes: Tunes = importlib.import_module(TUNERS[name]).tune
    return tunes


def can_tune(name: TunerName, subject: Subject) -> bool:
    """Return whether a tuner has more than one configuration of a subject to choose from."""
    if name == "command":
        return True
    if name in OWN_SPACE:
        return subject.impl == name
    if subject.config is None:
        return False
    return len(registry.find(subject.workload, subject.impl).configs(subject.params)) > 1


def shortest_search_s(name: TunerName) -> float:
    """Return how long one search of a tuner takes at least, in seconds; 0 for tuners that keep to any budget."""
    if name != "helion":
        return 0.0
    from assay.tuners.helion import shortest_search_s

    return shortest_search_s()


def judged(job: Job, found: Found) -> Found:
    """Return what was found; a choice whose output is wrong, or which does not run here, is none."""
    if found.config is None or job.tuner.name not in JUDGED:
        return found
    workload = registry.find(job.subject.workload, job.subject.impl)
    try:
        prepared = workload.prepare(job.subject.params, found.config, device=job.device, seed=job.seed)
        check = prepared.check() if prepared.check is not None else None
        prepared.close()
    except Exception as error:  # noqa: BLE001 - whatever it raises is why it cannot be chosen
        return replace(found, config=None, time_us=None, reason=f"its choice does not run here: {why(error)}")
    if check is None or check.passed:
        return found
    wrong = f"its choice is wrong: the {check.measure} is {check.error:.3g}, more than {check.tolerance:.3g}"
    return replace(found, config=None, time_us=None, reason=wrong)
