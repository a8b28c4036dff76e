"""Compare a fast implementation with its reference: how large its errors may be, and whether they are.

    mean error      at most 2e-4 in float16; in other dtypes scaled by their epsilon, with an allowance for
                    float32 and float64, which accumulate in the precision they round to
    largest error   at most twice that of masked attention in the same dtype, on the same inputs

User functions may return a number, an array, a tensor, or a tuple or list of them. Errors are absolute and taken over
all elements; the limits follow from the magnitude of the reference's output and the coarser dtype of the two, or from
the ``tolerance`` attribute of the fast function:

    mean error      tolerance × the mean magnitude of an element
    largest error   ten times the tolerance × the largest magnitude of an element

Integers and booleans must be equal. Outputs that cannot be compared are not checked, which is not a pass. Whether
repeated calls give the same bits is reported and does not affect the result.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import Parity
from assay.workloads.numpy_support import TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

EPSILON: Mapping[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""Machine epsilon: the distance from 1 to the next larger number of a dtype."""

FLOAT16_MEAN_LIMIT = 2e-4
MAX_ERROR_RATIO = 2.0
ACCUMULATION_FACTOR = 8.0  # allowance for sums that are accumulated in the precision of the output

LEAST_ROUNDING = 0.1
"""Smallest assumed error, in epsilons of the output's magnitude: masked attention of few keys may have none."""

REPEATS = 3  # calls whose bits are compared with those of the first


def mean_error_limit(dtype: str) -> float:
    """Return the limit of the mean absolute error of attention in a dtype."""
    limit = FLOAT16_MEAN_LIMIT * EPSILON[dtype] / EPSILON["float16"]
    return limit * ACCUMULATION_FACTOR if dtype in {"float32", "float64"} else limit


def max_error_limit(dtype: str, dense: float, size: float) -> float:
    """Return the limit of the largest error from that of masked attention; ``size`` is the output's magnitude."""
    return MAX_ERROR_RATIO * max(dense, LEAST_ROUNDING * EPSILON[dtype] * size)


@dataclass(frozen=True)
class OutputErrors:
    """The errors of a fast path, over how many rows, and whether all of its output is finite."""

    mean_error: float
    max_error: float
    rows_checked: int
    rows: int
    finite: bool = True


def compare_with_limits(
    errors: OutputErrors,
    *,
    measure: str,
    mean_limit: float,
    max_limit: float,
    dense_max_error: float | None = None,
    deterministic: bool | None = None,
) -> Parity:
    """Return whether errors are within their limits, and if not, why."""
    reasons = []
    if not (errors.finite and math.isfinite(errors.mean_error) and math.isfinite(errors.max_error)):
        reasons = ["its output has a NaN or an infinity"]
    else:
        if errors.mean_error > mean_limit:
            reasons.append(f"its mean error of {errors.mean_error:.3g} is more than {mean_limit:.3g}")
        if errors.max_error > max_limit:
            than = "" if dense_max_error is None else f", {MAX_ERROR_RATIO:g} times that of masked attention"
            reasons.append(f"its largest error of {errors.max_error:.3g} is more than {max_limit:.3g}{than}")
    numbers = {
        "mean_error": errors.mean_error, "mean_limit": mean_limit, "max_error": errors.max_error,
        "max_limit": max_limit, "dense_max_error": dense_max_error,
    }  # fmt: skip
    return Parity(
        passed=not reasons,
        reason="; ".join(reasons) or None,
        measure=measure,
        deterministic=deterministic,
        rows_checked=errors.rows_checked,
        rows=errors.rows,
        **{name: value for name, value in numbers.items() if value is not None and math.isfinite(value)},
    )


def unchecked_parity(measure: str, reason: str) -> Parity:
    """Return a parity that was not checked, with the reason."""
    return Parity(passed=None, reason=reason, measure=measure)


MAX_ERROR_FACTOR = 10.0  # the largest of many errors is several times their mean

REFERENCE, FAST = "the reference", "the fast function"
MEASURE = "absolute error against output of the reference"

_EXACT_DTYPES = ("bool", "int", "uint")

_ELEMENTS_AT_ONCE = 2**22  # elements compared at once; 32 MiB of float64


class IncomparableOutput(Exception):
    """Two outputs cannot be compared; the message is the reason."""


@dataclass(frozen=True)
class CallOutput:
    """A copy of one array that a function returned, so that later calls cannot overwrite it."""

    flat: Any
    shape: tuple[int, ...]
    dtype: str

    @property
    def whole(self) -> bool:
        """Whether its elements are integers or booleans."""
        return self.dtype.startswith(_EXACT_DTYPES)

    def parts(self) -> Iterator[Any]:
        """Yield its elements in float64, in chunks."""
        for start in range(0, self.flat.shape[0], _ELEMENTS_AT_ONCE):
            chunk = self.flat[start : start + _ELEMENTS_AT_ONCE]
            yield np.asarray(chunk.double().cpu().numpy() if _is_tensor(chunk) else chunk, dtype=np.float64)

    def same_bits(self, other: CallOutput) -> bool:
        """Return whether two outputs are bitwise equal."""
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            return False
        if _is_tensor(self.flat) and _is_tensor(other.flat):
            as_bytes = sys.modules["torch"].uint8
            return bool(self.flat.view(as_bytes).equal(other.flat.view(as_bytes)))
        return bool(self.flat.tobytes() == other.flat.tobytes())


def compare_outputs(
    reference: Callable[[], object], fast: Callable[[], object], *, tolerance: float | None = None
) -> Parity:
    """Call both and compare the fast function's output with the reference's; each call waits for its own work.

    Of several arrays, return the first that fails, else the one closest to its limits.
    """
    try:
        expected, actual = read_outputs(reference(), REFERENCE), read_outputs(fast(), FAST)
        deterministic = all(_same_bits(actual, read_outputs(fast(), FAST)) for _ in range(REPEATS))
    except IncomparableOutput as error:
        return unchecked_parity(MEASURE, str(error))
    if len(expected) != len(actual) or not expected:
        return unchecked_parity(MEASURE, f"{REFERENCE} returns {len(expected)} arrays, {FAST} {len(actual)}")
    names = [""] if len(expected) == 1 else [f" {number}" for number in range(1, len(expected) + 1)]
    parities = [
        _compare_output(
            output,
            reference_output,
            tolerance,
            deterministic=deterministic,
            measure=f"absolute error against output{name} of the reference",
        )
        for output, reference_output, name in zip(actual, expected, names, strict=True)
    ]
    return next((parity for parity in parities if not parity.passed), None) or max(parities, key=_limit_share)


def _same_bits(actual: tuple[CallOutput, ...], repeated: tuple[CallOutput, ...]) -> bool:
    return len(actual) == len(repeated) and all(map(CallOutput.same_bits, actual, repeated))


def _limit_share(parity: Parity) -> float:
    """Return the larger ratio of an error to its limit."""
    shares = ((parity.mean_error, parity.mean_limit), (parity.max_error, parity.max_limit))
    return max(error / limit if error and limit else 0.0 for error, limit in shares)


def read_outputs(returned: object, whose: str) -> tuple[CallOutput, ...]:
    """Return copies of the arrays that a function returned; raise if they cannot be compared."""
    several = returned if isinstance(returned, tuple | list) else (returned,)
    return tuple(_read_output(value, whose) for value in several)


def _read_output(value: Any, whose: str) -> CallOutput:
    if _is_tensor(value) and str(value.layout) == "torch.strided":
        flat, shape, dtype = value.detach().clone().reshape(-1), value.shape, str(value.dtype).removeprefix("torch.")
    elif not _is_tensor(value) and (isinstance(value, bool | int | float) or hasattr(value, "__array__")):
        array = _read_array(value, whose)
        flat, shape, dtype = array.reshape(-1), array.shape, str(array.dtype)
    else:
        raise IncomparableOutput(f"{whose} returns {_dtype_name(value)}, which is no number, array or dense tensor")
    if dtype not in TOLERANCES and not dtype.startswith(_EXACT_DTYPES):
        raise IncomparableOutput(f"{whose} returns elements of {dtype}, which are not compared")
    return CallOutput(flat, tuple(shape), dtype)


def _read_array(value: object, whose: str) -> np.ndarray[Any, Any]:
    """Return a copy of a value that supports ``__array__``."""
    try:
        return np.array(value)
    except (TypeError, ValueError) as error:
        raise IncomparableOutput(
            f"{whose} returns {_dtype_name(value)}, which cannot be read as an array: {error}"
        ) from error


def _dtype_name(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _compare_output(
    actual: CallOutput, expected: CallOutput, tolerance: float | None, *, deterministic: bool, measure: str
) -> Parity:
    """Compare one array with the reference's."""
    if actual.shape != expected.shape:
        reason = f"its output has the shape {actual.shape}, that of the reference {expected.shape}"
        return Parity(passed=False, reason=reason, measure=measure, deterministic=deterministic)
    count, total, largest, size, most = math.prod(expected.shape), 0.0, 0.0, 0.0, 0.0
    finite = True
    for output, reference in zip(actual.parts(), expected.parts(), strict=True):
        if not np.isfinite(reference).all():
            return unchecked_parity(measure, "the output of the reference has a NaN or an infinity")
        finite = finite and bool(np.isfinite(output).all())
        with np.errstate(invalid="ignore", over="ignore"):
            errors = np.abs(output - reference)
            total, largest = total + float(errors.sum()), max(largest, float(errors.max()))
            size, most = size + float(np.abs(reference).sum()), max(most, float(np.abs(reference).max()))
    if not count:
        return unchecked_parity(measure, "both functions return arrays without elements")
    allowed = _default_tolerance(actual, expected) if tolerance is None else tolerance
    return compare_with_limits(
        OutputErrors(total / count, largest, count, count, finite),
        measure=f"{measure}, {allowed:g} of whose size is allowed",
        mean_limit=allowed * size / count,
        max_limit=MAX_ERROR_FACTOR * allowed * most,
        deterministic=deterministic,
    )


def _default_tolerance(actual: CallOutput, expected: CallOutput) -> float:
    """Return the relative error that passes: that of the coarser dtype; 0 for integers."""
    if actual.whole and expected.whole:
        return 0.0
    kinds = [output.dtype for output in (actual, expected) if not output.whole]
    return max(TOLERANCES[kind] for kind in kinds)


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
