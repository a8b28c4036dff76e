"""All that a sweep found, in a sentence or two for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.power.sweep.words import (
    at_text,
    joules_text,
    listed,
    more_or_less,
    percent,
    setting_text,
    settings_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Estimate
    from assay.experiments.power.sweep.curve import Curve, Step
    from assay.experiments.power.sweep.optimum import Optimum
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.store.records import Records

MOST_TOLD = 4
"""Devices that are told one by one; of more, the range of their best steps."""
PER = {"call": "a call", "FLOP": "a floating-point operation", "byte": "a byte", "item": "an item of the batch"}


def headline(options: SweepOptions, found: Sequence[Curve], records: Records) -> str:
    """Return the answer: the best step of each device, what it saves and costs, and which caps do nothing."""
    if not found:
        return f"Nothing could be measured{_why(options, records)}."
    if len(found) > MOST_TOLD:
        return _of_many(options, found)
    sentences = [f"{_of_one(options, curve)}." for curve in found]
    return " ".join(_capital(sentence) for sentence in sentences)


def _why(options: SweepOptions, records: Records) -> str:
    reasons = [record.reason for record in records if record.reason]
    reasons += [point.refused for point in options.points if point.refused is not None]
    return f": {reasons[0].rstrip('.')}" if reasons else ""


def _of_one(options: SweepOptions, curve: Curve) -> str:
    parts = [_best(options, curve), *(_capped(options, curve) if options.capped else [])]
    return "; ".join(part for part in parts if part)


def _best(options: SweepOptions, curve: Curve) -> str:
    where = f"on {curve.device} {options.workload}"
    best = curve.best
    if best is None:
        why = "calls of different sizes do different work, and it does not tell how much"
        return f"{where}: {why if curve.unit is None else 'no energy is told'}{_fastest(options, curve)}"
    if not best.told and best.chance:
        return f"{where}: {_untold(options, curve, best)}"
    step = curve.at(best.place)
    at = at_text(options.knob, step.setting)
    if _dearer(step) and step.binds != "does not bind":
        once = "" if best.chance else ", in a single repeat"
        cheaper = "cheaper" if _dearer(step, surely=best.chance) else "surely cheaper"
        return f"{where}: no step is {cheaper} than as found{once}; at {at} it takes{_saved(step)[1:]}"
    if not best.chance:
        return f"{where} spent the least energy at {at}, in a single repeat{_saved(step)}"
    if step.binds == "does not bind":
        return f"{where} spends the least energy where no cap binds"
    cost = f" ({joules_text(step.cost_j.value)} {PER[curve.unit or 'call']})" if step.cost_j is not None else ""
    return f"{where} spends the least energy at {at}{cost}{_saved(step)}{_others(options, curve)}"


def _untold(options: SweepOptions, curve: Curve, best: Optimum) -> str:
    """Say that the best step cannot be told, and which it may be."""
    if len(curve.unbound) == len(curve.steps):
        return f"no cap binds, so that none saves energy{_spread(curve.steps)}"
    may_be = [curve.at(index) for index in best.may_be]
    if len(may_be) == sum(step.cost_j is not None for step in curve.steps):
        return f"no step can be told from another by its energy{_spread(may_be)}"
    order = [point.setting for point in options.points]
    steps = settings_text(options.knob, [step.setting for step in may_be], order).replace(" and ", " or ")
    step = curve.at(best.place)
    worth = f"; {setting_text(options.knob, step.setting)} takes{_saved(step)[1:]}" if _saved(step) else ""
    if _dearer(step, surely=True):
        return f"no step is cheaper than as found; which comes nearest cannot be told, it may be {steps}{worth}"
    return f"where it spends the least energy cannot be told, it may be {steps}{_spread(may_be)}{worth}"


def _dearer(step: Step, *, surely: bool = False) -> bool:
    """Return whether a step spends no less than the GPU as it was found, or surely so, by its interval."""
    ratio = step.energy_ratio
    least = None if ratio is None else ratio.low if surely else ratio.value
    return least is not None and least >= 1


def _fastest(options: SweepOptions, curve: Curve) -> str:
    """Say at which step the most work is done; nothing where steps cannot be compared by it."""
    rates = {step.place: step.calls_per_s.value for step in curve.steps}
    if options.knob not in {"dtype", "size", "batch"} or not rates or curve.unit not in {"call", "FLOP", "byte"}:
        return ""
    for step in curve.steps:
        work = {"FLOP": step.readings[0].flop, "byte": step.readings[0].bytes_moved}.get(curve.unit)
        rates[step.place] *= work or 1.0
    best_index = max(rates, key=lambda index: rates[index])
    return f"; it does the most work at {at_text(options.knob, options.points[best_index].setting)}"


def _saved(step: Step) -> str:
    """Say what a step saves and costs against the GPU as found; nothing where that was not measured."""
    if step.energy_ratio is None or step.slowdown is None:
        return ""
    return (
        f", {more_or_less(step.energy_ratio.value)} than as found{_ends(step.energy_ratio)} "
        f"for calls that take {more_or_less(step.slowdown.value, 'longer', 'less')}"
    )


def _ends(ratio: Estimate) -> str:
    """Write the interval of what is saved: " (16 to 20 %)"."""
    if ratio.low is None or ratio.high is None:
        return ""
    ends = sorted((abs(ratio.low - 1), abs(ratio.high - 1)))
    if (ratio.low - 1) * (ratio.high - 1) < 0:
        return " (or the same)"
    return f" ({percent(ends[0]).removesuffix(' %')} to {percent(ends[1])})"


def _others(options: SweepOptions, curve: Curve) -> str:
    if curve.best is None:
        return ""
    others = [options.points[index].setting for index in curve.best.may_be if index != curve.best.place]
    order = [point.setting for point in options.points]
    return f", and {settings_text(options.knob, others, order)} cannot be told from it" if others else ""


def _spread(steps: Sequence[Step]) -> str:
    """Say how far apart steps lie that cannot be told apart."""
    costs = [step.cost_j.value for step in steps if step.cost_j is not None]
    return f" (they lie within {percent(max(costs) / min(costs) - 1)})" if len(costs) > 1 else ""


def _capped(options: SweepOptions, curve: Curve) -> list[str]:
    most = f"{100 * options.max_slowdown:g} %"
    within = curve.within(options.max_slowdown)
    has_bounds = any(step.longer_at_most is not None for step in curve.steps)
    clauses = []
    if within is not None and len(curve.unbound) < len(curve.steps):
        saved = within.energy_ratio
        worth = f", {more_or_less(saved.value)} energy" if saved is not None and within.binds != "does not bind" else ""
        clauses.append(f"calls take at most {most} longer down to {setting_text(options.knob, within.setting)}{worth}")
    elif within is None and has_bounds:
        clauses.append(f"no step is surely within {most} of the time as found")
    if 0 < len(curve.unbound) < len(curve.steps):
        free = settings_text(options.knob, [step.setting for step in curve.unbound], [s.setting for s in curve.steps])
        clauses.append(f"{free} {'does' if len(curve.unbound) == 1 else 'do'} not bind")
    return clauses


def _of_many(options: SweepOptions, found: Sequence[Curve]) -> str:
    clear = [curve for curve in found if curve.best is not None and curve.best.told]
    best = [curve.at(curve.best.place) for curve in clear if curve.best is not None]
    settings = [step.setting for step in best if not _dearer(step)]
    if best and not settings:
        return f"{options.workload}: no step is cheaper than as found on {len(best)} of {len(found)} devices."
    if not settings:
        return f"{len(found)} devices were measured, and of none is the best step told from the others."
    numbers = list(dict.fromkeys(settings_text(options.knob, [setting]) for setting in sorted(settings, key=str)))
    rest = len(found) - len(clear)
    dearer = f"; on {len(best) - len(settings)} none is cheaper than as found" if len(best) > len(settings) else ""
    unsure = f"; of {rest} it cannot be told" if rest else ""
    where = f"{listed(numbers)} on {len(settings)} devices"
    return f"{options.workload} spends the least energy at {where}{dearer}{unsure}."


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
