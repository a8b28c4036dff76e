"""Auto-tuners that offer no place to hand a timer in: Helion's, given Assay's timer for a while."""

from __future__ import annotations

import contextlib
import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import MachineCannot
from assay.timing.do_bench import do_bench, own_errors
from assay.timing.options import BUDGET_S, LIMIT_S, PRECISION, TIMES, options
from assay.timing.rig import rig, set_up_together
from assay.timing.subject import bind
from assay.timing.turns import Order, Turn, common_quantity, instrument_for, try_out
from assay.timing.wall import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HELIONS = "helion.autotuner.base_search"
FEWEST_ROUNDS, MOST_ROUNDS = 3, 100


@contextlib.contextmanager
def mend_helion() -> Iterator[None]:
    """Have Helion's auto-tuner time by ``assay.do_bench`` and ``interleaved`` for the length of a ``with`` block.

    Made for Helion 1.0, whose tuner times a configuration first alone and the best ones then in turns. Kernels over
    several processes keep Helion's own timer: their calls must be equally many in each.

    Raises:
        MachineCannot: Helion is not installed, or is one whose tuner looks different.
    """
    try:
        tuner: Any = importlib.import_module(HELIONS)
        original_bench, original_interleaved = tuner.do_bench, tuner.interleaved_bench
    except (ImportError, AttributeError) as error:
        raise MachineCannot(f"There is no Helion here whose tuner can be mended (made for 1.0): {error}.") from None

    def bench_alone(*args: Any, process_group_name: str | None = None, **kwargs: Any) -> Any:
        if process_group_name is not None:
            return original_bench(*args, process_group_name=process_group_name, **kwargs)
        return do_bench(*args, **kwargs)

    tuner.do_bench, tuner.interleaved_bench = bench_alone, interleaved
    try:
        yield
    finally:
        tuner.do_bench, tuner.interleaved_bench = original_bench, original_interleaved


def interleaved(fns: Sequence[Callable[[], object]], *, repeat: int, desc: str | None = None) -> list[float]:  # noqa: ARG001 - the shape that Helion calls
    """Return the milliseconds that each of several functions takes, sampled in turns about ``repeat`` times.

    Of the shape that Helion's setting ``autotune_benchmark_fn`` takes.
    """
    timing_options = options(
        device=None, cache=None, method="auto", precision=PRECISION, budget_s=BUDGET_S, times=TIMES, limit_s=LIMIT_S
    )
    timer_setup = rig(timing_options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_errors())
        bound = [bind(function, name=f"number {index}") for index, function in enumerate(fns)]
        timed_calls = set_up_together(timer_setup, bound, timing_options, stack)
        quantity = common_quantity(timed_calls)
        instruments = [instrument_for(timed_call, quantity) for timed_call in timed_calls]
        stack.enter_context(quiet_collector())
        try_out(instruments)
        samples_per_round = min((len(instrument.take().quantities[quantity]) for instrument in instruments), default=1)
        medians, order = [Turn() for _ in instruments], Order(seed=0)
        for _ in range(max(FEWEST_ROUNDS, min(MOST_ROUNDS, math.ceil(repeat / samples_per_round)))):
            for index in order.next(range(len(instruments))):
                medians[index].add(instruments[index].take(), quantity)
    return [float(np.median(turn.us)) / 1000 for turn in medians]
