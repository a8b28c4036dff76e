"""What a sweep comes to: judged claims for each device, and all of it in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate, Finding, Findings
from assay.experiments.power.sweep.curve import curves
from assay.experiments.power.sweep.headline import headline
from assay.experiments.power.sweep.readings import taken
from assay.experiments.power.sweep.words import AXES, UNITS, at_text, axis_value, setting_text, settings_text

if TYPE_CHECKING:
    from assay.core.results import Record, Verdict
    from assay.core.values import Params
    from assay.experiments.power.sweep.curve import Curve, Step
    from assay.experiments.power.sweep.optimum import Optimum
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.store.records import Records

PER = {"call": "call", "FLOP": "floating-point operation", "byte": "byte", "item": "item of the batch"}


def analyse(options: SweepOptions, records: Records) -> Findings:
    """Return where each device spends the least energy, how far it can be held back, and which caps do nothing."""
    all_curves = curves(options, records)
    curve_results = [finding for curve in all_curves for finding in _of_curve(options, curve)]
    origin = next((record.origin for record in records if record.origin != "real"), "real")
    findings = (*curve_results, *_refused(options), *_missing(options, records))
    return Findings(
        headline=headline(options, all_curves, records),
        findings=tuple(finding.model_copy(update={"origin": origin}) for finding in findings),
    )


def _of_curve(options: SweepOptions, curve: Curve) -> list[Finding]:
    results = [_best(options, curve)]
    if options.capped:
        results.append(_delay(options, curve))
        results.append(_within(options, curve))
        results.append(_binding(options, curve))
    return results


def _trials(curve: Curve) -> tuple[str, ...]:
    steps = (*curve.steps, *curve.all_reference)
    return tuple(dict.fromkeys(reading.trial for step in steps for reading in step.readings))


def _best(options: SweepOptions, curve: Curve) -> Finding:
    where = f"{options.workload} on {curve.device}"
    unit = PER[curve.unit] if curve.unit is not None else "call"
    facts: Params = {"kind": "best_energy", "device": curve.device, "knob": options.knob}
    if curve.best is None:
        return Finding(
            claim=f"{where}: the step that spends the least energy per {unit} is known",
            estimate=None,
            verdict="unsure",
            reason=why_no_energy(curve),
            records=_trials(curve),
            facts=facts,
        )
    step = curve.at(curve.best.place)
    return Finding(
        claim=f"{where} spends the least energy per {unit} at {at_text(options.knob, step.setting)}",
        estimate=_setting(options, curve.best) or step.cost_j,
        verdict="yes" if curve.best.told else "unsure",
        reason=doubt(options, curve.best),
        records=_trials(curve),
        facts={**facts, **_step_facts(step), "may_be": _may_be(options, curve.best)},
    )


def _delay(options: SweepOptions, curve: Curve) -> Finding:
    claim, best = f"{options.workload} on {curve.device}: energy times time of a call is least", curve.best_delay
    facts: Params = {"kind": "energy_delay", "device": curve.device, "knob": options.knob}
    if best is None:
        reason = why_no_energy(curve)
        return Finding(claim=claim, estimate=None, verdict="unsure", reason=reason, records=_trials(curve), facts=facts)
    step = curve.at(best.place)
    return Finding(
        claim=f"{claim} at {at_text(options.knob, step.setting)}",
        estimate=_setting(options, best),
        verdict="yes" if best.told else "unsure",
        reason=doubt(options, best),
        records=_trials(curve),
        facts={**facts, **_step_facts(step), "may_be": _may_be(options, best)},
    )


def _within(options: SweepOptions, curve: Curve) -> Finding:
    """Return the lowest step that surely costs no more than the slowdown that is allowed."""
    step = curve.within(options.max_slowdown)
    most = f"{100 * options.max_slowdown:g} %"
    facts: Params = {
        "kind": "within_slowdown",
        "device": curve.device,
        "knob": options.knob,
        "max_slowdown": options.max_slowdown,
    }
    where = f"{options.workload} on {curve.device}"
    if step is None:
        has_bounds = any(curve_step.longer_at_most is not None for curve_step in curve.steps)
        return Finding(
            claim=f"{where} stays within {most} of its time as found at some step",
            estimate=None,
            verdict="no"
            if has_bounds and all(_surely_slower(options, curve_step) for curve_step in curve.steps)
            else "unsure",
            reason=None if has_bounds else "one repeat tells nothing of chance",
            records=_trials(curve),
            facts=facts,
        )
    return Finding(
        claim=f"{where} takes at most {most} longer down to {at_text(options.knob, step.setting)}",
        estimate=step.slowdown,
        verdict="yes",
        records=_trials(curve),
        facts={**facts, **_step_facts(step)},
    )


def _surely_slower(options: SweepOptions, step: Step) -> bool:
    slowdown = step.slowdown
    return slowdown is not None and slowdown.low is not None and slowdown.low > 1 + options.max_slowdown


def _binding(options: SweepOptions, curve: Curve) -> Finding:
    """Return whether the caps do anything at all, with the most power that was seen."""
    binding = [step for step in curve.steps if step.binds == "binds"]
    unclear = [step for step in curve.steps if step.binds == "not clear"]
    verdict: Verdict = "yes" if binding else "unsure" if unclear else "no"
    powers_w = [
        reading.power_w for step in curve.all_reference for reading in step.readings if reading.power_w is not None
    ]
    free, order = [step.setting for step in curve.unbound], [step.setting for step in curve.steps]
    do = "does" if len(free) == 1 else "do"
    return Finding(
        claim=f"{options.workload} on {curve.device} is held back by some step of the {axis_name(options)}",
        estimate=_power(powers_w),
        verdict=verdict,
        reason=f"{settings_text(options.knob, free, order)} {do} not bind" if free else None,
        records=_trials(curve),
        facts={
            "kind": "binding",
            "device": curve.device,
            "knob": options.knob,
            "binds": _joined(options, binding),
            "does_not_bind": _joined(options, curve.unbound),
            "not_clear": _joined(options, unclear),
        },
    )


def axis_name(options: SweepOptions) -> str:
    """Return what is turned, without its unit."""
    return AXES[options.knob].partition(" (")[0]


def _power(drawn: list[float]) -> Estimate | None:
    """Return the power that the GPU draws as found, from the repeats' lowest to their highest."""
    if not drawn:
        return None
    return Estimate(
        value=sum(drawn) / len(drawn),
        low=min(drawn),
        high=max(drawn),
        unit="W",
        scope="run",
        method="power as found, mean and range of the repeats",
        n=len(drawn),
    )


def _setting(options: SweepOptions, best: Optimum) -> Estimate | None:
    """Return the best setting, from the lowest to the highest that cannot be told from it; null for words."""
    settings = [options.points[index].setting for index in best.may_be]
    setting = options.points[best.place].setting
    if isinstance(setting, str):
        return None
    numbers = [axis_value(options.knob, candidate) for candidate in settings]
    return Estimate(
        value=axis_value(options.knob, setting),
        low=min(numbers) if best.chance else None,
        high=max(numbers) if best.chance else None,
        unit=UNITS.get(options.knob, ""),
        scope="run",
        method="the lowest step; the interval spans the steps that cannot be told from it (Hsu)",
        n=best.repeats,
    )


def doubt(options: SweepOptions, best: Optimum) -> str | None:
    """Say which other steps may as well be the best; null where there is none."""
    others = [options.points[index].setting for index in best.may_be if index != best.place]
    if not best.chance:
        return "one repeat tells nothing of chance"
    if not others:
        return None
    if len(others) + 1 == sum(point.subject is not None and point.setting is not None for point in options.points):
        return "no step can be told from another"
    return f"{settings_text(options.knob, others, [p.setting for p in options.points])} cannot be told from it"


def why_no_energy(curve: Curve) -> str:
    """Say why no energy is told."""
    if curve.unit is None:
        return "calls of different sizes do different work, and this workload does not tell how much"
    notes = dict.fromkeys(
        r.energy_note for step in curve.steps for r in step.readings if r.energy_note and r.energy_j is None
    )
    return next(iter(notes), "no energy was measured")


def _step_facts(step: Step) -> Params:
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


def _may_be(options: SweepOptions, best: Optimum) -> str:
    return ", ".join(setting_text(options.knob, options.points[index].setting) for index in best.may_be)


def _joined(options: SweepOptions, steps: tuple[Step, ...] | list[Step]) -> str | None:
    return ", ".join(setting_text(options.knob, step.setting) for step in steps) or None


def _refused(options: SweepOptions) -> list[Finding]:
    """Return the steps that the workload itself refuses, each with its reason."""
    return [
        _cannot(options, f"{options.workload} takes {at_text(options.knob, point.setting)}", point.refused, "refused")
        for point in options.points
        if point.refused is not None
    ]


def _missing(options: SweepOptions, records: Records) -> list[Finding]:
    """Return the steps that never worked, each with its last reason."""
    tried: dict[tuple[int, tuple[str, ...]], list[Record]] = {}
    for visit, record in taken(options, records):
        tried.setdefault((visit.point, visit.devices), []).append(record)
    return [
        _cannot(
            options,
            f"{options.workload} can be measured at {at_text(options.knob, options.points[point].setting)} "
            f"on {', '.join(devices)}",
            tries[-1].reason,
            tries[-1].status,
            tuple(record.trial for record in tries),
        )
        for (point, devices), tries in tried.items()
        if all(record.status != "ok" for record in tries)
    ]


def _cannot(
    options: SweepOptions, claim: str, reason: str | None, status: str, records: tuple[str, ...] = ()
) -> Finding:
    facts: Params = {"kind": "missing", "knob": options.knob, "status": status}
    return Finding(claim=claim, estimate=None, verdict="no", reason=reason, records=records, facts=facts)
