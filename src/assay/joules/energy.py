"""``assay.energy``: what does a call cost in joules, and how sure is that?"""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.core.results import Estimate
from assay.core.units import format_time
from assay.joules import rig as rigs
from assay.joules.judge import REST_SHARE, judge
from assay.joules.plan import plan
from assay.joules.refusals import Refused
from assay.joules.values import Energy
from assay.timing.options import LIMIT_S, TIMES, options
from assay.timing.subject import bind, blamed
from assay.timing.wall import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.joules.course import Knot
    from assay.joules.judge import Judged
    from assay.joules.keeper import Keeper
    from assay.joules.plan import Plan
    from assay.joules.readings import Reading
    from assay.joules.rig import Rig
    from assay.joules.sampling import Sampling
    from assay.timing.options import Options
    from assay.timing.subject import Bound

PRECISION = 0.05
BUDGET_S = 3.0
DISAGREEMENT = 0.1
"""Integrated power further than this from the counter, as a share, is worth a note."""
POOR_COVERAGE = 0.8


def energy(
    function: Callable[..., object],
    *,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    device: str | None = None,
    precision: float = PRECISION,
    budget_s: float = BUDGET_S,
    net: bool = False,
    limit_s: float = LIMIT_S,
    name: str | None = None,
    seed: int | None = None,
) -> Energy:
    """Return what one call of a function costs in joules, made back to back with others.

    The device is left alone for a moment (for its idle power), warmed up by calls until its sensors have caught up, and
    then kept busy while its energy counter is read. Short calls are repeated until the window spans enough of the
    sensor's ticks.

    Args:
        function: What to call. It is called again and again, with the same arguments.
        args: Its arguments by place; ``kwargs`` those by name.
        kwargs: Its arguments by name.
        device: ``cpu``, ``cuda`` or ``cuda:1``; without it the current GPU where PyTorch is loaded and sees one.
        precision: Wanted half-width of the statistical interval, as a share: 0.05 is ±5 %.
        budget_s: At most about this long. First calls are not counted, nor is looking at a GPU's sensors, which
            is done once for each GPU and driver (about 6 s) and kept.
        net: Subtract idle power.
        limit_s: A single call may take this long before it is given up.
        name: What to call it in the result.
        seed: Of the random lengths of rests and warm-up.

    Raises:
        BadInput: The function or an option makes no sense.
        TrialFailed: The function raises, or does not return.
        MachineCannot: There is no such device, or its energy cannot be told, and why.
    """
    bound = bind(function, args, kwargs, name)
    timing_options = options(
        device=device, cache=None, method="auto", precision=precision, budget_s=budget_s, times=TIMES, limit_s=limit_s
    )
    with contextlib.ExitStack() as stack:
        energy_device = stack.enter_context(rigs.rig(timing_options))
        with blamed(bound.name):
            load = energy_device.keeper(bound, timing_options)
            stack.callback(load.close)
            stack.enter_context(quiet_collector())
            run = take(energy_device, load, timing_options, random.Random(seed))  # noqa: S311 - a phase is no secret
    return _result(bound, energy_device, load, timing_options, run, net=net)


@dataclass(frozen=True)
class Taken:
    """What was measured, before it is told."""

    judged: Judged
    plan: Plan
    readings: list[Reading]
    knots: list[Knot]
    open_ns: int
    took_s: float


def take(on: Rig, keeper: Keeper, chosen: Options, chance: random.Random) -> Taken:
    """Rest, warm up and measure, until the precision is reached or the budget is spent.

    Raises:
        MachineCannot: The readings do not tell the energy, and why.
    """
    energy_plan = plan(on.model, keeper.call_s, chosen.budget_s, chosen.precision, chance)
    sampler = on.sampling()
    start_ns = on.clock.now_ns()
    end_ns = start_ns + round((chosen.budget_s - energy_plan.after_s) * 1e9)
    sampler.start()
    try:
        keeper.rest(energy_plan.idle_s)
        if energy_plan.warm_s is not None:
            keeper.keep(energy_plan.warm_s)
        open_ns = on.clock.now_ns()
        _measure(on, keeper, energy_plan, min(end_ns, open_ns + round(energy_plan.measure_s * 1e9)), chance)
        estimate = _look(on, keeper, sampler, energy_plan, open_ns)
        left_s = (end_ns - on.clock.now_ns()) / 1e9
        if not _enough(estimate, chosen.precision) and left_s > energy_plan.round_s + keeper.call_s:
            _measure(on, keeper, energy_plan, end_ns, chance)
            estimate = _look(on, keeper, sampler, energy_plan, open_ns)
    finally:
        readings = sampler.stop()
    return Taken(estimate, energy_plan, readings, keeper.knots(), open_ns, (on.clock.now_ns() - start_ns) / 1e9)


def _measure(on: Rig, keeper: Keeper, todo: Plan, until_ns: int, chance: random.Random) -> None:
    """Make calls in rounds until a moment, one round at least; long calls with a random rest between rounds."""
    while True:
        left_s = (until_ns - on.clock.now_ns()) / 1e9
        keeper.keep(max(0.0, min(todo.round_s, left_s)))
        if on.clock.now_ns() + round(keeper.call_s * 5e8) >= until_ns:
            return
        if todo.dither_s:
            keeper.rest(chance.uniform(0.0, todo.dither_s))


def _look(on: Rig, keeper: Keeper, sampling: Sampling, todo: Plan, open_ns: int) -> Judged:
    keeper.rest(todo.after_s)
    try:
        return judge(sampling.taken(), keeper.knots(), open_ns, on.model)
    except Refused as refusal:
        raise MachineCannot(f"Joules cannot be told: {refusal}.") from refusal


def _enough(judged: Judged, precision: float) -> bool:
    return judged.per_call.error_j <= precision * judged.per_call.joules


def _result(bound: Bound, on: Rig, keeper: Keeper, chosen: Options, taken: Taken, *, net: bool) -> Energy:
    estimate, per_call = taken.judged, taken.judged.per_call
    gap_s = keeper.gap_s if per_call.rest_w is not None else None
    waited_j = (per_call.rest_w or 0.0) * (gap_s or 0.0)
    value, error_j = per_call.joules - waited_j, per_call.error_j
    call_s = estimate.call_s - (gap_s or 0.0)
    power_w = value / call_s
    if net:
        if per_call.idle_w is None:
            raise MachineCannot("Idle power was not seen, so it cannot be subtracted; give a longer budget_s.")
        value -= per_call.idle_w * call_s
        error_j = math.hypot(error_j, (per_call.idle_error_w or 0.0) * call_s)
    reached = error_j / abs(value)
    return Energy(
        name=bound.name,
        device=on.device,
        joules=Estimate(
            value=value,
            low=value - error_j,
            high=value + error_j,
            unit="J",
            scope="process",
            method=f"{estimate.method}, calls against ticks by least squares",
            n=per_call.ticks,
        ),
        net=net,
        systematic_j=estimate.systematic_j + REST_SHARE * waited_j,
        power_w=power_w,
        call_us=call_s * 1e6,
        calls=estimate.calls,
        window_s=estimate.window_s,
        rests_s=estimate.rests_s,
        idle_w=per_call.idle_w,
        coverage=estimate.coverage,
        method=estimate.method,
        crosscheck=estimate.crosscheck,
        ticks=per_call.ticks,
        precision_wanted=chosen.precision,
        precision_reached=reached,
        stopped="precise enough" if reached <= chosen.precision else "budget spent",
        sensor=on.model,
        took_s=taken.took_s,
        origin=on.origin,
        notes=(*on.notes, *keeper.notes, *_said(taken, keeper, chosen, gap_s)),
        readings=tuple(taken.readings),
        knots=tuple(taken.knots),
        open_ns=taken.open_ns,
    )


def _said(taken: Taken, keeper: Keeper, chosen: Options, gap_s: float | None) -> list[str]:
    """Return what a reader should know."""
    notes, estimate = [], taken.judged
    if keeper.call_s > chosen.budget_s:
        notes.append("one call takes longer than the whole budget")
    if taken.plan.warm_s is None:
        notes.append("the calls were not warmed up: one takes too much of the budget")
    if gap_s:
        notes.append(
            f"the device waited {format_time(gap_s * 1e6)} a call for the host: taken off, at the power of a rest"
        )
    if estimate.crosscheck is not None and abs(estimate.crosscheck - 1) > DISAGREEMENT:
        notes.append(
            f"integrated power says {estimate.crosscheck:.2f} of what the counter does: a call may repeat at the "
            "period of the sensor, which power readings see only a part of; the counter is believed"
        )
    if estimate.method != "counter":
        notes.append(f"there is no energy counter: {estimate.method} sees {estimate.seen_share:.0%} of the time")
    if estimate.coverage < POOR_COVERAGE * estimate.seen_share:
        notes.append(f"readings are missing: the sensor's ticks cover {estimate.coverage:.0%} of the window")
    return notes
