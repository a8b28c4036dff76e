"""The findings about fleets, the headline, and how differences and recommendations are written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
from assay.experiments.power.variability.measures import MEASURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.core.results import Verdict
    from assay.core.values import Params
    from assay.experiments.power.variability.analysis import FleetAnalysis, TimeGain
    from assay.experiments.power.variability.measures import GpuMeasure
    from assay.experiments.power.variability.outliers import GpuOutlier, LocationEffect
    from assay.stats.variance import VarianceComponent


MAX_NAMES = 5


def difference_text(measure: GpuMeasure, value: float, low: float | None = None, high: float | None = None) -> str:
    """Write a difference with its interval: ``+52.1 % (+50.0 to +54.2)``, or in °C."""
    if measure.relative:
        return format_change(math.exp(value), *(None if end is None else math.exp(end) for end in (low, high)))
    return format_bounds(f"{_signed_degrees(value)} °C", low, high, _signed_degrees)


def _signed_degrees(value: float) -> str:
    return typeset_minus(f"{value:+z.1f}")


def scale_difference(measure: GpuMeasure, value: float) -> float:
    """Return a difference in percent, or in °C."""
    return 100 * math.expm1(value) if measure.relative else value


def ordinal_text(slot: int) -> str:
    """Return which GPU of its host sits in a slot: that in slot 0 is the 1st."""
    return {0: "1st", 1: "2nd", 2: "3rd"}.get(slot, f"{slot + 1}th")


def advice_sentence(looked: FleetAnalysis) -> str:
    """Say which GPU to ask for, in a sentence or two."""
    fleet, advice = looked.fleet, looked.advice
    clause = _advice_clause(looked)
    single = advice.unit == "repeats" and advice.answer in {"gpu", "slot", "avoid"}
    runs = "each GPU was seen in one run only, so that the day may have a part in it"
    return f"{clause}; {runs}." if single and len(fleet.gpus) > 1 else f"{clause}."


def _advice_clause(looked: FleetAnalysis) -> str:
    advice = looked.advice
    if advice.answer == "one" or advice.gain is None:
        return "There is one GPU only, and nothing to choose between"
    gain = format_percent(advice.gain.value, advice.gain.low, advice.gain.high)
    if advice.answer == "slot" and advice.slot is not None:
        slot = int(advice.slot.name)
        return (
            f"Ask for slot {slot}, the {ordinal_text(slot)} GPU of a host: over "
            f"{format_count(advice.slot.members, 'host')} "
            f"it takes {gain} less time than a random one"
        )
    if advice.answer == "gpu":
        named = format_list([looked.fleet.name(gpu) for gpu in advice.best], MAX_NAMES, "or")
        return f"Ask for {named}: {_confidence_clause(looked)}, and takes {gain} less time than a random one"
    if advice.answer == "unknown":
        return _unknown_clause(looked, gain)
    which, best = "Ask for any but the slow ones", f"the fastest, {looked.fleet.name(advice.best[0])},"
    if advice.answer == "any":
        surely = advice.gain.low is not None and advice.gain.low > 0 and len(advice.best) == 1
        which = f"It {'matters little' if surely else 'does not matter'} which GPU you ask for"
        best = (
            f"{best[:-1]} with {_confidence_text(advice.confidence)} confidence,"
            if surely
            else "the likeliest to be fastest"
        )
    return f"{which}: {_spread_clause(looked)}; {best} takes {gain} less time than a random one"


def _unknown_clause(looked: FleetAnalysis, gain: str) -> str:
    count = format_count(len(looked.fleet.gpus), "GPU")
    if looked.advice.unit is not None:
        reason = f"the likeliest takes {gain} less time than a random one"
        return f"Which of {count} to ask for cannot be told from these runs: {reason}"
    reason = f"{looked.fleet.name(looked.advice.best[0])} took {gain} less time than the mean, which may be chance"
    return f"Which of {count} to ask for cannot be told, as {_missing_data_reason(looked)}: {reason}"


def _missing_data_reason(looked: FleetAnalysis) -> str:
    """Say why it is not known how far chance goes."""
    fleet = looked.fleet
    if len(fleet.rows) <= len(fleet.gpus):
        return "nothing was measured twice"
    runs, cases = (
        format_count(len(set(codes.tolist())), what) for codes, what in ((fleet.run, "run"), (fleet.case, "case"))
    )
    return f"too little was measured to tell GPUs from chance ({runs} of {cases})"


def _confidence_clause(looked: FleetAnalysis) -> str:
    advice, count = looked.advice, format_count(len(looked.fleet.gpus), "GPU")
    if len(advice.best) == 1:
        return f"it is the fastest of {count} with {_confidence_text(advice.confidence)} confidence"
    first = looked.fleet.name(advice.best[0])
    return f"one of these is the fastest of {count} with 95 % confidence; {first} is the likeliest"


def _confidence_text(confidence: float | None) -> str:
    return "some" if confidence is None else "over 99 %" if confidence > 0.99 else format_percent(confidence)


def _spread_clause(looked: FleetAnalysis) -> str:
    """Say how near to each other most GPUs are."""
    spread = looked.spread
    count = format_count(len(looked.fleet.gpus), "GPU")
    if spread is not None and spread.middle is not None:
        return f"nine tenths of {count} are within {format_percent(spread.middle - 1)} of each other"
    if spread is None:
        return count
    return f"{count} are within {format_percent((spread.high or spread.ratio) - 1)} of each other"


def fourth_gpu_sentence(looked: FleetAnalysis) -> str | None:
    """Answer whether always asking for the 4th GPU saves money; null where there is no 4th, or it cannot be told."""
    gain = looked.advice.fourth
    if gain is None or gain.low is None or gain.high is None:
        return None
    question = "Can I save money by just asking for the 4th GPU always?"
    where = "on this host" if len(looked.fleet.hosts) == 1 else f"over {format_count(len(looked.fleet.hosts), 'host')}"
    least = format_percent(looked.minimum_effect)
    if gain.low > 0:
        slot = looked.advice.slot
        better = f"; slot {slot.name} saves more" if slot is not None and slot.name != "3" else ""
        small = f", which is less than {least}" if gain.high < looked.minimum_effect else ""
        return f"{question} Yes: {where} it takes {percent_cell(gain)} less time than a random one{small}{better}."
    if gain.high < looked.minimum_effect:
        return (
            f"{question} No: {where} it saves {percent_cell(gain)} of the time of a random one, which is below {least}."
        )
    return f"{question} It cannot be told: {where} it takes {percent_cell(gain)} less time than a random one."


OUTLIER_METHOD = (
    "distance from the middle of its peers; Student's t over its runs, false coverage 5 % over all that are told"
)
LOCATION_METHOD = "median of the place's GPUs; robust scale, Student's t, Holm over all places of a kind"
VARIANCE_METHOD = "nested analysis of variance of the logarithm of times, generalised pivots"


def fleet_findings(all_looked: Sequence[FleetAnalysis]) -> Findings:
    """Return every claim about every fleet."""
    findings = tuple(finding for looked in all_looked for finding in _findings_of_fleet(looked))
    return Findings(headline=fleet_headline(all_looked), findings=findings)


def fleet_headline(all_looked: Sequence[FleetAnalysis]) -> str:
    """Return the answer: what stands out, and which GPU to ask for."""
    first = all_looked[0]
    more = len(all_looked) - 1
    others = f" So says {first.fleet.kind.label}; {format_count(more, 'other kind')} of rows below." if more else ""
    return f"{_outlier_sentence(first)} {advice_sentence(first)}{others}"


def _outlier_sentence(looked: FleetAnalysis) -> str:
    """Say how many GPUs and places stand out."""
    outliers_by_kind = {measure.high: len(own) for measure in MEASURES if (own := looked.surely(measure))}
    count = format_count(len(looked.fleet.gpus), "GPU")
    if len(looked.fleet.gpus) == 1:
        runs = format_count(len(set(looked.fleet.run.tolist())), "run")
        return f"One GPU in {runs}: how GPUs differ cannot be told."
    locations = {(effect.what, effect.name) for effect in looked.location_effects if effect.verdict == "yes"}
    kinds = [(what, sum(one == what for one, _ in locations)) for what in ("rack", "host", "slot")]
    strays = [format_count(number, what) for what, number in kinds if number]
    rest = (
        f"; {format_list(strays, MAX_NAMES)} stray{'s' if sum(n for _, n in kinds) == 1 else ''} as a whole"
        if strays
        else ""
    )
    if not outliers_by_kind:
        few = " (fewer than 4 have no peers to speak of)" if len(looked.fleet.gpus) < 4 else ""
        return f"No single one of {count} stands out against its peers{few}{rest}."
    outlier_counts = format_list([f"{number:,} {high}" for high, number in outliers_by_kind.items()], MAX_NAMES)
    return f"Of {count} {outlier_counts} stand{'s' if sum(outliers_by_kind.values()) == 1 else ''} out{rest}."


def _findings_of_fleet(looked: FleetAnalysis) -> Iterator[Finding]:
    yield from _spread_findings(looked)
    yield from (_level_finding(looked, one) for one in looked.components)
    yield from (_outlier_finding(looked, one) for one in looked.outliers)
    yield from (
        _location_finding(looked, effect)
        for effect in looked.location_effects
        if effect.what == "slot" or effect.verdict == "yes"
    )
    yield from _correlation_findings(looked)
    yield from _advice_findings(looked)


def _fleet_facts(looked: FleetAnalysis, **values: object) -> Params:
    kind = looked.fleet.kind
    facts: Params = {"workload": kind.work, "model": kind.model}
    for name, value in values.items():
        facts[name] = value if isinstance(value, bool | int | float | str | None) else str(value)
    return facts


def _to_estimate(
    value: float, ends: tuple[float | None, float | None], unit: str, method: str, n: int
) -> Estimate | None:
    low, high = ends
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        low = high = None
    if not math.isfinite(value):
        return None
    return Estimate(value=value, low=low, high=high, unit=unit, scope="machine", method=method, n=max(n, 1))


def _build_finding(
    looked: FleetAnalysis, claim: str, verdict: Verdict, estimate: Estimate | None, facts: Params, *, kind: str
) -> Finding:
    origin = looked.fleet.kind.origin
    return Finding(
        kind=kind,
        claim=f"{looked.fleet.kind.label}: {claim}",
        estimate=estimate,
        verdict=verdict,
        records=(),
        facts=facts,
        origin=origin,
    )


def _spread_findings(looked: FleetAnalysis) -> Iterator[Finding]:
    spread = looked.spread
    if spread is None:
        return
    n, least = len(looked.fleet.gpus), 1 + looked.minimum_effect
    verdict: Verdict = "unsure"
    if spread.low is not None and spread.high is not None:
        verdict = "yes" if spread.low > least else "no" if spread.high < least else "unsure"
    names = {"slowest": looked.fleet.name(spread.slowest), "fastest": looked.fleet.name(spread.fastest)}
    claim = f"the slowest GPU takes over {format_percent(looked.minimum_effect)} longer than the fastest"
    method = "ratio of the largest to the smallest time of a GPU; Tukey's studentised range over runs"
    estimate = _to_estimate(spread.ratio, (spread.low, spread.high), "×", method, n)
    yield _build_finding(looked, claim, verdict, estimate, _fleet_facts(looked, **names), kind="spread")
    if spread.middle is not None:
        claim = f"nine tenths of the GPUs are within {format_percent(looked.minimum_effect)}"
        ends = spread.middle_low, spread.middle_high
        verdict = "unsure"
        if ends[0] is not None and ends[1] is not None:
            verdict = "yes" if ends[1] < least else "no" if ends[0] > least else "unsure"
        estimate = _to_estimate(spread.middle, ends, "×", "95th over 5th percentile of GPUs, over GPUs drawn anew", n)
        yield _build_finding(looked, claim, verdict, estimate, _fleet_facts(looked), kind="middle")


def _level_finding(looked: FleetAnalysis, one: VarianceComponent) -> Finding:
    deviation = None if one.variance is None else math.sqrt(one.variance)
    ends = tuple(None if end is None else math.sqrt(end) for end in (one.low, one.high))
    estimate = (
        None
        if deviation is None
        else _to_estimate(deviation, (ends[0], ends[1]), "of the time", VARIANCE_METHOD, one.members)
    )
    verdict: Verdict = "unsure"
    if one.low is not None:
        verdict = "yes" if one.low > 0 else "unsure"
    facts = _fleet_facts(
        looked,
        level=one.level,
        share=one.share,
        share_low=one.share_low,
        share_high=one.share_high,
        members=one.members,
        part_of=one.within,
    )
    claim = f"{one.level} differ beyond what lies below them"
    return _build_finding(looked, claim, verdict, estimate, facts, kind="component")


def _measure_unit(measure: GpuMeasure) -> str:
    return "×" if measure.relative else "°C"


def _measure_value(measure: GpuMeasure, value: float) -> float:
    return math.exp(value) if measure.relative else value


def _outlier_finding(looked: FleetAnalysis, one: GpuOutlier) -> Finding:
    gpu, measure = looked.fleet.gpus[one.gpu], one.measure
    ends = _measure_value(measure, one.peers.low), _measure_value(measure, one.peers.high)
    facts = _fleet_facts(
        looked,
        kind=one.word,
        measure=measure.name,
        uuid=gpu.uuid,
        host=gpu.host,
        slot=gpu.slot,
        rack=gpu.rack,
        against=one.against,
        against_fleet=_measure_value(measure, one.fleet.value),
        against_fleet_low=_measure_value(measure, one.fleet.low),
        against_fleet_high=_measure_value(measure, one.fleet.high),
        false_rate=one.rate,
    )
    estimate = _to_estimate(
        _measure_value(measure, one.peers.value), ends, _measure_unit(measure), OUTLIER_METHOD, len(looked.fleet.gpus)
    )
    claim = f"{looked.fleet.name(one.gpu)} is {one.word} against {one.against}"
    return _build_finding(looked, claim, one.verdict, estimate, facts, kind="outlier")


def _location_finding(looked: FleetAnalysis, effect: LocationEffect) -> Finding:
    measure = effect.measure
    ends = _measure_value(measure, effect.low), _measure_value(measure, effect.high)
    estimate = _to_estimate(
        _measure_value(measure, effect.value), ends, _measure_unit(measure), LOCATION_METHOD, effect.members
    )
    claim = f"{effect.what} {effect.name} is {effect.word} as a whole"
    facts = _fleet_facts(looked, name=effect.name, measure=measure.name, members=effect.members, chance=effect.chance)
    return _build_finding(looked, claim, effect.verdict, estimate, facts, kind=effect.what)


def _correlation_findings(looked: FleetAnalysis) -> Iterator[Finding]:
    for pair in looked.pairs:
        if pair.association is None:
            continue
        equal = f", {pair.equal} held equal" if pair.equal else ""
        method = f"Spearman's rho over {pair.over}{equal}, Fisher's interval"
        estimate = _to_estimate(
            pair.association.rho, (pair.association.low, pair.association.high), "", method, pair.association.n
        )
        facts = _fleet_facts(looked, x=pair.x, y=pair.y, equal=pair.equal, over=pair.over, n=pair.association.n)
        yield _build_finding(looked, pair.claim, pair.verdict, estimate, facts, kind="correlation")


def _advice_findings(looked: FleetAnalysis) -> Iterator[Finding]:
    advice, fleet = looked.advice, looked.fleet
    best = advice.best[0] if advice.best else None
    facts = _fleet_facts(
        looked,
        answer=advice.answer,
        best=None if best is None else fleet.name(best),
        uuid=None if best is None else fleet.gpus[best].uuid,
        confidence=advice.confidence,
        slot=None if advice.slot is None else int(advice.slot.name),
        sentence=advice_sentence(looked),
    )
    verdicts: dict[str, Verdict] = {"gpu": "yes", "slot": "yes", "avoid": "yes", "any": "no", "one": "no"}
    estimate = None if advice.gain is None else _gain_estimate(looked, advice.gain)
    claim = "it matters which GPU is asked for"
    yield _build_finding(looked, claim, verdicts.get(advice.answer, "unsure"), estimate, facts, kind="advice")
    sentence = fourth_gpu_sentence(looked)
    if sentence is not None and advice.fourth is not None:
        low, high = advice.fourth.low or 0.0, advice.fourth.high or 0.0
        verdict: Verdict = "yes" if low > 0 else "no" if high < looked.minimum_effect else "unsure"
        facts = _fleet_facts(looked, sentence=sentence)
        claim = "always asking for the 4th GPU saves time"
        yield _build_finding(looked, claim, verdict, _gain_estimate(looked, advice.fourth), facts, kind="fourth")


def _gain_estimate(looked: FleetAnalysis, gain: TimeGain) -> Estimate | None:
    method = "share of a random GPU's time; over runs, drawn in towards the rest as far as they scatter"
    return _to_estimate(gain.value, (gain.low, gain.high), "", method, len(looked.fleet.gpus))
