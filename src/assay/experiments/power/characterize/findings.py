"""The findings of a study: each GPU in each case, contention effects, differences between GPUs, skipped cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.format import (
    change_cell,
    format_change,
    format_joules,
    format_list,
    format_percent,
    format_range,
    format_time,
)
from assay.core.results import Finding, Findings
from assay.experiments.power.characterize.study import least_contended_case
from assay.experiments.power.rows import energy_fields, group_failed
from assay.experiments.reporting import TIME_QUANTITIES, overall_origin

if TYPE_CHECKING:
    from assay.core.results import Estimate, Verdict
    from assay.core.values import Params
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.study import CaseEffect, GpuCase, ModelSpread, PowerStudy


NOTHING_MEASURED = "Nothing could be measured."


def study_headline(options: CharacterizeOptions, study: PowerStudy) -> str:
    """Return the answer."""
    plain = least_contended_case(options, study)
    if plain is None:
        powers = [f"{gpu.name} {power:.0f} W" for gpu in study.gpus if (power := gpu.mean("power_w")) is not None]
        return f"Only idle power was measured: {format_list(powers)}." if powers else NOTHING_MEASURED
    distance = [effect for effect in study.distance if effect.verdict == "yes"]
    parts = [
        _cost_sentence([gpu for gpu in study.gpus if gpu.case == plain.name]),
        _spread_sentence(study, plain.name),
        _contention_sentence(options, study),
        f"Far instead of near neighbours: {change_cell(distance[0].time)}." if distance else "",
        _skipped_sentence(options, study),
    ]
    return " ".join(filter(None, parts))


def _cost_sentence(gpus: list[GpuCase]) -> str:
    """Say what one kernel takes and costs, from the fastest to the slowest GPU."""
    times = sorted(gpu.time.value for gpu in gpus)
    one = gpus[0].one
    size = f" (n = {one.params['n']})" if isinstance(one.params.get("n"), int) else ""
    models = list(dict.fromkeys(gpu.one.model for gpu in gpus))
    many = f"{len(gpus)} × " if len(gpus) > 1 else ""
    parts = [format_range(format_time(times[0]), format_time(times[-1]))]
    energies = sorted(gpu.energy.value for gpu in gpus if gpu.energy is not None)
    watts = sorted(power for gpu in gpus if (power := gpu.mean("power_w")) is not None)
    if energies:
        parts.append(format_range(format_joules(energies[0], digits=3), format_joules(energies[-1], digits=3)))
    if watts:
        parts.append(f"at {format_range(f'{watts[0]:.0f} W', f'{watts[-1]:.0f} W')}")
    spread = [gpu.cv for gpu in gpus if gpu.cv is not None]
    steady = f", CV {format_percent(max(spread))}" if spread else ""
    return f"{one.workload}{size} takes {', '.join(parts)} on {many}{' and '.join(models)}{steady}."


def _spread_sentence(study: PowerStudy, case: str) -> str:
    """Say which GPU is slowest, and by how much; or that none is."""
    case_spreads = [spread for spread in study.spreads if spread.case == case]
    if not case_spreads:
        return ""
    worst = max(case_spreads, key=lambda spread: spread.ratio.value)
    change = change_cell(worst.ratio) or ""
    if worst.verdict == "yes":
        return f"{worst.slowest} is the slowest: {change.replace('+', '')} beyond {worst.fastest}."
    if worst.verdict == "no":
        return f"None is slower than another by what counts ({format_change(worst.ratio.value)} at most)."
    return f"How unequal they are is not decided yet ({change} between {worst.slowest} and {worst.fastest})."


def _contention_sentence(options: CharacterizeOptions, study: PowerStudy) -> str:
    """Say which contention changes the kernels most; or that none does."""
    if not study.contention:
        return ""
    changed = [effect for effect in study.contention if effect.verdict == "yes"]
    if changed:
        most = max(changed, key=lambda effect: abs(effect.time.value - 1))
        more = f", and {len(changed) - 1} more cases change it" if len(changed) > 1 else ""
        return f"Company counts: {most.case}: {change_cell(most.time)}{more}."
    unsure = sum(effect.verdict == "unsure" for effect in study.contention)
    if not unsure:
        return f"No company changes it by {format_percent(options.minimum_effect)} or more."
    return f"What company does is not decided in {unsure} of {len(study.contention)} cases; more --repeat decides."


def _skipped_sentence(options: CharacterizeOptions, study: PowerStudy) -> str:
    """Count the cases that do not fit, or failed."""
    measured = {gpu.case for gpu in study.gpus}
    failed = {where.case.name for where, record in study.pairs if record.status != "ok"} - measured
    every, unfit = len(options.cases) + len(options.skipped), len(study.skipped)
    parts = [f"{unfit} of {every} cases do{'es' if unfit == 1 else ''} not fit here"] if unfit else []
    parts += [f"{len(failed)} of {every} went wrong"] if failed else []
    return f"{format_list(parts)}." if parts else ""


def build_findings(options: CharacterizeOptions, study: PowerStudy) -> Findings:
    """Return the findings and all of them in a sentence."""
    return Findings(
        headline=study_headline(options, study),
        findings=(
            *(_gpu_finding(options, study, gpu) for gpu in study.gpus),
            *(_effect_finding(options, study, effect, "company") for effect in study.contention),
            *(_effect_finding(options, study, effect, "far") for effect in study.distance),
            *(_spread_finding(options, study, spread) for spread in study.spreads),
            *_unmeasured_findings(study),
        ),
    )


def _evidence(study: PowerStudy, *cases: str, device: str | None = None) -> dict[str, Any]:
    """Return the trials behind a finding, and its origin."""
    records = [
        record
        for where, record in study.pairs
        if where.case.name in cases and record.status == "ok" and (device is None or device in where.base)
    ]
    return {"records": tuple(record.trial for record in records), "origin": overall_origin(records)}


def _gpu_finding(options: CharacterizeOptions, study: PowerStudy, gpu: GpuCase) -> Finding:
    """Return what one GPU did in one case."""
    precision = options.minimum_effect
    verdict, reason = judge_precision(gpu.time, precision)
    time = TIME_QUANTITIES[gpu.one.quantity]
    return Finding(
        kind="gpu",
        claim=f"{gpu.case}, {gpu.name}: {time} is known to ±{format_percent(precision)}",
        estimate=gpu.time,
        verdict=verdict,
        reason=reason,
        facts=gpu_case_facts(gpu),
        **_evidence(study, gpu.case, device=gpu.one.device),
    )


EFFECT_CLAIMS = {
    "company": "{effect.case}: kernels take another time than in {effect.against!r}",
    "far": "{effect.case}: kernels take another time than with near neighbours ({effect.against!r})",
}


def _effect_finding(options: CharacterizeOptions, study: PowerStudy, effect: CaseEffect, kind: str) -> Finding:
    """Return what contention, or the distance of neighbours, does in one case."""
    ratios = {"energy_ratio": effect.energy, "power_ratio": effect.power, "clock_ratio": effect.clock}
    return Finding(
        kind=kind,
        claim=EFFECT_CLAIMS[kind].format(effect=effect),
        estimate=effect.time,
        verdict=effect.verdict,
        reason=unsure_reason(effect.time, effect.verdict, options.minimum_effect),
        facts={
            "case": effect.case,
            "against": effect.against,
            "gpus": effect.gpus,
            **{name: ratio.value if ratio else None for name, ratio in ratios.items()},
            "hotter_c": effect.hotter_c,
        },
        **_evidence(study, effect.case, effect.against),
    )


def _spread_finding(options: CharacterizeOptions, study: PowerStudy, spread: ModelSpread) -> Finding:
    """Return how unequal the GPUs of one model are in one case."""
    return Finding(
        kind="spread",
        claim=f"{spread.case}: some {spread.model} is slower than another ({spread.slowest}, {spread.fastest})",
        estimate=spread.ratio,
        verdict=spread.verdict,
        reason=unsure_reason(spread.ratio, spread.verdict, options.minimum_effect),
        facts={name: getattr(spread, name) for name in ("case", "model", "slowest", "fastest", "gpus", "cv")},
        **_evidence(study, spread.case),
    )


def _unmeasured_findings(study: PowerStudy) -> list[Finding]:
    """Return the cases that were tried and never measured, each with its last reason; and those that were skipped."""
    tried = group_failed((where.case.name, record) for where, record in study.pairs)
    reasons = [(case, several[-1].status, several[-1].reason, several) for case, several in tried.items()]
    reasons += [(case, "skipped", reason, []) for case, reason in study.skipped.items()]
    return [
        Finding(
            kind="case",
            claim=f"{case} can be measured here",
            estimate=None,
            verdict="no",
            reason=reason,
            records=tuple(record.trial for record in records),
            facts={"case": case, "status": status},
            origin=records[-1].origin if records else "real",
        )
        for case, status, reason, records in reasons
    ]


def gpu_case_facts(gpu: GpuCase) -> Params:
    """Return all that is known of a GPU in a case, by names that end in a unit; the content of a row of the table."""
    one, (first, _, third) = gpu.one, gpu.quartiles_us
    identity = ("uuid", "device", "slot", "model", "workload", "quantity")
    sensors = ("gflop_per_j", "power_w", "idle_w", "sm_mhz", "temperature_c", "utilisation_percent")
    return {
        "case": gpu.case,
        **{name: getattr(one, name) for name in identity},
        "n": gpu.n,
        "repeats": len({row.repeat for row in gpu.rows}),
        "processes": gpu.processes,
        "median_us": gpu.time.value,
        "low_us": gpu.time.low,
        "high_us": gpu.time.high,
        "first_quartile_us": first,
        "third_quartile_us": third,
        "iqr_us": third - first,
        "mean_us": gpu.mean("mean_us"),
        "cv": gpu.cv,
        **energy_fields(gpu.energy),
        **{name: gpu.mean(name) for name in sensors},
        "held_back": "; ".join(f"{reason} {share:.3g}" for reason, share in gpu.held_back().items()) or None,
        "origin": one.origin,
    }


def judge_precision(time: Estimate, precision: float) -> tuple[Verdict, str | None]:
    """Return whether a time is known well enough to see the least effect that counts, and why not."""
    half = time.relative_half_width
    if half is None:
        return "unsure", f"{format_time(time.value)} without an interval: {time.method}; more --repeat gives one"
    if half <= precision:
        return "yes", None
    return "no", f"it is known to ±{format_percent(half, digits=3)}; more --repeat or a longer --duration narrows it"


def unsure_reason(ratio: Estimate, verdict: Verdict, minimum_effect: float) -> str | None:
    """Return what is missing where it is not decided."""
    if verdict != "unsure":
        return None
    if ratio.low is None:
        return "one repeat has no interval; more --repeat decides"
    return f"{change_cell(ratio)} holds both none and more than {format_percent(minimum_effect)}; more --repeat decides"
