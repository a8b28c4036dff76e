"""The findings of a sweep for each device, and the headline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import format_joules, format_list, format_percent, format_range
from assay.core.results import Finding, Findings
from assay.experiments.power.rows import energy_fields, group_failed
from assay.experiments.power.sweep.options import KNOBS, axis_value, join_settings, setting_phrase, setting_text
from assay.experiments.reporting import gather_findings, run_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Estimate, Verdict
    from assay.core.values import Params, Scalar
    from assay.experiments.power.sweep.curve import Optimum, SweepCurve, SweepStep, SweepStudy
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.store.records import Records


MAX_DEVICES_NAMED = 4
"""Devices that are described one by one; of more, the range of their best steps."""
WORK_UNIT_NAMES = {"call": "call", "FLOP": "floating-point operation", "byte": "byte", "item": "item of the batch"}


def sweep_headline(options: SweepOptions, curves: Sequence[SweepCurve], records: Records) -> str:
    """Return the answer: the best step of each device, what it saves and costs, and which caps do nothing."""
    if not curves:
        reasons = [record.reason for record in records if record.reason]
        reasons += [point.refused for point in options.points if point.refused is not None]
        return f"Nothing could be measured: {reasons[0].rstrip('.')}." if reasons else "Nothing could be measured."
    if len(curves) > MAX_DEVICES_NAMED:
        return _devices_sentence(options, curves)
    sentences = []
    for curve in curves:
        parts = [_optimum_clause(options, curve), *(_cap_clauses(options, curve) if options.capped else [])]
        sentence = "; ".join(part for part in parts if part)
        sentences.append(f"{sentence[:1].upper()}{sentence[1:]}.")
    return " ".join(sentences)


def _optimum_clause(options: SweepOptions, curve: SweepCurve) -> str:
    where = f"on {curve.device} {options.workload}"
    best = curve.best
    if best is None:
        why = "calls of different sizes do different work, and it does not tell how much"
        return f"{where}: {why if curve.unit is None else 'no energy is told'}{_fastest_clause(options, curve)}"
    if not best.is_clear and best.chance:
        return f"{where}: {_unclear_optimum_clause(options, curve, best)}"
    step = curve.at(best.index)
    at, saving = setting_phrase(options.knob, step.setting), _saving_clause(step)
    if _costs_no_less(step) and step.binds != "does_not_bind":
        once = "" if best.chance else ", in a single repeat"
        cheaper = "cheaper" if _costs_no_less(step, surely=best.chance) else "surely cheaper"
        return f"{where}: no step is {cheaper} than as found{once}; at {at} it takes{saving[1:]}"
    if not best.chance:
        return f"{where} spent the least energy at {at}, in a single repeat{saving}"
    if step.binds == "does_not_bind":
        return f"{where} spends the least energy where no cap binds"
    cost = ""
    if step.cost_j is not None:
        unit = WORK_UNIT_NAMES[curve.unit or "call"]
        cost = f" ({format_joules(step.cost_j.value)} {'an' if unit.startswith('i') else 'a'} {unit})"
    others = _join(options, [index for index in best.may_be if index != best.index])
    tied = f", and {others} cannot be told from it" if len(best.may_be) > 1 else ""
    return f"{where} spends the least energy at {at}{cost}{saving}{tied}"


def _join(options: SweepOptions, indices: Sequence[int]) -> str:
    """Write the settings of some points."""
    order = [point.setting for point in options.points]
    return join_settings(options.knob, [order[index] for index in indices], order)


def _unclear_optimum_clause(options: SweepOptions, curve: SweepCurve, best: Optimum) -> str:
    """Say that the best step cannot be told, and which it may be."""
    if len(curve.unbound) == len(curve.steps):
        return f"no cap binds, so that none saves energy{_spread_clause(curve.steps)}"
    may_be = [curve.at(index) for index in best.may_be]
    if len(may_be) == sum(step.cost_j is not None for step in curve.steps):
        return f"no step can be told from another by its energy{_spread_clause(may_be)}"
    steps = _join(options, best.may_be).replace(" and ", " or ")
    step = curve.at(best.index)
    saving = _saving_clause(step)
    worth = f"; {setting_text(options.knob, step.setting)} takes{saving[1:]}" if saving else ""
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
    ratio = step.energy_ratio
    if ratio is None or step.slowdown is None:
        return ""
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        ends = sorted((abs(ratio.low - 1), abs(ratio.high - 1)))
        both_ways = (ratio.low - 1) * (ratio.high - 1) < 0
        interval = " (or the same)" if both_ways else f" ({format_range(*map(format_percent, ends))})"
    longer = more_or_less_text(step.slowdown.value, "longer", "less")
    return f", {more_or_less_text(ratio.value)} than as found{interval} for calls that take {longer}"


def more_or_less_text(ratio: float, more: str = "more", less: str = "less") -> str:
    """Write a ratio as what it adds or saves: 0.82 is "18 % less"."""
    return f"{format_percent(ratio - 1)} {more}" if ratio >= 1 else f"{format_percent(1 - ratio)} {less}"


def _spread_clause(steps: Sequence[SweepStep]) -> str:
    """Say how far apart steps lie that cannot be told apart."""
    costs = [step.cost_j.value for step in steps if step.cost_j is not None]
    return f" (they lie within {format_percent(max(costs) / min(costs) - 1)})" if len(costs) > 1 else ""


def _cap_clauses(options: SweepOptions, curve: SweepCurve) -> list[str]:
    most = format_percent(options.max_slowdown, digits=3)
    within = curve.within(options.max_slowdown)
    clauses = []
    if within is not None and len(curve.unbound) < len(curve.steps):
        saved = within.energy_ratio if within.binds != "does_not_bind" else None
        worth = "" if saved is None else f", {more_or_less_text(saved.value)} energy"
        clauses.append(f"calls take at most {most} longer down to {setting_text(options.knob, within.setting)}{worth}")
    elif within is None and any(step.longer_at_most is not None for step in curve.steps):
        clauses.append(f"no step is surely within {most} of the time as found")
    if 0 < len(curve.unbound) < len(curve.steps):
        clauses.append(_unbound_clause(options, curve))
    return clauses


def _unbound_clause(options: SweepOptions, curve: SweepCurve) -> str:
    free = join_settings(options.knob, [s.setting for s in curve.unbound], [s.setting for s in curve.steps])
    return f"{free} {'does' if len(curve.unbound) == 1 else 'do'} not bind"


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


def build_findings(options: SweepOptions, study: SweepStudy, records: Records) -> Findings:
    """Return where each device spends the least energy, how far it can be throttled, and which caps do nothing."""
    findings: list[Finding] = []
    for curve in study.curves:
        unit = WORK_UNIT_NAMES[curve.unit or "call"]
        at_step = f" spends the least energy per {unit} at"
        missing = f": the step that spends the least energy per {unit} is known"
        findings.append(_optimum_finding(options, curve, curve.best, "best_energy", at_step=at_step, missing=missing))
        if options.capped:
            delay, best, kind = ": energy times time of a call is least", curve.best_delay, "energy_delay"
            findings.append(_optimum_finding(options, curve, best, kind, at_step=f"{delay} at", missing=delay))
            findings.append(_slowdown_finding(options, curve))
            findings.append(_binding_finding(options, curve))
    findings += _unmeasured_findings(options, study)
    return gather_findings(sweep_headline(options, study.curves, records), findings, records)


def _curve_finding(
    options: SweepOptions,
    curve: SweepCurve,
    kind: str,
    claim: str,
    *,
    verdict: Verdict,
    estimate: Estimate | None = None,
    reason: str | None = None,
    facts: Params | None = None,
) -> Finding:
    trials = dict.fromkeys(r.trial for step in (*curve.steps, *curve.all_steps) for r in step.readings)
    return Finding(
        kind=kind,
        claim=f"{options.workload} on {curve.device}{claim}",
        estimate=estimate,
        verdict=verdict,
        reason=reason,
        records=tuple(trials),
        facts={"device": curve.device, "knob": options.knob, **(facts or {})},
    )


def _optimum_finding(
    options: SweepOptions, curve: SweepCurve, best: Optimum | None, kind: str, *, at_step: str, missing: str
) -> Finding:
    """Return at which step a quantity is least; ``missing`` is claimed where it was not measured."""
    if best is None:
        return _curve_finding(options, curve, kind, missing, verdict="unsure", reason=missing_energy_reason(curve))
    step = curve.at(best.index)
    return _curve_finding(
        options,
        curve,
        kind,
        f"{at_step} {setting_phrase(options.knob, step.setting)}",
        estimate=_setting_estimate(options, best) or step.cost_j,
        verdict="yes" if best.is_clear else "unsure",
        reason=optimum_doubt(options, best),
        facts={
            **_step_facts(step),
            "may_be": _settings_or_none(options, [options.points[index].setting for index in best.may_be]),
        },
    )


def _slowdown_finding(options: SweepOptions, curve: SweepCurve) -> Finding:
    """Return the lowest step that surely costs no more than the slowdown that is allowed."""
    step = curve.within(options.max_slowdown)
    most = format_percent(options.max_slowdown, digits=3)
    facts: Params = {"max_slowdown": options.max_slowdown}
    if step is not None:
        claim = f" takes at most {most} longer down to {setting_phrase(options.knob, step.setting)}"
        facts |= _step_facts(step)
        kind, estimate = "within_slowdown", step.slowdown
        return _curve_finding(options, curve, kind, claim, estimate=estimate, verdict="yes", facts=facts)
    has_bounds = any(curve_step.longer_at_most is not None for curve_step in curve.steps)
    no_step = has_bounds and all(_is_surely_slower(options, curve_step) for curve_step in curve.steps)
    return _curve_finding(
        options,
        curve,
        "within_slowdown",
        f" stays within {most} of its time as found at some step",
        verdict="no" if no_step else "unsure",
        reason=None if has_bounds else "one repeat tells nothing of chance",
        facts=facts,
    )


def _is_surely_slower(options: SweepOptions, step: SweepStep) -> bool:
    slowdown = step.slowdown
    return slowdown is not None and slowdown.low is not None and slowdown.low > 1 + options.max_slowdown


def _binding_finding(options: SweepOptions, curve: SweepCurve) -> Finding:
    """Return whether the caps do anything at all, with the power drawn as found and its range over the repeats."""
    settings = {
        binds: [step.setting for step in curve.steps if step.binds == binds]
        for binds in ("binds", "does_not_bind", "unclear")
    }
    readings = curve.reference.readings if curve.reference is not None else ()
    powers_w = [reading.power_w for reading in readings if reading.power_w is not None]
    estimate = None
    if powers_w:
        bounds = sum(powers_w) / len(powers_w), min(powers_w), max(powers_w)
        estimate = run_estimate(bounds, "W", "power as found, mean and range of the repeats", len(powers_w))
    return _curve_finding(
        options,
        curve,
        "binding",
        f" is throttled by some step of the {axis_name(options)}",
        estimate=estimate,
        verdict="yes" if settings["binds"] else "unsure" if settings["unclear"] else "no",
        reason=_unbound_clause(options, curve) if curve.unbound else None,
        facts={binds: _settings_or_none(options, several) for binds, several in settings.items()},
    )


def axis_name(options: SweepOptions) -> str:
    """Return what is swept, without its unit."""
    return KNOBS[options.knob].axis.partition(" (")[0]


def _settings_or_none(options: SweepOptions, settings: Sequence[Scalar]) -> str | None:
    return ", ".join(setting_text(options.knob, setting) for setting in settings) or None


def _setting_estimate(options: SweepOptions, best: Optimum) -> Estimate | None:
    """Return the best setting, from the lowest to the highest that cannot be told from it; null for words."""
    setting = options.points[best.index].setting
    if isinstance(setting, str):
        return None
    numbers = [axis_value(options.knob, options.points[index].setting) for index in best.may_be]
    low, high = (min(numbers), max(numbers)) if best.chance else (None, None)
    method = "the lowest step; the interval spans the steps that cannot be told from it (Hsu)"
    return run_estimate((axis_value(options.knob, setting), low, high), KNOBS[options.knob].unit, method, best.repeats)


def optimum_doubt(options: SweepOptions, best: Optimum) -> str | None:
    """Say which other steps may as well be the best; null where there is none."""
    if not best.chance:
        return "one repeat tells nothing of chance"
    others = [index for index in best.may_be if index != best.index]
    if not others:
        return None
    if len(best.may_be) == sum(point.subject is not None and point.setting is not None for point in options.points):
        return "no step can be told from another"
    return f"{_join(options, others)} cannot be told from it"


def missing_energy_reason(curve: SweepCurve) -> str:
    """Say why there is no energy."""
    if curve.unit is None:
        return "calls of different sizes do different work, and this workload does not tell how much"
    notes = (r.energy_missing.detail for step in curve.steps for r in step.readings if r.energy_missing is not None)
    return next(notes, "no energy was measured")


def _step_facts(step: SweepStep) -> Params:
    facts: Params = {"setting": step.setting, **energy_fields(step.energy_j)}
    facts["cost_j"] = step.cost_j.value if step.cost_j else None
    for name, ratio in (("energy_ratio", step.energy_ratio), ("slowdown", step.slowdown)):
        facts |= {name: ratio.value if ratio else None, f"{name}_low": ratio.low if ratio else None}
        facts[f"{name}_high"] = ratio.high if ratio else None
    facts |= {"longer_at_most": step.longer_at_most, "calls_per_s": step.calls_per_s.value}
    return {**facts, "power_w": step.mean("power_w"), "binds": step.binds}


def _unmeasured_findings(options: SweepOptions, study: SweepStudy) -> list[Finding]:
    """Return the steps that the workload itself refuses, and those that never worked, each with its reason."""

    def missing(claim: str, reason: str | None, status: str, trials: Sequence[str] = ()) -> Finding:
        facts: Params = {"knob": options.knob, "status": status}
        claim = f"{options.workload} {claim}"
        return Finding(
            kind="missing", claim=claim, estimate=None, verdict="no", reason=reason, records=tuple(trials), facts=facts
        )

    phrases = [setting_phrase(options.knob, point.setting) for point in options.points]
    failed = group_failed(study.pairs)
    return [
        *(
            missing(f"takes {phrase}", point.refused, "refused")
            for point, phrase in zip(options.points, phrases, strict=True)
            if point.refused is not None
        ),
        *(
            missing(
                f"can be measured at {phrases[visit.point]} on {', '.join(visit.devices)}",
                tries[-1].reason,
                tries[-1].status,
                [record.trial for record in tries],
            )
            for visit, tries in failed.items()
        ),
    ]
