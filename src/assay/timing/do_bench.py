"""``assay.do_bench``: a replacement for ``triton.testing.do_bench`` that auto-tuners can use.

Helion's auto-tuner accepts no timer, so ``patch_helion`` replaces its timer for the length of a ``with`` block.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.timing.interleaved import RoundMedians, RoundOrder, common_quantity, instrument_for, take_trial_batches
from assay.timing.measure import measure
from assay.timing.options import BUDGET_S, LIMIT_S, PRECISION, TIMES, resolve_options
from assay.timing.setup import bind_call, select_timer_setup, set_up_interleaved
from assay.timing.wall import gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from assay.timing.options import TimeKind


ReturnMode = Literal["min", "max", "mean", "median", "all"]
_RETURN_MODES: dict[str, Callable[[Any], Any]] = {
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
    "median": np.median,
    "all": np.ndarray.tolist,
}
SPAN_ONLY: tuple[TimeKind, ...] = ("span",)


def do_bench(  # noqa: PLR0917 - Triton's signature
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: ReturnMode = "mean",
) -> Any:
    """Return how long a function takes in milliseconds, as ``triton.testing.do_bench`` does, but of the kernels alone.

    The L2 is overwritten before each call, and the launch is not part of the time. ``warmup`` plus ``rep``, in
    milliseconds, is the budget; it ends sooner, once ±1 % is reached.

    Fix an auto-tuner in one line: ``triton.autotune(configs, key, do_bench=assay.do_bench)``.

    >>> import assay
    >>> assay.do_bench(lambda: sum(range(1000)), rep=20) > 0
    True

    Args:
        fn: Function to time.
        warmup: Milliseconds, part of the budget.
        rep: Milliseconds, part of the budget.
        grad_to_none: Tensors whose gradient is set to None before each call.
        quantiles: Return these quantiles of the samples instead; a single one as a number.
        return_mode: ``mean``, ``median``, ``min``, ``max``, or ``all`` for every sample.
    """
    if return_mode not in _RETURN_MODES:
        raise BadInput(f"return_mode is one of {', '.join(_RETURN_MODES)}, not {return_mode!r}.")

    def without_gradients() -> None:
        for tensor in grad_to_none or ():
            tensor.grad = None

    with reraise_original():
        result = measure(
            fn,
            setup=without_gradients if grad_to_none is not None else None,
            precision=PRECISION,
            budget_s=max(warmup + rep, 1) / 1000,
            times=SPAN_ONLY,
        )
    quantity = next(name for name in ("span_us", "busy_us", "call_us") if name in result.series)
    milliseconds = np.asarray(result.series[quantity]) / 1000
    if quantiles is not None:
        values = np.quantile(milliseconds, list(quantiles)).tolist()
        return values[0] if len(values) == 1 else values
    returned = _RETURN_MODES[return_mode](milliseconds)
    return returned if return_mode == "all" else float(returned)


@contextlib.contextmanager
def reraise_original() -> Iterator[None]:
    """Re-raise a function's original exception: auto-tuners handle their own errors, such as too much shared memory."""
    try:
        yield
    except TrialFailed as error:
        if isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


HELION_TUNER_MODULE = "helion.autotuner.base_search"
MIN_ROUNDS, MAX_ROUNDS = 3, 100


@contextlib.contextmanager
def patch_helion() -> Iterator[None]:
    """Make Helion's auto-tuner time with ``assay.do_bench`` and ``interleaved_bench`` inside a ``with`` block.

    Written for Helion 1.0, whose tuner times a configuration alone first and then interleaves the best ones. Kernels
    over several processes keep Helion's own timer: all must make the same number of calls.

    Raises:
        MachineCannot: Helion is not installed, or its tuner is not the expected one.
    """
    try:
        tuner: Any = importlib.import_module(HELION_TUNER_MODULE)
        original_bench, original_interleaved = tuner.do_bench, tuner.interleaved_bench
    except (ImportError, AttributeError) as error:
        raise MachineCannot(f"There is no Helion here whose tuner can be patched (made for 1.0): {error}.") from None

    def bench_alone(*args: Any, process_group_name: str | None = None, **kwargs: Any) -> Any:
        if process_group_name is not None:
            return original_bench(*args, process_group_name=process_group_name, **kwargs)
        return do_bench(*args, **kwargs)

    tuner.do_bench, tuner.interleaved_bench = bench_alone, interleaved_bench
    try:
        yield
    finally:
        tuner.do_bench, tuner.interleaved_bench = original_bench, original_interleaved


def interleaved_bench(fns: Sequence[Callable[[], object]], *, repeat: int, desc: str | None = None) -> list[float]:  # noqa: ARG001 - the signature that Helion calls
    """Return the milliseconds that each of several functions takes, from about ``repeat`` interleaved samples.

    Has the signature of Helion's setting ``autotune_benchmark_fn``.
    """
    timing_options = resolve_options(
        device=None, cache=None, method="auto", precision=PRECISION, budget_s=BUDGET_S, times=TIMES, limit_s=LIMIT_S
    )
    timer_setup = select_timer_setup(timing_options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(reraise_original())
        bound = [bind_call(function, name=f"number {index}") for index, function in enumerate(fns)]
        timed_calls = set_up_interleaved(timer_setup, bound, timing_options, stack)
        quantity = common_quantity(timed_calls)
        instruments = [instrument_for(timed_call, quantity) for timed_call in timed_calls]
        stack.enter_context(gc_paused())
        take_trial_batches(instruments)
        samples_per_round = min((len(instrument.take().quantities[quantity]) for instrument in instruments), default=1)
        medians, order = [RoundMedians() for _ in instruments], RoundOrder(seed=0)
        for _ in range(max(MIN_ROUNDS, min(MAX_ROUNDS, math.ceil(repeat / samples_per_round)))):
            for index in order.next(range(len(instruments))):
                medians[index].add(instruments[index].take(), quantity)
    return [float(np.median(round_medians.us)) / 1000 for round_medians in medians]
