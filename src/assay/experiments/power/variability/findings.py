"""The findings about fleets, the headline, and how differences and recommendations are written."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import (
    format_bounds,
    format_change,
    format_count,
    format_list,
    format_percent,
    percent_cell,
    typeset_minus,
)
from assay.core.results import Estimate, Finding, Findings
from assay.experiments.power.variability.fleet import MEASURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.core.results import Verdict
    from assay.core.values import Params, Scalar
    from assay.experiments.power.variability.analysis import FleetAnalysis, GpuOutlier, LocationEffect, PeerDifference
    from assay.experiments.power.variability.fleet import GpuMeasure
    from assay.stats.variance import VarianceComponent

    Bounds = tuple[float, float | None, float | None]


MAX_NAMES = 5


def difference_text(measure: GpuMeasure, value: float, low: float | None = None, high: float | None = None) -> str:
    """Write a difference with its interval: ``+52.1 % (+50.0 to +54.2)``, or in °C."""
    if measure.relative:
        return format_change(math.exp(value), *(None if end is None else math.exp(end) for end in (low, high)))

    def degrees(number: float) -> str:
        return typeset_minus(f"{number:+z.1f}")

    return format_bounds(f"{degrees(value)} °C", low, high, degrees)


def advice_sentence(study: FleetAnalysis) -> str:
    """Say which GPU to ask for, in a sentence or two."""
    advice = study.advice
    clause = _advice_clause(study)
    single = advice.unit == "repeats" and advice.answer in {"gpu", "slot", "avoid"}
    runs = "each GPU was seen in one run only, so that the day may have a part in it"
    return f"{clause}; {runs}." if single and len(study.fleet.gpus) > 1 else f"{clause}."


def _advice_clause(study: FleetAnalysis) -> str:
    advice = study.advice
    if advice.answer == "one" or advice.gain is None:
        return "There is one GPU only, and nothing to choose between"
    gain, count = percent_cell(advice.gain), format_count(len(study.fleet.gpus), "GPU")
    less = f"takes {gain} less time than a random one"
    names = [study.fleet.name(gpu) for gpu in advice.best]
    if advice.answer == "slot" and advice.slot is not None:
        slot = int(advice.slot.name)
        ordinal = {0: "1st", 1: "2nd", 2: "3rd"}.get(slot, f"{slot + 1}th")
        hosts = format_count(advice.slot.members, "host")
        return f"Ask for slot {slot}, the {ordinal} GPU of a host: over {hosts} it {less}"
    if advice.answer == "gpu":
        sure = f"one of these is the fastest of {count} with 95 % confidence; {names[0]} is the likeliest"
        if len(names) == 1:
            sure = f"it is the fastest of {count} with {_confidence_text(advice.confidence)} confidence"
        return f"Ask for {format_list(names, MAX_NAMES, 'or')}: {sure}, and {less}"
    if advice.answer == "unknown":
        why = f" from these runs: the likeliest {less}"
        if advice.unit is None:
            took = f"{names[0]} took {gain} less time than the mean, which may be chance"
            why = f", as {_missing_data_reason(study)}: {took}"
        return f"Which of {count} to ask for cannot be told{why}"
    if advice.answer == "avoid":
        return f"Ask for any but the slow ones: {_spread_clause(study)}; the fastest, {names[0]}, {less}"
    matters, best = "does not matter", "the likeliest to be fastest"
    if advice.gain.low is not None and advice.gain.low > 0 and len(names) == 1:
        matters = "matters little"
        best = f"the fastest, {names[0]} with {_confidence_text(advice.confidence)} confidence,"
    return f"It {matters} which GPU you ask for: {_spread_clause(study)}; {best} {less}"


def _missing_data_reason(study: FleetAnalysis) -> str:
    """Say why it is not known how far chance goes."""
    fleet = study.fleet
    if len(fleet.rows) <= len(fleet.gpus):
        return "nothing was measured twice"
    runs, cases = format_count(len(np.unique(fleet.run)), "run"), format_count(len(np.unique(fleet.case)), "case")
    return f"too little was measured to tell GPUs from chance ({runs} of {cases})"


def _confidence_text(confidence: float | None) -> str:
    return "some" if confidence is None else "over 99 %" if confidence > 0.99 else format_percent(confidence)


def _spread_clause(study: FleetAnalysis) -> str:
    """Say how near to each other most GPUs are."""
    spread = study.spread
    count = format_count(len(study.fleet.gpus), "GPU")
    if spread is None:
        return count
    if spread.middle is not None:
        return f"nine tenths of {count} are within {format_percent(spread.middle - 1)} of each other"
    return f"{count} are within {format_percent((spread.high or spread.ratio) - 1)} of each other"


def fourth_gpu_sentence(study: FleetAnalysis) -> str | None:
    """Answer whether always asking for the 4th GPU saves money; null where there is no 4th, or it cannot be told."""
    gain = study.advice.fourth
    if gain is None or gain.low is None or gain.high is None:
        return None
    question = "Can I save money by just asking for the 4th GPU always?"
    where = "on this host" if len(study.fleet.hosts) == 1 else f"over {format_count(len(study.fleet.hosts), 'host')}"
    share, least = percent_cell(gain), format_percent(study.minimum_effect)
    if gain.low > 0:
        slot = study.advice.slot
        better = f"; slot {slot.name} saves more" if slot is not None and slot.name != "3" else ""
        small = f", which is less than {least}" if gain.high < study.minimum_effect else ""
        return f"{question} Yes: {where} it takes {share} less time than a random one{small}{better}."
    if gain.high < study.minimum_effect:
        return f"{question} No: {where} it saves {share} of the time of a random one, which is below {least}."
    return f"{question} It cannot be told: {where} it takes {share} less time than a random one."


OUTLIER_METHOD = (
    "distance from the middle of its peers; Student's t over its runs, false coverage 5 % over all that are told"
)
LOCATION_METHOD = "median of the place's GPUs; robust scale, Student's t, Holm over all places of a kind"
VARIANCE_METHOD = "nested analysis of variance of the logarithm of times, generalised pivots"


def fleet_findings(studies: Sequence[FleetAnalysis]) -> Findings:
    """Return every claim about every fleet."""
    findings = tuple(finding for study in studies for finding in _findings_of_fleet(study))
    return Findings(headline=fleet_headline(studies), findings=findings)


def fleet_headline(studies: Sequence[FleetAnalysis]) -> str:
    """Return the answer: what stands out, and which GPU to ask for."""
    first = studies[0]
    more = len(studies) - 1
    others = f" So says {first.fleet.kind.label}; {format_count(more, 'other kind')} of rows below." if more else ""
    return f"{_outlier_sentence(first)} {advice_sentence(first)}{others}"


def _outlier_sentence(study: FleetAnalysis) -> str:
    """Say how many GPUs and locations stand out."""
    gpus = len(study.fleet.gpus)
    count = format_count(gpus, "GPU")
    if gpus == 1:
        return f"One GPU in {format_count(len(np.unique(study.fleet.run)), 'run')}: how GPUs differ cannot be told."
    locations = {(effect.what, effect.name) for effect in study.location_effects if effect.verdict == "yes"}
    kinds = [(what, sum(one == what for one, _ in locations)) for what in ("rack", "host", "slot")]
    strays = [format_count(number, what) for what, number in kinds if number]
    verb = "strays" if len(locations) == 1 else "stray"
    rest = f"; {format_list(strays, MAX_NAMES)} {verb} as a whole" if strays else ""
    outliers = {measure.high: len(own) for measure in MEASURES if (own := study.surely(measure))}
    if not outliers:
        few = " (fewer than 4 have no peers to speak of)" if gpus < 4 else ""
        return f"No single one of {count} stands out against its peers{few}{rest}."
    names = format_list([f"{number:,} {high}" for high, number in outliers.items()], MAX_NAMES)
    return f"Of {count} {names} stand{'s' if sum(outliers.values()) == 1 else ''} out{rest}."


def _findings_of_fleet(study: FleetAnalysis) -> Iterator[Finding]:
    yield from _spread_findings(study)
    yield from (_level_finding(study, one) for one in study.components)
    yield from (_outlier_finding(study, one) for one in study.outliers)
    yield from (
        _location_finding(study, effect)
        for effect in study.location_effects
        if effect.what == "slot" or effect.verdict == "yes"
    )
    yield from _correlation_findings(study)
    yield from _advice_findings(study)


def _to_estimate(bounds: Bounds, unit: str, method: str, n: int) -> Estimate | None:
    """Return value, low and high as an estimate; without an interval where an end is unknown or infinite."""
    value, low, high = bounds
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        low = high = None
    if not math.isfinite(value):
        return None
    return Estimate(value=value, low=low, high=high, unit=unit, scope="machine", method=method, n=max(n, 1))


def _build_finding(
    study: FleetAnalysis, kind: str, claim: str, verdict: Verdict, estimate: Estimate | None, /, **facts: Scalar
) -> Finding:
    of = study.fleet.kind
    return Finding(
        kind=kind,
        claim=f"{of.label}: {claim}",
        estimate=estimate,
        verdict=verdict,
        records=(),
        facts={"workload": of.work, "model": of.model, **facts},
        origin=of.origin,
    )


def _spread_findings(study: FleetAnalysis) -> Iterator[Finding]:
    spread = study.spread
    if spread is None:
        return
    n, least, percent = len(study.fleet.gpus), 1 + study.minimum_effect, format_percent(study.minimum_effect)
    verdict: Verdict = "unsure"
    if spread.low is not None and spread.high is not None:
        verdict = "yes" if spread.low > least else "no" if spread.high < least else "unsure"
    claim = f"the slowest GPU takes over {percent} longer than the fastest"
    method = "ratio of the largest to the smallest time of a GPU; Tukey's studentised range over runs"
    estimate = _to_estimate((spread.ratio, spread.low, spread.high), "×", method, n)
    slowest, fastest = study.fleet.name(spread.slowest), study.fleet.name(spread.fastest)
    yield _build_finding(study, "spread", claim, verdict, estimate, slowest=slowest, fastest=fastest)
    if spread.middle is not None:
        low, high = spread.middle_low, spread.middle_high
        verdict = "unsure"
        if low is not None and high is not None:
            verdict = "yes" if high < least else "no" if low > least else "unsure"
        method = "95th over 5th percentile of GPUs, over GPUs drawn anew"
        estimate = _to_estimate((spread.middle, low, high), "×", method, n)
        yield _build_finding(study, "middle", f"nine tenths of the GPUs are within {percent}", verdict, estimate)


def _level_finding(study: FleetAnalysis, one: VarianceComponent) -> Finding:
    estimate = None
    if one.variance is not None:
        low, high = (None if end is None else math.sqrt(end) for end in (one.low, one.high))
        estimate = _to_estimate((math.sqrt(one.variance), low, high), "of the time", VARIANCE_METHOD, one.members)
    return _build_finding(
        study,
        "component",
        f"{one.level} differ beyond what lies below them",
        "yes" if one.low is not None and one.low > 0 else "unsure",
        estimate,
        **{name: getattr(one, name) for name in ("level", "share", "share_low", "share_high", "members")},
        part_of=one.within,
    )


def _to_ratios(measure: GpuMeasure, *values: float) -> tuple[float, ...]:
    """Return values of a relative measure as ratios, others as they are."""
    return tuple(math.exp(value) if measure.relative else value for value in values)


def _difference_estimate(
    measure: GpuMeasure, difference: PeerDifference | LocationEffect, method: str, n: int
) -> Estimate | None:
    value, low, high = _to_ratios(measure, difference.value, difference.low, difference.high)
    return _to_estimate((value, low, high), "×" if measure.relative else "°C", method, n)


def _outlier_finding(study: FleetAnalysis, one: GpuOutlier) -> Finding:
    gpu, measure = study.fleet.gpus[one.gpu], one.measure
    against_fleet = _to_ratios(measure, *one.fleet)
    facts: Params = {
        "kind": one.word,
        "measure": measure.name,
        **{name: getattr(gpu, name) for name in ("uuid", "host", "slot", "rack")},
        "against": one.against,
        **dict(zip(("against_fleet", "against_fleet_low", "against_fleet_high"), against_fleet, strict=True)),
        "false_rate": one.rate,
    }
    estimate = _difference_estimate(measure, one.peers, OUTLIER_METHOD, len(study.fleet.gpus))
    claim = f"{study.fleet.name(one.gpu)} is {one.word} against {one.against}"
    return _build_finding(study, "outlier", claim, one.verdict, estimate, **facts)


def _location_finding(study: FleetAnalysis, effect: LocationEffect) -> Finding:
    return _build_finding(
        study,
        effect.what,
        f"{effect.what} {effect.name} is {effect.word} as a whole",
        effect.verdict,
        _difference_estimate(effect.measure, effect, LOCATION_METHOD, effect.members),
        name=effect.name,
        measure=effect.measure.name,
        members=effect.members,
        chance=effect.chance,
    )


def _correlation_findings(study: FleetAnalysis) -> Iterator[Finding]:
    for pair in study.pairs:
        association = pair.association
        if association is not None:
            equal = f", {pair.equal} held equal" if pair.equal else ""
            method = f"Spearman's rho over {pair.over}{equal}, Fisher's interval"
            estimate = _to_estimate((association.rho, association.low, association.high), "", method, association.n)
            facts: Params = {"x": pair.x, "y": pair.y, "equal": pair.equal, "over": pair.over, "n": association.n}
            yield _build_finding(study, "correlation", pair.claim, pair.verdict, estimate, **facts)


def _advice_findings(study: FleetAnalysis) -> Iterator[Finding]:
    advice, fleet = study.advice, study.fleet
    best = advice.best[0] if advice.best else None
    verdicts: dict[str, Verdict] = {"gpu": "yes", "slot": "yes", "avoid": "yes", "any": "no", "one": "no"}
    method = "share of a random GPU's time; over runs, drawn in towards the rest as far as they scatter"
    yield _build_finding(
        study,
        "advice",
        "it matters which GPU is asked for",
        verdicts.get(advice.answer, "unsure"),
        None if advice.gain is None else _to_estimate(astuple(advice.gain), "", method, len(fleet.gpus)),
        answer=advice.answer,
        best=None if best is None else fleet.name(best),
        uuid=None if best is None else fleet.gpus[best].uuid,
        confidence=advice.confidence,
        slot=None if advice.slot is None else int(advice.slot.name),
        sentence=advice_sentence(study),
    )
    sentence = fourth_gpu_sentence(study)
    if sentence is not None and advice.fourth is not None:
        low, high = advice.fourth.low or 0.0, advice.fourth.high or 0.0
        verdict: Verdict = "yes" if low > 0 else "no" if high < study.minimum_effect else "unsure"
        estimate = _to_estimate(astuple(advice.fourth), "", method, len(fleet.gpus))
        claim = "always asking for the 4th GPU saves time"
        yield _build_finding(study, "fourth", claim, verdict, estimate, sentence=sentence)
