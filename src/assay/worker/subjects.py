"""Load the subjects of a role, check each against its reference, and hand them to the timer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot, TrialFailed
from assay.core.results import SubjectFacts
from assay.workloads import command, registry
from assay.workloads.function import FunctionWorkload

if TYPE_CHECKING:
    from assay.core.plan import Subject
    from assay.workloads.base import Prepared


def prepare(subject: Subject, *, device: str, seed: int) -> Prepared:
    """Put a subject's data in place."""
    if subject.command is not None:
        return command.prepare(subject.command)
    if subject.digest is not None and FunctionWorkload(subject.workload).digest() != subject.digest:
        raise MachineCannot(f"{subject.label} has changed since this run was planned; start a new run for it")
    workload = registry.find(subject.workload, subject.impl)
    return workload.prepare(subject.params, subject.config, device=device, seed=seed)


def facts(index: int, subject: Subject, prepared: Prepared) -> SubjectFacts:
    """Check a subject before it is timed: a wrong result publishes no time."""
    check = prepared.check() if prepared.check is not None else None
    if check is not None and not check.passed:
        raise TrialFailed(
            f"{subject.label} is wrong: its {check.measure} against the float64 reference is {check.error:.3g}, "
            f"more than {check.tolerance:.3g}"
        )
    ran = prepared.ran() if prepared.ran is not None else None
    measured = prepared.measured() if prepared.measured is not None else None
    return SubjectFacts(
        subject=index,
        flop=prepared.flop,
        bytes_moved=prepared.bytes_moved,
        check=check,
        backend=ran.backend if ran else None,
        kernels=ran.kernels if ran else None,
        measured=None if measured is None else dict(measured),
    )
