"""Compare what two functions return on the same inputs: the reference's output is the truth, the fast one is judged.

A function may return a number, an array, a tensor, or a tuple or list of them. Errors are absolute and taken over all
elements; how large they may be follows from the size of the reference's output and the coarser dtype of the two, or
from the ``tolerance`` that the fast function carries:

    mean error      tolerance × the mean size of an element
    largest error   ten times the tolerance × the largest size of an element

Whole numbers and truth values must be the same. What cannot be compared is not checked, which is not passed.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import Parity
from assay.workloads.parity import REPEATS, Seen, judged, not_checked
from assay.workloads.reference import TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORST = 10.0
"""The worst of many errors is several times their mean."""

REFERENCE, FAST = "the reference", "the fast function"
OF = "of the reference"
MEASURE = f"absolute error against output {OF}"

_WHOLE = ("bool", "int", "uint")

_AT_ONCE = 2**22
"""Elements compared at once; 32 MiB of float64."""


class Incomparable(Exception):
    """Two outputs cannot be compared; why."""


@dataclass(frozen=True)
class Output:
    """One array that a function returned, kept apart from what later calls write."""

    flat: Any
    shape: tuple[int, ...]
    dtype: str

    @property
    def whole(self) -> bool:
        """Whether its elements are whole numbers or truth values."""
        return self.dtype.startswith(_WHOLE)

    def parts(self) -> Iterator[Any]:
        """Yield its elements in float64, some at a time."""
        for start in range(0, self.flat.shape[0], _AT_ONCE):
            some = self.flat[start : start + _AT_ONCE]
            yield np.asarray(some.double().cpu().numpy() if _is_tensor(some) else some, dtype=np.float64)

    def same_bits(self, other: Output) -> bool:
        """Return whether two outputs hold the same bits."""
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            return False
        if _is_tensor(self.flat) and _is_tensor(other.flat):
            as_bytes = sys.modules["torch"].uint8
            return bool(self.flat.view(as_bytes).equal(other.flat.view(as_bytes)))
        return bool(self.flat.tobytes() == other.flat.tobytes())


def compare(reference: Callable[[], object], fast: Callable[[], object], *, tolerance: float | None = None) -> Parity:
    """Call both, and return whether the fast one gave what the reference gave; each call waits for its own work.

    Of several arrays the first that does not pass is told, or the one that came nearest to its limits.
    """
    try:
        expected, actual = outputs(reference(), REFERENCE), outputs(fast(), FAST)
        deterministic = all(_same(actual, outputs(fast(), FAST)) for _ in range(REPEATS))
    except Incomparable as error:
        return not_checked(MEASURE, str(error))
    if len(expected) != len(actual) or not expected:
        return not_checked(MEASURE, f"{REFERENCE} returns {len(expected)} arrays, {FAST} {len(actual)}")
    names = [""] if len(expected) == 1 else [f" {number}" for number in range(1, len(expected) + 1)]
    parities = [
        _one(mine, truth, tolerance, deterministic=deterministic, measure=f"absolute error against output{name} {OF}")
        for mine, truth, name in zip(actual, expected, names, strict=True)
    ]
    return next((parity for parity in parities if not parity.passed), None) or max(parities, key=_share)


def _same(found: tuple[Output, ...], again: tuple[Output, ...]) -> bool:
    return len(found) == len(again) and all(map(Output.same_bits, found, again))


def _share(told: Parity) -> float:
    """Return how much of its limits an error took."""
    shares = ((told.mean_error, told.mean_limit), (told.max_error, told.max_limit))
    return max(error / limit if error and limit else 0.0 for error, limit in shares)


def outputs(returned: object, whose: str) -> tuple[Output, ...]:
    """Return what a function returned as arrays of its own, or say that they are none."""
    several = returned if isinstance(returned, tuple | list) else (returned,)
    return tuple(_output(value, whose) for value in several)


def _output(value: Any, whose: str) -> Output:
    if _is_tensor(value) and str(value.layout) == "torch.strided":
        flat, shape, dtype = value.detach().clone().reshape(-1), value.shape, str(value.dtype).removeprefix("torch.")
    elif not _is_tensor(value) and (isinstance(value, bool | int | float) or hasattr(value, "__array__")):
        array = _array(value, whose)
        flat, shape, dtype = array.reshape(-1), array.shape, str(array.dtype)
    else:
        raise Incomparable(f"{whose} returns {_named(value)}, which is no number, array or dense tensor")
    if dtype not in TOLERANCES and not dtype.startswith(_WHOLE):
        raise Incomparable(f"{whose} returns elements of {dtype}, which are not compared")
    return Output(flat, tuple(shape), dtype)


def _array(value: object, whose: str) -> np.ndarray[Any, Any]:
    """Return a copy of what says that it can be read as an array."""
    try:
        return np.array(value)
    except (TypeError, ValueError) as error:
        raise Incomparable(f"{whose} returns {_named(value)}, which cannot be read as an array: {error}") from error


def _named(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _one(found: Output, right: Output, tolerance: float | None, *, deterministic: bool, measure: str) -> Parity:
    """Judge one array against the reference's."""
    if found.shape != right.shape:
        reason = f"its output has the shape {found.shape}, that of the reference {right.shape}"
        return Parity(passed=False, reason=reason, measure=measure, deterministic=deterministic)
    count, total, largest, size, most = math.prod(right.shape), 0.0, 0.0, 0.0, 0.0
    finite = True
    for mine, reference in zip(found.parts(), right.parts(), strict=True):
        if not np.isfinite(reference).all():
            return not_checked(measure, "the output of the reference has a NaN or an infinity")
        finite = finite and bool(np.isfinite(mine).all())
        with np.errstate(invalid="ignore", over="ignore"):
            errors = np.abs(mine - reference)
            total, largest = total + float(errors.sum()), max(largest, float(errors.max()))
            size, most = size + float(np.abs(reference).sum()), max(most, float(np.abs(reference).max()))
    if not count:
        return not_checked(measure, "both functions return arrays without elements")
    allowed = _tolerance(found, right) if tolerance is None else tolerance
    return judged(
        Seen(total / count, largest, count, count, finite),
        measure=f"{measure}, {allowed:g} of whose size is allowed",
        mean_limit=allowed * size / count,
        max_limit=WORST * allowed * most,
        deterministic=deterministic,
    )


def _tolerance(found: Output, right: Output) -> float:
    """Return the relative error that passes: that of the coarser dtype; none for whole numbers."""
    if found.whole and right.whole:
        return 0.0
    kinds = [output.dtype for output in (found, right) if not output.whole]
    return max(TOLERANCES[kind] for kind in kinds)


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
