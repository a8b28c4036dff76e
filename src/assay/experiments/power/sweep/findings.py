"""The findings of a sweep for each device, and the headline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import format_joules, format_list, format_percent, format_range
from assay.core.results import Estimate, Finding, Findings
from assay.experiments.power.sweep.options import (
    KNOB_AXES,
    KNOB_UNITS,
    axis_value,
    join_settings,
    more_or_less_text,
    setting_phrase,
    setting_text,
)
from assay.experiments.reporting import gather_findings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record, Verdict
    from assay.core.values import Params
    from assay.experiments.power.sweep.curve import Optimum, SweepCurve, SweepStep, SweepStudy
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.store.records import Records


MAX_DEVICES_NAMED = 4
"""Devices that are told one by one; of more, the range of their best steps."""
WORK_UNIT_PHRASES = {
    "call": "a call",
    "FLOP": "a floating-point operation",
    "byte": "a byte",
    "item": "an item of the batch",
}


def sweep_headline(options: SweepOptions, curves: Sequence[SweepCurve], records: Records) -> str:
    """Return the answer: the best step of each device, what it saves and costs, and which caps do nothing."""
    if not curves:
        return f"Nothing could be measured{_failure_reason(options, records)}."
    if len(curves) > MAX_DEVICES_NAMED:
        return _devices_sentence(options, curves)
    sentences = [f"{_device_sentence(options, curve)}." for curve in curves]
    return " ".join(_capitalise(sentence) for sentence in sentences)


def _failure_reason(options: SweepOptions, records: Records) -> str:
    reasons = [record.reason for record in records if record.reason]
    reasons += [point.refused for point in options.points if point.refused is not None]
    return f": {reasons[0].rstrip('.')}" if reasons else ""


def _device_sentence(options: SweepOptions, curve: SweepCurve) -> str:
    parts = [_optimum_clause(options, curve), *(_cap_clauses(options, curve) if options.capped else [])]
    return "; ".join(part for part in parts if part)


def _optimum_clause(options: SweepOptions, curve: SweepCurve) -> str:
    where = f"on {curve.device} {options.workload}"
    best = curve.best
    if best is None:
        why = "calls of different sizes do different work, and it does not tell how much"
        return f"{where}: {why if curve.unit is None else 'no energy is told'}{_fastest_clause(options, curve)}"
    if not best.is_clear and best.chance:
        return f"{where}: {_unclear_optimum_clause(options, curve, best)}"
    step = curve.at(best.index)
    at = setting_phrase(options.knob, step.setting)
    if _costs_no_less(step) and step.binds != "does_not_bind":
        once = "" if best.chance else ", in a single repeat"
        cheaper = "cheaper" if _costs_no_less(step, surely=best.chance) else "surely cheaper"
        return f"{where}: no step is {cheaper} than as found{once}; at {at} it takes{_saving_clause(step)[1:]}"
    if not best.chance:
        return f"{where} spent the least energy at {at}, in a single repeat{_saving_clause(step)}"
    if step.binds == "does_not_bind":
        return f"{where} spends the least energy where no cap binds"
    cost = (
        f" ({format_joules(step.cost_j.value)} {WORK_UNIT_PHRASES[curve.unit or 'call']})"
        if step.cost_j is not None
        else ""
    )
    return f"{where} spends the least energy at {at}{cost}{_saving_clause(step)}{_tied_steps_clause(options, curve)}"


def _unclear_optimum_clause(options: SweepOptions, curve: SweepCurve, best: Optimum) -> str:
    """Say that the best step cannot be told, and which it may be."""
    if len(curve.unbound) == len(curve.steps):
        return f"no cap binds, so that none saves energy{_spread_clause(curve.steps)}"
    may_be = [curve.at(index) for index in best.may_be]
    if len(may_be) == sum(step.cost_j is not None for step in curve.steps):
        return f"no step can be told from another by its energy{_spread_clause(may_be)}"
    order = [point.setting for point in options.points]
    steps = join_settings(options.knob, [step.setting for step in may_be], order).replace(" and ", " or ")
    step = curve.at(best.index)
    worth = (
        f"; {setting_text(options.knob, step.setting)} takes{_saving_clause(step)[1:]}" if _saving_clause(step) else ""
    )
    if _costs_no_less(step, surely=True):
        return f"no step is cheaper than as found; which comes nearest cannot be told, it may be {steps}{worth}"
    return f"where it spends the least energy cannot be told, it may be {steps}{_spread_clause(may_be)}{worth}"


def _costs_no_less(step: SweepStep, *, surely: bool = False) -> bool:
    """Return whether a step spends no less than the GPU as it was found, or surely so, by its interval."""
    ratio = step.energy_ratio
    least = None if ratio is None else ratio.low if surely else ratio.value
    return least is not None and least >= 1


def _fastest_clause(options: SweepOptions, curve: SweepCurve) -> str:
    """Say at which step the most work is done; nothing where steps cannot be compared by it."""
    rates = {step.index: step.calls_per_s.value for step in curve.steps}
    if options.knob not in {"dtype", "size", "batch"} or not rates or curve.unit not in {"call", "FLOP", "byte"}:
        return ""
    for step in curve.steps:
        work = {"FLOP": step.readings[0].flop, "byte": step.readings[0].bytes_moved}.get(curve.unit)
        rates[step.index] *= work or 1.0
    best_index = max(rates, key=lambda index: rates[index])
    return f"; it does the most work at {setting_phrase(options.knob, options.points[best_index].setting)}"


def _saving_clause(step: SweepStep) -> str:
    """Say what a step saves and costs against the GPU as found; nothing where that was not measured."""
    if step.energy_ratio is None or step.slowdown is None:
        return ""
    return (
        f", {more_or_less_text(step.energy_ratio.value)} than as found{_interval_text(step.energy_ratio)} "
        f"for calls that take {more_or_less_text(step.slowdown.value, 'longer', 'less')}"
    )


def _interval_text(ratio: Estimate) -> str:
    """Write the interval of what is saved: " (16–20 %)"."""
    if ratio.low is None or ratio.high is None:
        return ""
    ends = sorted((abs(ratio.low - 1), abs(ratio.high - 1)))
    if (ratio.low - 1) * (ratio.high - 1) < 0:
        return " (or the same)"
    return f" ({format_range(*map(format_percent, ends))})"


def _tied_steps_clause(options: SweepOptions, curve: SweepCurve) -> str:
    if curve.best is None:
        return ""
    others = [options.points[index].setting for index in curve.best.may_be if index != curve.best.index]
    order = [point.setting for point in options.points]
    return f", and {join_settings(options.knob, others, order)} cannot be told from it" if others else ""


def _spread_clause(steps: Sequence[SweepStep]) -> str:
    """Say how far apart steps lie that cannot be told apart."""
    costs = [step.cost_j.value for step in steps if step.cost_j is not None]
    return f" (they lie within {format_percent(max(costs) / min(costs) - 1)})" if len(costs) > 1 else ""


def _cap_clauses(options: SweepOptions, curve: SweepCurve) -> list[str]:
    most = f"{format_percent(options.max_slowdown, digits=3)}"
    within = curve.within(options.max_slowdown)
    has_bounds = any(step.longer_at_most is not None for step in curve.steps)
    clauses = []
    if within is not None and len(curve.unbound) < len(curve.steps):
        saved = within.energy_ratio
        worth = (
            f", {more_or_less_text(saved.value)} energy"
            if saved is not None and within.binds != "does_not_bind"
            else ""
        )
        clauses.append(f"calls take at most {most} longer down to {setting_text(options.knob, within.setting)}{worth}")
    elif within is None and has_bounds:
        clauses.append(f"no step is surely within {most} of the time as found")
    if 0 < len(curve.unbound) < len(curve.steps):
        free = join_settings(options.knob, [step.setting for step in curve.unbound], [s.setting for s in curve.steps])
        clauses.append(f"{free} {'does' if len(curve.unbound) == 1 else 'do'} not bind")
    return clauses


def _devices_sentence(options: SweepOptions, curves: Sequence[SweepCurve]) -> str:
    clear = [curve for curve in curves if curve.best is not None and curve.best.is_clear]
    best = [curve.at(curve.best.index) for curve in clear if curve.best is not None]
    settings = [step.setting for step in best if not _costs_no_less(step)]
    if best and not settings:
        return f"{options.workload}: no step is cheaper than as found on {len(best)} of {len(curves)} devices."
    if not settings:
        return f"{len(curves)} devices were measured, and of none is the best step told from the others."
    numbers = list(dict.fromkeys(join_settings(options.knob, [setting]) for setting in sorted(settings, key=str)))
    rest = len(curves) - len(clear)
    dearer = f"; on {len(best) - len(settings)} none is cheaper than as found" if len(best) > len(settings) else ""
    unsure = f"; of {rest} it cannot be told" if rest else ""
    where = f"{format_list(numbers)} on {len(settings)} devices"
    return f"{options.workload} spends the least energy at {where}{dearer}{unsure}."


def _capitalise(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


WORK_UNIT_NAMES = {"call": "call", "FLOP": "floating-point operation", "byte": "byte", "item": "item of the batch"}


def build_findings(options: SweepOptions, study: SweepStudy, records: Records) -> Findings:
    """Return where each device spends the least energy, how far it can be held back, and which caps do nothing."""
    findings = [finding for curve in study.curves for finding in _curve_findings(options, curve)]
    findings += [*_refused_findings(options), *_failed_findings(options, study)]
    return gather_findings(sweep_headline(options, study.curves, records), findings, records)


def _curve_findings(options: SweepOptions, curve: SweepCurve) -> list[Finding]:
    results = [_energy_finding(options, curve)]
    if options.capped:
        results.append(_energy_delay_finding(options, curve))
        results.append(_slowdown_finding(options, curve))
        results.append(_binding_finding(options, curve))
    return results


def _trial_ids(curve: SweepCurve) -> tuple[str, ...]:
    steps = (*curve.steps, *curve.all_reference)
    return tuple(dict.fromkeys(reading.trial for step in steps for reading in step.readings))


def _energy_finding(options: SweepOptions, curve: SweepCurve) -> Finding:
    where = f"{options.workload} on {curve.device}"
    unit = WORK_UNIT_NAMES[curve.unit] if curve.unit is not None else "call"
    facts: Params = {"device": curve.device, "knob": options.knob}
    if curve.best is None:
        return Finding(
            kind="best_energy",
            claim=f"{where}: the step that spends the least energy per {unit} is known",
            estimate=None,
            verdict="unsure",
            reason=missing_energy_reason(curve),
            records=_trial_ids(curve),
            facts=facts,
        )
    step = curve.at(curve.best.index)
    return Finding(
        kind="best_energy",
        claim=f"{where} spends the least energy per {unit} at {setting_phrase(options.knob, step.setting)}",
        estimate=_setting_estimate(options, curve.best) or step.cost_j,
        verdict="yes" if curve.best.is_clear else "unsure",
        reason=optimum_doubt(options, curve.best),
        records=_trial_ids(curve),
        facts={**facts, **_step_facts(step), "may_be": _candidate_settings(options, curve.best)},
    )


def _energy_delay_finding(options: SweepOptions, curve: SweepCurve) -> Finding:
    claim, best = f"{options.workload} on {curve.device}: energy times time of a call is least", curve.best_delay
    facts: Params = {"device": curve.device, "knob": options.knob}
    if best is None:
        reason = missing_energy_reason(curve)
        return Finding(
            kind="energy_delay",
            claim=claim,
            estimate=None,
            verdict="unsure",
            reason=reason,
            records=_trial_ids(curve),
            facts=facts,
        )
    step = curve.at(best.index)
    return Finding(
        kind="energy_delay",
        claim=f"{claim} at {setting_phrase(options.knob, step.setting)}",
        estimate=_setting_estimate(options, best),
        verdict="yes" if best.is_clear else "unsure",
        reason=optimum_doubt(options, best),
        records=_trial_ids(curve),
        facts={**facts, **_step_facts(step), "may_be": _candidate_settings(options, best)},
    )


def _slowdown_finding(options: SweepOptions, curve: SweepCurve) -> Finding:
    """Return the lowest step that surely costs no more than the slowdown that is allowed."""
    step = curve.within(options.max_slowdown)
    most = f"{format_percent(options.max_slowdown, digits=3)}"
    facts: Params = {
        "device": curve.device,
        "knob": options.knob,
        "max_slowdown": options.max_slowdown,
    }
    where = f"{options.workload} on {curve.device}"
    if step is None:
        has_bounds = any(curve_step.longer_at_most is not None for curve_step in curve.steps)
        return Finding(
            kind="within_slowdown",
            claim=f"{where} stays within {most} of its time as found at some step",
            estimate=None,
            verdict="no"
            if has_bounds and all(_is_surely_slower(options, curve_step) for curve_step in curve.steps)
            else "unsure",
            reason=None if has_bounds else "one repeat tells nothing of chance",
            records=_trial_ids(curve),
            facts=facts,
        )
    return Finding(
        kind="within_slowdown",
        claim=f"{where} takes at most {most} longer down to {setting_phrase(options.knob, step.setting)}",
        estimate=step.slowdown,
        verdict="yes",
        records=_trial_ids(curve),
        facts={**facts, **_step_facts(step)},
    )


def _is_surely_slower(options: SweepOptions, step: SweepStep) -> bool:
    slowdown = step.slowdown
    return slowdown is not None and slowdown.low is not None and slowdown.low > 1 + options.max_slowdown


def _binding_finding(options: SweepOptions, curve: SweepCurve) -> Finding:
    """Return whether the caps do anything at all, with the most power that was seen."""
    binding = [step for step in curve.steps if step.binds == "binds"]
    unclear = [step for step in curve.steps if step.binds == "unclear"]
    verdict: Verdict = "yes" if binding else "unsure" if unclear else "no"
    powers_w = [
        reading.power_w for step in curve.all_reference for reading in step.readings if reading.power_w is not None
    ]
    free, order = [step.setting for step in curve.unbound], [step.setting for step in curve.steps]
    do = "does" if len(free) == 1 else "do"
    return Finding(
        kind="binding",
        claim=f"{options.workload} on {curve.device} is held back by some step of the {axis_name(options)}",
        estimate=_power_estimate(powers_w),
        verdict=verdict,
        reason=f"{join_settings(options.knob, free, order)} {do} not bind" if free else None,
        records=_trial_ids(curve),
        facts={
            "device": curve.device,
            "knob": options.knob,
            "binds": _settings_or_none(options, binding),
            "does_not_bind": _settings_or_none(options, curve.unbound),
            "unclear": _settings_or_none(options, unclear),
        },
    )


def axis_name(options: SweepOptions) -> str:
    """Return what is turned, without its unit."""
    return KNOB_AXES[options.knob].partition(" (")[0]


def _power_estimate(powers_w: list[float]) -> Estimate | None:
    """Return the power that the GPU draws as found, from the repeats' lowest to their highest."""
    if not powers_w:
        return None
    return Estimate(
        value=sum(powers_w) / len(powers_w),
        low=min(powers_w),
        high=max(powers_w),
        unit="W",
        scope="run",
        method="power as found, mean and range of the repeats",
        n=len(powers_w),
    )


def _setting_estimate(options: SweepOptions, best: Optimum) -> Estimate | None:
    """Return the best setting, from the lowest to the highest that cannot be told from it; null for words."""
    settings = [options.points[index].setting for index in best.may_be]
    setting = options.points[best.index].setting
    if isinstance(setting, str):
        return None
    numbers = [axis_value(options.knob, candidate) for candidate in settings]
    return Estimate(
        value=axis_value(options.knob, setting),
        low=min(numbers) if best.chance else None,
        high=max(numbers) if best.chance else None,
        unit=KNOB_UNITS.get(options.knob, ""),
        scope="run",
        method="the lowest step; the interval spans the steps that cannot be told from it (Hsu)",
        n=best.repeats,
    )


def optimum_doubt(options: SweepOptions, best: Optimum) -> str | None:
    """Say which other steps may as well be the best; null where there is none."""
    others = [options.points[index].setting for index in best.may_be if index != best.index]
    if not best.chance:
        return "one repeat tells nothing of chance"
    if not others:
        return None
    if len(others) + 1 == sum(point.subject is not None and point.setting is not None for point in options.points):
        return "no step can be told from another"
    return f"{join_settings(options.knob, others, [p.setting for p in options.points])} cannot be told from it"


def missing_energy_reason(curve: SweepCurve) -> str:
    """Say why no energy is told."""
    if curve.unit is None:
        return "calls of different sizes do different work, and this workload does not tell how much"
    notes = dict.fromkeys(
        r.energy_missing.detail for step in curve.steps for r in step.readings if r.energy_missing is not None
    )
    return next(iter(notes), "no energy was measured")


def _step_facts(step: SweepStep) -> Params:
    energy, ratio, slowdown = step.energy_j, step.energy_ratio, step.slowdown
    return {
        "setting": step.setting,
        "energy_per_call_j": energy.value if energy else None,
        "energy_low_j": energy.low if energy else None,
        "energy_high_j": energy.high if energy else None,
        "cost_j": step.cost_j.value if step.cost_j else None,
        "energy_ratio": ratio.value if ratio else None,
        "energy_ratio_low": ratio.low if ratio else None,
        "energy_ratio_high": ratio.high if ratio else None,
        "slowdown": slowdown.value if slowdown else None,
        "slowdown_low": slowdown.low if slowdown else None,
        "slowdown_high": slowdown.high if slowdown else None,
        "longer_at_most": step.longer_at_most,
        "calls_per_s": step.calls_per_s.value,
        "power_w": step.mean("power_w"),
        "binds": step.binds,
    }


def _candidate_settings(options: SweepOptions, best: Optimum) -> str:
    return ", ".join(setting_text(options.knob, options.points[index].setting) for index in best.may_be)


def _settings_or_none(options: SweepOptions, steps: tuple[SweepStep, ...] | list[SweepStep]) -> str | None:
    return ", ".join(setting_text(options.knob, step.setting) for step in steps) or None


def _refused_findings(options: SweepOptions) -> list[Finding]:
    """Return the steps that the workload itself refuses, each with its reason."""
    return [
        _unmeasured_finding(
            options, f"{options.workload} takes {setting_phrase(options.knob, point.setting)}", point.refused, "refused"
        )
        for point in options.points
        if point.refused is not None
    ]


def _failed_findings(options: SweepOptions, study: SweepStudy) -> list[Finding]:
    """Return the steps that never worked, each with its last reason."""
    tried: dict[tuple[int, tuple[str, ...]], list[Record]] = {}
    for visit, record in study.pairs:
        tried.setdefault((visit.point, visit.devices), []).append(record)
    return [
        _unmeasured_finding(
            options,
            f"{options.workload} can be measured at {setting_phrase(options.knob, options.points[point].setting)} "
            f"on {', '.join(devices)}",
            tries[-1].reason,
            tries[-1].status,
            tuple(record.trial for record in tries),
        )
        for (point, devices), tries in tried.items()
        if all(record.status != "ok" for record in tries)
    ]


def _unmeasured_finding(
    options: SweepOptions, claim: str, reason: str | None, status: str, records: tuple[str, ...] = ()
) -> Finding:
    facts: Params = {"knob": options.knob, "status": status}
    return Finding(
        kind="missing", claim=claim, estimate=None, verdict="no", reason=reason, records=records, facts=facts
    )
