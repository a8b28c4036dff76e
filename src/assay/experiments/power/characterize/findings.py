"""What a study of power comes to: each GPU in each case, what company does, how unequal GPUs are, what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import Finding, Findings
from assay.core.units import format_time
from assay.experiments.power.characterize.headline import headline
from assay.experiments.power.characterize.study import study_of
from assay.experiments.power.characterize.words import change, share
from assay.experiments.times import TIMES

if TYPE_CHECKING:
    from assay.core.results import Estimate, Origin, Record, Verdict
    from assay.core.values import Params
    from assay.experiments.power.characterize.effects import Effect, Spread
    from assay.experiments.power.characterize.numbers import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.study import Study
    from assay.machine.model import Machine
    from assay.store.records import Records


def analyse(machine: Machine, options: CharacterizeOptions, records: Records) -> Findings:
    """Return the findings and all of them in a sentence."""
    study = study_of(machine, options, records)
    writer = _Telling(options, study)
    return Findings(
        headline=headline(options, study),
        findings=(
            *map(writer.gpu, study.gpus),
            *map(writer.company, study.company),
            *map(writer.far, study.far),
            *map(writer.spread, study.spreads),
            *writer.without_result(),
            *(_skipped(case, reason) for case, reason in study.left_out.items()),
        ),
    )


@dataclass(frozen=True)
class _Telling:
    """Writes findings, each with the trials behind it."""

    options: CharacterizeOptions
    study: Study

    def _behind(self, *cases: str, device: str | None = None) -> tuple[tuple[str, ...], Origin]:
        records = [
            record
            for where, record in self.study.pairs
            if where.case.name in cases and record.status == "ok" and (device is None or device in where.base)
        ]
        origin: Origin = next((record.origin for record in records if record.origin != "real"), "real")
        return tuple(record.trial for record in records), origin

    def gpu(self, gpu: GpuCase) -> Finding:
        """Return what one GPU did in one case."""
        records, origin = self._behind(gpu.case, device=gpu.one.device)
        precision = self.options.minimum_effect
        verdict, reason = known_enough(gpu.time, precision)
        return Finding(
            claim=f"{gpu.case}, {gpu.name}: {TIMES[gpu.one.quantity]} is known to ±{share(precision)}",
            estimate=gpu.time,
            verdict=verdict,
            reason=reason,
            records=records,
            facts={"about": "gpu", **gpu_facts(gpu)},
            origin=origin,
        )

    def company(self, effect: Effect) -> Finding:
        """Return what company does in one case."""
        return self._effect(effect, "company", f"{effect.case}: kernels take another time than in {effect.against!r}")

    def far(self, effect: Effect) -> Finding:
        """Return what the distance of neighbours does."""
        claim = f"{effect.case}: kernels take another time than with near neighbours ({effect.against!r})"
        return self._effect(effect, "far", claim)

    def _effect(self, effect: Effect, about: str, claim: str) -> Finding:
        records, origin = self._behind(effect.case, effect.against)
        return Finding(
            claim=claim,
            estimate=effect.time,
            verdict=effect.verdict,
            reason=why_unsure(effect.time, effect.verdict, self.options.minimum_effect),
            records=records,
            facts={
                "about": about,
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

    def spread(self, spread: Spread) -> Finding:
        """Return how unequal the GPUs of one model are in one case."""
        records, origin = self._behind(spread.case)
        return Finding(
            claim=f"{spread.case}: some {spread.model} is slower than another ({spread.slowest}, {spread.fastest})",
            estimate=spread.ratio,
            verdict=spread.verdict,
            reason=why_unsure(spread.ratio, spread.verdict, self.options.minimum_effect),
            records=records,
            facts={
                "about": "spread",
                "case": spread.case,
                "model": spread.model,
                "slowest": spread.slowest,
                "fastest": spread.fastest,
                "gpus": spread.gpus,
                "cv": spread.cv,
            },
            origin=origin,
        )

    def without_result(self) -> list[Finding]:
        """Return the cases that were tried and never measured, each with its last reason."""
        tried: dict[str, list[Record]] = {}
        for where, record in self.study.pairs:
            tried.setdefault(where.case.name, []).append(record)
        return [
            Finding(
                claim=f"{case} can be measured here",
                estimate=None,
                verdict="no",
                reason=records[-1].reason,
                records=tuple(record.trial for record in records),
                facts={"about": "case", "case": case, "status": records[-1].status},
                origin=records[-1].origin,
            )
            for case, records in tried.items()
            if all(record.status != "ok" for record in records)
        ]


def _skipped(case: str, reason: str) -> Finding:
    facts: Params = {"about": "case", "case": case, "status": "skipped"}
    return Finding(
        claim=f"{case} can be measured here", estimate=None, verdict="no", reason=reason, records=(), facts=facts
    )


def gpu_facts(gpu: GpuCase) -> Params:
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


def known_enough(time: Estimate, precision: float) -> tuple[Verdict, str | None]:
    """Return whether a time is known well enough to see the least effect that counts, and why not."""
    half = time.relative_half_width
    if half is None:
        return "unsure", f"{format_time(time.value)} without an interval: {time.method}; more --repeat gives one"
    if half <= precision:
        return "yes", None
    return "no", f"it is known to ±{half:.2%}; more --repeat or a longer --duration narrows it"


def why_unsure(ratio: Estimate, verdict: Verdict, minimum_effect: float) -> str | None:
    """Return what is missing where it is not decided."""
    if verdict != "unsure":
        return None
    if ratio.low is None:
        return "one repeat has no interval; more --repeat decides"
    return f"{change(ratio)} holds both none and more than {share(minimum_effect)}; more --repeat decides"
