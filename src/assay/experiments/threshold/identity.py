"""What two results of a threshold must have in common: both paths, what does not vary, and how they were measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.store.identity import DTYPE, ISOLATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.plan import Subject
    from assay.experiments.threshold.options import Threshold, ThresholdOptions
    from assay.store.identity import Aspect, Identity


OF_ALL = frozenset({"on", ISOLATION, "cache", "cpu_groups"})
"""Names of an identity that are of all thresholds; those of one begin with its name."""


def identity_of(options: ThresholdOptions) -> Identity:
    """Return all that must agree for thresholds to be comparable, but the device, the margin and the sizes."""
    identity: Identity = {
        "device": {"on": options.device.partition(":")[0]},
        "isolation": {ISOLATION: options.isolation},
    }
    conditions = {"cache": options.cache, "cpu_groups": options.cpu_groups}
    identity["conditions"] = {name: str(value) for name, value in conditions.items() if value is not None}
    for threshold in options.thresholds:
        for aspect, name, value in _of_threshold(threshold):
            identity.setdefault(aspect, {})[f"{threshold.name} {name}"] = value
    return identity


def _of_threshold(threshold: Threshold) -> Iterator[tuple[Aspect, str, str]]:
    """Give both paths, and what of their parameters and configuration the grid does not vary."""
    first = threshold.points[0]
    for side, subject in (("reference", first.reference), ("fast", first.fast)):
        yield "workload", side, subject.label
        for name, value in _fixed(subject, set(first.params)).items():
            yield ("dtype" if name == DTYPE else "parameters"), f"{side} {name}", value
        for name, setting in (subject.config or {}).items():
            yield "configuration", f"{side} {name}", str(setting)


def _fixed(subject: Subject, varied: set[str]) -> dict[str, str]:
    return {name: str(value) for name, value in sorted(subject.params.items()) if name not in varied}


def shared_with(identity: Identity, names: set[str]) -> Identity:
    """Return what of an identity is of some thresholds, or of all."""
    return {
        aspect: {
            name: value
            for name, value in values.items()
            if name in OF_ALL or any(name.startswith(f"{threshold} ") for threshold in names)
        }
        for aspect, values in identity.items()
    }
