"""Which parameter of a workload a load sweep turns, and what becomes of the workload at each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.experiments.power.sweep.options import CAPS, Point
from assay.workloads import registry
from assay.workloads.function import is_function_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.plan import Subject
    from assay.core.values import Scalar
    from assay.experiments.power.rows import Knob

CUBE = ("m", "n", "k")
SIZES = ("n", "size")
"""How workloads name their size: of a product of matrices all three sides, else one of these."""
FLAGS: dict[Knob, str] = {
    "power_limit_w": "--limits",
    "sm_mhz": "--sm-clocks",
    "size": "--sizes",
    "dtype": "--dtypes",
    "batch": "--batches",
    "duty": "--duty",
}


def cap_points(subject: Subject, steps: Sequence[float]) -> tuple[Point, ...]:
    """Return the steps of a limit or a clock, and the GPU as it was found to hold them against."""
    settings: list[Scalar] = [None, *(float(step) for step in steps)]
    return tuple(Point(setting=setting, subject=subject) for setting in settings)


def duty_points(subject: Subject, steps: Sequence[float]) -> tuple[Point, ...]:
    """Return the shares of the time that calls fill."""
    return tuple(Point(setting=step, subject=subject) for step in steps)


def load_points(
    knob: Knob, steps: Sequence[Scalar], spec: str, *, device_kind: str, given: Mapping[str, str], names: Sequence[str]
) -> tuple[Point, ...]:
    """Return the workload at each step of one of its parameters; what it refuses is told with the reason.

    Raises:
        BadInput: It refuses every step.
    """
    if knob in CAPS or knob == "duty":
        raise ValueError(f"{knob} is no parameter of a workload")
    points = tuple(_load_point(step, spec, device_kind, {**given, **dict.fromkeys(names, str(step))}) for step in steps)
    if all(point.subject is None for point in points):
        reason = str(points[0].refused).rstrip(".")
        by_size = knob == "size" and is_function_spec(spec)
        more = f"; --sizes sets {' and '.join(names)}, or what --size-param names" if by_size else ""
        raise BadInput(f"{reason}{more}.")
    return points


def _load_point(step: Scalar, spec: str, device_kind: str, given: Mapping[str, str]) -> Point:
    try:
        return Point(setting=step, subject=registry.subject(spec, device_kind=device_kind, given=given))
    except BadInput as error:
        return Point(setting=step, subject=None, refused=str(error))


def parameters_of(
    knob: Knob, spec: str, asked: Sequence[str], *, device_kind: str, given: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the names of the parameters that a step sets; ``asked`` are those that the user named for its size.

    A function of the user's says itself whether it takes them.
    """
    names = tuple(asked) if knob == "size" else (knob,)
    if is_function_spec(spec):
        names = names or SIZES[:1]
    else:
        names = _of_workload(registry.subject(spec, device_kind=device_kind, given=given), names, FLAGS[knob])
    duplicates = [name for name in names if name in given]
    if duplicates:
        raise BadInput(f"--param {duplicates[0]}={given[duplicates[0]]} and {FLAGS[knob]} both set {duplicates[0]}.")
    return names


def _of_workload(subject: Subject, names: tuple[str, ...], flag: str) -> tuple[str, ...]:
    has = ", ".join(subject.params) or "none at all"
    missing = [name for name in names if name not in subject.params]
    if missing:
        raise BadInput(f"{flag}: {subject.label} has no parameter {missing[0]!r}; it has {has}.")
    if names:
        return names
    if all(name in subject.params for name in CUBE):
        return CUBE
    size_name = next((name for name in SIZES if name in subject.params), None)
    if size_name is None:
        raise BadInput(
            f"{subject.label} has no parameter that is its size (m, n and k; n; or size); it has {has}. "
            "Name one with --size-param."
        )
    return (size_name,)
