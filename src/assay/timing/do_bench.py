"""``assay.do_bench``: in the place of ``triton.testing.do_bench``, also inside an auto-tuner."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from assay.core.errors import BadInput, TrialFailed
from assay.timing.measure import measure
from assay.timing.options import PRECISION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from assay.timing.options import Time

ReturnMode = Literal["min", "max", "mean", "median", "all"]
_MODES: dict[str, Callable[[Any], Any]] = {
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
    "median": np.median,
    "all": np.ndarray.tolist,
}
TIMES: tuple[Time, ...] = ("span",)


def do_bench(  # noqa: PLR0917 - the order of Triton's
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: ReturnMode = "mean",
) -> Any:
    """Return how long a function takes in milliseconds, as ``triton.testing.do_bench`` does, but of the kernels alone.

    The L2 is overwritten before each call, and the launch is not part of the time. ``warmup`` and ``rep``, in
    milliseconds, together are the most that is spent; it ends sooner, once ±1 % is reached.

    Mend an auto-tuner in one line: ``triton.autotune(configs, key, do_bench=assay.do_bench)``.

    >>> import assay
    >>> assay.do_bench(lambda: sum(range(1000)), rep=20) > 0
    True

    Args:
        fn: What to time.
        warmup: Milliseconds, part of the budget.
        rep: Milliseconds, part of the budget.
        grad_to_none: Tensors whose gradient is removed before each call.
        quantiles: Return these quantiles of the samples instead; one of them alone as a number.
        return_mode: ``mean``, ``median``, ``min``, ``max``, or ``all`` for every sample.
    """
    if return_mode not in _MODES:
        raise BadInput(f"return_mode is one of {', '.join(_MODES)}, not {return_mode!r}.")

    def without_gradients() -> None:
        for tensor in grad_to_none or ():
            tensor.grad = None

    with own_errors():
        result = measure(
            fn,
            setup=without_gradients if grad_to_none is not None else None,
            precision=PRECISION,
            budget_s=max(warmup + rep, 1) / 1000,
            times=TIMES,
        )
    milliseconds = np.asarray(result.series[_quantity(result.series)]) / 1000
    if quantiles is not None:
        values = np.quantile(milliseconds, list(quantiles)).tolist()
        return values[0] if len(values) == 1 else values
    returned = _MODES[return_mode](milliseconds)
    return returned if return_mode == "all" else float(returned)


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raise what a function raised as it was: an auto-tuner knows its own errors, such as too much shared memory."""
    try:
        yield
    except TrialFailed as error:
        if isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


def _quantity(series: dict[str, tuple[float, ...]]) -> str:
    return next(name for name in ("span_us", "busy_us", "call_us") if name in series)
