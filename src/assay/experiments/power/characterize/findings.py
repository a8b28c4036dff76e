"""The findings of a study.

Each GPU in each case, contention effects, differences between GPUs, skipped cases; and the headline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from assay.experiments.reporting import TIME_QUANTITIES, overall_origin

if TYPE_CHECKING:
    from assay.core.results import Estimate, Origin, Record, Verdict
    from assay.core.values import Params
    from assay.experiments.power.characterize.gpu_cases import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.study import CaseEffect, ModelSpread, PowerStudy


NOTHING_MEASURED = "Nothing could be measured."


def study_headline(options: CharacterizeOptions, study: PowerStudy) -> str:
    """Return the answer."""
    plain = least_contended_case(options, study)
    if plain is None:
        return _idle_sentence(study) or NOTHING_MEASURED
    gpus = [gpu for gpu in study.gpus if gpu.case == plain.name]
    parts = [
        _spread_sentence(study, plain.name),
        _contention_sentence(options, study),
        _distance_sentence(study),
        _skipped_sentence(options, study),
    ]
    return " ".join([_cost_sentence(gpus), *(part for part in parts if part)])


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
    if worst.verdict == "yes":
        change_phrase = change_cell(worst.ratio) or ""
        return f"{worst.slowest} is the slowest: {change_phrase.replace('+', '')} beyond {worst.fastest}."
    if worst.verdict == "no":
        return f"None is slower than another by what counts ({format_change(worst.ratio.value)} at most)."
    return (
        f"How unequal they are is not decided yet ({change_cell(worst.ratio)} between {worst.slowest} and "
        f"{worst.fastest})."
    )


def _contention_sentence(options: CharacterizeOptions, study: PowerStudy) -> str:
    """Say which company changes the kernels most; or that none does."""
    if not study.contention:
        return ""
    changed = sorted((e for e in study.contention if e.verdict == "yes"), key=_effect_size, reverse=True)
    if changed:
        more = f", and {len(changed) - 1} more cases change it" if len(changed) > 1 else ""
        return f"Company counts: {changed[0].case}: {change_cell(changed[0].time)}{more}."
    open_ones = [e for e in study.contention if e.verdict == "unsure"]
    if not open_ones:
        return f"No company changes it by {format_percent(options.minimum_effect)} or more."
    return (
        f"What company does is not decided in {len(open_ones)} of {len(study.contention)} cases; more --repeat decides."
    )


def _effect_size(effect: CaseEffect) -> float:
    return abs(effect.time.value - 1)


def _distance_sentence(study: PowerStudy) -> str:
    """Say whether far neighbours do something else than near ones."""
    effects = [e for e in study.distance if e.verdict == "yes"]
    return f"Far instead of near neighbours: {change_cell(effects[0].time)}." if effects else ""


def _skipped_sentence(options: CharacterizeOptions, study: PowerStudy) -> str:
    """Count the cases that do not fit, or went wrong."""
    measured = {gpu.case for gpu in study.gpus}
    failed = {where.case.name for where, record in study.pairs if record.status != "ok"} - measured
    every = len(options.cases) + len(options.skipped)
    unfit = len(study.skipped)
    parts = [f"{unfit} of {every} cases do{'es' if unfit == 1 else ''} not fit here"] if unfit else []
    parts += [f"{len(failed)} of {every} went wrong"] if failed else []
    return f"{format_list(parts)}." if parts else ""


def _idle_sentence(study: PowerStudy) -> str:
    """Say what was drawn when nothing was done, where that is all that was measured."""
    powers = [f"{gpu.name} {power:.0f} W" for gpu in study.gpus if (power := gpu.mean("power_w")) is not None]
    return f"Only idle power was measured: {format_list(powers)}." if powers else ""


def build_findings(options: CharacterizeOptions, study: PowerStudy) -> Findings:
    """Return the findings and all of them in a sentence."""
    writer = _FindingWriter(options, study)
    return Findings(
        headline=study_headline(options, study),
        findings=(
            *map(writer.gpu_finding, study.gpus),
            *map(writer.contention_finding, study.contention),
            *map(writer.distance_finding, study.distance),
            *map(writer.spread_finding, study.spreads),
            *writer.failed_findings(),
            *(_skipped_finding(case, reason) for case, reason in study.skipped.items()),
        ),
    )


@dataclass(frozen=True)
class _FindingWriter:
    """Writes findings, each with the trials behind it."""

    options: CharacterizeOptions
    study: PowerStudy

    def _evidence(self, *cases: str, device: str | None = None) -> tuple[tuple[str, ...], Origin]:
        records = [
            record
            for where, record in self.study.pairs
            if where.case.name in cases and record.status == "ok" and (device is None or device in where.base)
        ]
        return tuple(record.trial for record in records), overall_origin(records)

    def gpu_finding(self, gpu: GpuCase) -> Finding:
        """Return what one GPU did in one case."""
        records, origin = self._evidence(gpu.case, device=gpu.one.device)
        precision = self.options.minimum_effect
        verdict, reason = judge_precision(gpu.time, precision)
        time = TIME_QUANTITIES[gpu.one.quantity]
        return Finding(
            kind="gpu",
            claim=f"{gpu.case}, {gpu.name}: {time} is known to ±{format_percent(precision)}",
            estimate=gpu.time,
            verdict=verdict,
            reason=reason,
            records=records,
            facts=gpu_case_facts(gpu),
            origin=origin,
        )

    def contention_finding(self, effect: CaseEffect) -> Finding:
        """Return what company does in one case."""
        return self._effect_finding(
            effect, "company", f"{effect.case}: kernels take another time than in {effect.against!r}"
        )

    def distance_finding(self, effect: CaseEffect) -> Finding:
        """Return what the distance of neighbours does."""
        claim = f"{effect.case}: kernels take another time than with near neighbours ({effect.against!r})"
        return self._effect_finding(effect, "far", claim)

    def _effect_finding(self, effect: CaseEffect, kind: str, claim: str) -> Finding:
        records, origin = self._evidence(effect.case, effect.against)
        return Finding(
            kind=kind,
            claim=claim,
            estimate=effect.time,
            verdict=effect.verdict,
            reason=unsure_reason(effect.time, effect.verdict, self.options.minimum_effect),
            records=records,
            facts={
                "case": effect.case,
                "against": effect.against,
                "gpus": effect.gpus,
                "energy_ratio": effect.energy.value if effect.energy else None,
                "power_ratio": effect.power.value if effect.power else None,
                "clock_ratio": effect.clock.value if effect.clock else None,
                "hotter_c": effect.hotter_c,
            },
            origin=origin,
        )

    def spread_finding(self, spread: ModelSpread) -> Finding:
        """Return how unequal the GPUs of one model are in one case."""
        records, origin = self._evidence(spread.case)
        return Finding(
            kind="spread",
            claim=f"{spread.case}: some {spread.model} is slower than another ({spread.slowest}, {spread.fastest})",
            estimate=spread.ratio,
            verdict=spread.verdict,
            reason=unsure_reason(spread.ratio, spread.verdict, self.options.minimum_effect),
            records=records,
            facts={
                "case": spread.case,
                "model": spread.model,
                "slowest": spread.slowest,
                "fastest": spread.fastest,
                "gpus": spread.gpus,
                "cv": spread.cv,
            },
            origin=origin,
        )

    def failed_findings(self) -> list[Finding]:
        """Return the cases that were tried and never measured, each with its last reason."""
        tried: dict[str, list[Record]] = {}
        for where, record in self.study.pairs:
            tried.setdefault(where.case.name, []).append(record)
        return [
            Finding(
                kind="case",
                claim=f"{case} can be measured here",
                estimate=None,
                verdict="no",
                reason=records[-1].reason,
                records=tuple(record.trial for record in records),
                facts={"case": case, "status": records[-1].status},
                origin=records[-1].origin,
            )
            for case, records in tried.items()
            if all(record.status != "ok" for record in records)
        ]


def _skipped_finding(case: str, reason: str) -> Finding:
    facts: Params = {"case": case, "status": "skipped"}
    claim = f"{case} can be measured here"
    return Finding(kind="case", claim=claim, estimate=None, verdict="no", reason=reason, records=(), facts=facts)


def gpu_case_facts(gpu: GpuCase) -> Params:
    """Return all that is told of a GPU in a case, by names that end in a unit; the content of a row of the table."""
    one, energy, quartiles = gpu.one, gpu.energy, gpu.quartiles_us
    return {
        "case": gpu.case,
        "uuid": one.uuid,
        "device": one.device,
        "slot": one.slot,
        "model": one.model,
        "workload": one.workload,
        "quantity": one.quantity,
        "n": gpu.n,
        "repeats": gpu.repeats,
        "processes": gpu.processes,
        "median_us": gpu.time.value,
        "low_us": gpu.time.low,
        "high_us": gpu.time.high,
        "first_quartile_us": quartiles[0],
        "third_quartile_us": quartiles[2],
        "iqr_us": quartiles[2] - quartiles[0],
        "mean_us": gpu.mean("mean_us"),
        "cv": gpu.cv,
        "energy_per_call_j": energy.value if energy else None,
        "energy_low_j": energy.low if energy else None,
        "energy_high_j": energy.high if energy else None,
        "gflop_per_j": gpu.mean("gflop_per_j"),
        "power_w": gpu.mean("power_w"),
        "idle_w": gpu.mean("idle_w"),
        "sm_mhz": gpu.mean("sm_mhz"),
        "temperature_c": gpu.mean("temperature_c"),
        "utilisation_percent": gpu.mean("utilisation_percent"),
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
