"""Load the subjects of a role, check each against its reference, and hand them to the timer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot, WrongResult
from assay.core.results import SubjectFacts
from assay.worker import origin
from assay.workloads import command, outputs, registry
from assay.workloads.function import FunctionWorkload
from assay.workloads.parity import not_checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.plan import Subject
    from assay.core.results import Parity
    from assay.workloads.base import Prepared


def prepare(subject: Subject, *, device: str, seed: int) -> Prepared:
    """Put a subject's data in place."""
    if subject.command is not None:
        return command.prepare(subject.command)
    if subject.digest is not None and FunctionWorkload(subject.workload).digest() != subject.digest:
        raise MachineCannot(f"{subject.label} has changed since this run was planned; start a new run for it")
    workload = registry.find(subject.workload, subject.impl)
    prepared = workload.prepare(subject.params, subject.config, device=device, seed=seed)
    origin.make_sure(subject)
    return prepared


def facts(index: int, subject: Subject, prepared: Prepared) -> SubjectFacts:
    """Check a subject before it is timed: a wrong result publishes no time."""
    check = prepared.check() if prepared.check is not None else None
    if check is not None and not check.passed:
        raise WrongResult(
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
        placement=None if prepared.placement is None else dict(prepared.placement),
        dtype=prepared.dtype,
        notes=prepared.notes,
    )


def parity(reference: Prepared, fast: Prepared) -> Parity:
    """Compare a fast path with its reference: as it knows itself how to, or by what the two return."""
    if fast.parity is not None:
        return fast.parity()
    if reference.reports_extras or fast.reports_extras:
        return not_checked(outputs.MEASURE, "the output of a command is not compared")
    return outputs.compare(_finished(reference), _finished(fast), tolerance=fast.tolerance)


def _finished(prepared: Prepared) -> Callable[[], object]:
    def call() -> object:
        returned = prepared.call()
        prepared.synchronize()
        return returned

    return call
