"""Prepare the subjects of a role, check them against their references, and verify the origin of their code.

Also here: how a failure of a subject is described to the parent, and how device memory is released after it.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput, MachineCannot, WrongResult
from assay.core.results import SubjectFacts
from assay.worker import protocol as say
from assay.workloads import command, registry
from assay.workloads import parity as outputs
from assay.workloads.function import FunctionWorkload
from assay.workloads.parity import unchecked_parity

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import FailureCode, Parity
    from assay.core.values import SourceCheckout, Subject
    from assay.workloads.base import PreparedWorkload


PACKAGE = Path(__file__).resolve().parents[1]


def verify_origin(subject: Subject) -> None:
    """Verify that a function of another checkout, and what it imported so far, is not that of the working tree.

    An editable install may come first in the path, and a module missing in the checkout may be found in the working
    tree: then both revisions would be timed with the same code.

    Raises:
        MachineCannot: A module is from elsewhere.
    """
    source = subject.source
    if source is None or subject.command is not None:
        return
    module, colon, _ = subject.workload.rpartition(":")
    stray = find_strayed_module(source, module if colon and not module.endswith(".py") else None)
    if stray is not None:
        name, path = stray
        raise MachineCannot(
            f"{name} was imported from {path} and not from the checkout {source.checkout}: an installed package comes "
            "in its way; give each revision an environment of its own with --setup"
        )


def find_strayed_module(source: SourceCheckout, own: str | None) -> tuple[str, str] | None:
    """Return a module from outside its expected location, and its file; null if there is none.

    ``own`` is the module of a function; null if it is named by its file, or is a workload of Assay's.
    """
    checkout = Path(source.checkout).resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(checkout):
            continue
        if name == own or _in_working_tree(path, source):
            return name, file
    return None


def _in_working_tree(path: Path, source: SourceCheckout) -> bool:
    """Return whether a file belongs to the working tree; an environment inside it does not."""
    if source.instead_of is None or not path.is_relative_to(Path(source.instead_of).resolve()):
        return False
    excluded = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), PACKAGE)
    return not any(path.is_relative_to(folder.resolve()) for folder in excluded)


def prepare_subject(subject: Subject, *, device: str, seed: int) -> PreparedWorkload:
    """Prepare a subject's data."""
    if subject.command is not None:
        return command.prepare_command(subject.command)
    if subject.digest is not None and FunctionWorkload(subject.workload).digest() != subject.digest:
        raise MachineCannot(f"{subject.label} has changed since this run was planned; start a new run for it")
    workload = registry.find_workload(subject.workload, subject.impl)
    prepared = workload.prepare(subject.params, subject.config, device=device, seed=seed)
    verify_origin(subject)
    return prepared


def check_subject(index: int, subject: Subject, prepared: PreparedWorkload) -> SubjectFacts:
    """Check a subject before it is timed: no time is published for a wrong result."""
    check = prepared.check() if prepared.check is not None else None
    if check is not None and not check.passed:
        raise WrongResult(
            f"{subject.label} is wrong: its {check.measure} against the float64 reference is {check.error:.3g}, "
            f"more than {check.tolerance:.3g}"
        )
    launched = prepared.launched_kernels() if prepared.launched_kernels is not None else None
    measured = prepared.measured() if prepared.measured is not None else None
    return SubjectFacts(
        subject=index,
        flop=prepared.flop,
        bytes_moved=prepared.bytes_moved,
        check=check,
        backend=launched.backend if launched else None,
        kernels=launched.kernels if launched else None,
        measured=None if measured is None else dict(measured),
        placement=None if prepared.placement is None else dict(prepared.placement),
        dtype=prepared.dtype,
        notes=prepared.notes,
    )


def compare_outputs(reference: PreparedWorkload, fast: PreparedWorkload) -> Parity:
    """Compare a fast path with its reference: with its own parity check, or by their return values."""
    if fast.parity is not None:
        return fast.parity()
    if reference.reports_extras or fast.reports_extras:
        return unchecked_parity(outputs.MEASURE, "the output of a command is not compared")
    return outputs.compare_outputs(_synchronized_call(reference), _synchronized_call(fast), tolerance=fast.tolerance)


def _synchronized_call(prepared: PreparedWorkload) -> Callable[[], object]:
    def call() -> object:
        returned = prepared.call()
        prepared.synchronize()
        return returned

    return call


_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""How PyTorch reports that memory ran out when the exception type does not say so."""

_PEER_GONE = (
    "connection closed by peer",
    "connection reset by peer",
    "connection was likely closed",
    "connection refused",
    "broken pipe",
    "caused pair closure",
    "remote process exited",
    "timed out waiting",
)
"""How gloo, NCCL and PyTorch's store report that another rank is gone; in lower case."""

_MAX_CHARACTERS = 300


def describe_failure(error: BaseException) -> say.MeasurementFailed:
    """Return a failure as one sentence."""
    if isinstance(error, AssayError):
        return say.MeasurementFailed(reason=str(error), code=_failure_code(error))
    text = " ".join(str(error).split())
    shortened = text[:_MAX_CHARACTERS]
    if is_out_of_memory(error):
        reason = f"out of memory: {shortened or type(error).__name__}"
        return say.MeasurementFailed(reason=reason, code="out_of_memory")
    reason = f"{type(error).__name__}: {shortened}" if shortened else type(error).__name__
    is_peer_lost = any(words in text.lower() for words in _PEER_GONE)
    return say.MeasurementFailed(reason=reason, code="peer_lost" if is_peer_lost else "error")


def _failure_code(error: AssayError) -> FailureCode:
    if isinstance(error, MachineCannot):
        return "machine_cannot"
    return "bad_input" if isinstance(error, BadInput) else "error"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: Python's, or a GPU's or the host's as reported by PyTorch."""
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or any(text in str(error) for text in _OUT_OF_MEMORY)


def release_memory(device: str) -> None:
    """Return freed memory to a device."""
    gc.collect()
    if _uses_gpu(device):
        with suppress(Exception):  # a lost device is reported by what follows
            sys.modules["torch"].cuda.empty_cache()


def is_device_lost(device: str) -> bool:
    """Return whether a failure has left a device unusable for this process."""
    if not _uses_gpu(device):
        return False
    try:
        sys.modules["torch"].cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _uses_gpu(device: str) -> bool:
    return device.startswith("cuda") and "torch" in sys.modules
