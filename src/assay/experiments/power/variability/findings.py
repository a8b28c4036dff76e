"""What fleets come to: judged claims, and all of it in a sentence or two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.core.results import Estimate, Finding, Findings
from assay.experiments.power.variability import words
from assay.experiments.power.variability.measures import MEASURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.core.results import Verdict
    from assay.core.values import Params
    from assay.experiments.power.variability.advice import Gain
    from assay.experiments.power.variability.analysis import Looked
    from assay.experiments.power.variability.measures import Measure
    from assay.experiments.power.variability.peers import Outlier
    from assay.experiments.power.variability.places import Effect
    from assay.stats.components import Component

PEERS = "distance from the middle of its peers; Student's t over its runs, false coverage 5 % over all that are told"
PLACES = "median of the place's GPUs; robust scale, Student's t, Holm over all places of a kind"
LEVELS = "nested analysis of variance of the logarithm of times, generalised pivots"


def findings_of(all_looked: Sequence[Looked]) -> Findings:
    """Return every claim about every fleet."""
    findings = tuple(finding for looked in all_looked for finding in _of(looked))
    return Findings(headline=headline(all_looked), findings=findings)


def headline(all_looked: Sequence[Looked]) -> str:
    """Return the answer: what stands out, and which GPU to ask for."""
    first = all_looked[0]
    more = len(all_looked) - 1
    others = f" So says {first.fleet.kind.label}; {words.counted(more, 'other kind')} of rows below." if more else ""
    return f"{_standing_out(first)} {words.answer(first)}{others}"


def _standing_out(looked: Looked) -> str:
    """Say how many GPUs and places stand out."""
    outliers_by_kind = {measure.high: len(own) for measure in MEASURES if (own := looked.surely(measure))}
    count = words.counted(len(looked.fleet.gpus), "GPU")
    if len(looked.fleet.gpus) == 1:
        runs = words.counted(len(set(looked.fleet.run.tolist())), "run")
        return f"One GPU in {runs}: how GPUs differ cannot be told."
    locations = {(effect.what, effect.name) for effect in looked.places if effect.verdict == "yes"}
    kinds = [(what, sum(one == what for one, _ in locations)) for what in ("rack", "host", "slot")]
    strays = [words.counted(number, what) for what, number in kinds if number]
    rest = f"; {words.listed(strays)} stray{'s' if sum(n for _, n in kinds) == 1 else ''} as a whole" if strays else ""
    if not outliers_by_kind:
        few = " (fewer than 4 have no peers to speak of)" if len(looked.fleet.gpus) < 4 else ""
        return f"No single one of {count} stands out against its peers{few}{rest}."
    outlier_counts = words.listed([f"{number:,} {high}" for high, number in outliers_by_kind.items()])
    return f"Of {count} {outlier_counts} stand{'s' if sum(outliers_by_kind.values()) == 1 else ''} out{rest}."


def _of(looked: Looked) -> Iterator[Finding]:
    yield from _of_spread(looked)
    yield from (_of_level(looked, one) for one in looked.components)
    yield from (_of_outlier(looked, one) for one in looked.outliers)
    yield from (
        _of_place(looked, effect) for effect in looked.places if effect.what == "slot" or effect.verdict == "yes"
    )
    yield from _of_pairs(looked)
    yield from _of_advice(looked)


def _facts(looked: Looked, about: str, **told: object) -> Params:
    kind = looked.fleet.kind
    facts: Params = {"about": about, "workload": kind.work, "model": kind.model}
    for name, value in told.items():
        facts[name] = value if isinstance(value, bool | int | float | str | None) else str(value)
    return facts


def _estimate(value: float, ends: tuple[float | None, float | None], unit: str, method: str, n: int) -> Estimate | None:
    low, high = ends
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        low = high = None
    if not math.isfinite(value):
        return None
    return Estimate(value=value, low=low, high=high, unit=unit, scope="machine", method=method, n=max(n, 1))


def _finding(looked: Looked, claim: str, verdict: Verdict, estimate: Estimate | None, facts: Params) -> Finding:
    origin = looked.fleet.kind.origin
    return Finding(
        claim=f"{looked.fleet.kind.label}: {claim}",
        estimate=estimate,
        verdict=verdict,
        records=(),
        facts=facts,
        origin=origin,
    )


def _of_spread(looked: Looked) -> Iterator[Finding]:
    spread = looked.spread
    if spread is None:
        return
    n, least = len(looked.fleet.gpus), 1 + looked.minimum_effect
    verdict: Verdict = "unsure"
    if spread.low is not None and spread.high is not None:
        verdict = "yes" if spread.low > least else "no" if spread.high < least else "unsure"
    names = {"slowest": looked.fleet.name(spread.slowest), "fastest": looked.fleet.name(spread.fastest)}
    claim = f"the slowest GPU takes over {words.percent(looked.minimum_effect, 0)} longer than the fastest"
    method = "ratio of the largest to the smallest time of a GPU; Tukey's studentised range over runs"
    estimate = _estimate(spread.ratio, (spread.low, spread.high), "×", method, n)
    yield _finding(looked, claim, verdict, estimate, _facts(looked, "spread", **names))
    if spread.middle is not None:
        claim = f"nine tenths of the GPUs are within {words.percent(looked.minimum_effect, 0)}"
        ends = spread.middle_low, spread.middle_high
        verdict = "unsure"
        if ends[0] is not None and ends[1] is not None:
            verdict = "yes" if ends[1] < least else "no" if ends[0] > least else "unsure"
        estimate = _estimate(spread.middle, ends, "×", "95th over 5th percentile of GPUs, over GPUs drawn anew", n)
        yield _finding(looked, claim, verdict, estimate, _facts(looked, "middle"))


def _of_level(looked: Looked, one: Component) -> Finding:
    deviation = None if one.variance is None else math.sqrt(one.variance)
    ends = tuple(None if end is None else math.sqrt(end) for end in (one.low, one.high))
    estimate = (
        None if deviation is None else _estimate(deviation, (ends[0], ends[1]), "of the time", LEVELS, one.members)
    )
    verdict: Verdict = "unsure"
    if one.low is not None:
        verdict = "yes" if one.low > 0 else "unsure"
    facts = _facts(
        looked,
        "component",
        level=one.level,
        share=one.share,
        share_low=one.share_low,
        share_high=one.share_high,
        members=one.members,
        part_of=one.within,
    )
    return _finding(looked, f"{one.level} differ beyond what lies below them", verdict, estimate, facts)


def _unit(measure: Measure) -> str:
    return "×" if measure.relative else "°C"


def _value(measure: Measure, value: float) -> float:
    return math.exp(value) if measure.relative else value


def _of_outlier(looked: Looked, one: Outlier) -> Finding:
    gpu, measure = looked.fleet.gpus[one.gpu], one.measure
    ends = _value(measure, one.peers.low), _value(measure, one.peers.high)
    facts = _facts(
        looked,
        "outlier",
        kind=one.word,
        measure=measure.name,
        uuid=gpu.uuid,
        host=gpu.host,
        slot=gpu.slot,
        rack=gpu.rack,
        against=one.against,
        against_fleet=_value(measure, one.fleet.value),
        against_fleet_low=_value(measure, one.fleet.low),
        against_fleet_high=_value(measure, one.fleet.high),
        false_rate=one.rate,
    )
    estimate = _estimate(_value(measure, one.peers.value), ends, _unit(measure), PEERS, len(looked.fleet.gpus))
    claim = f"{looked.fleet.name(one.gpu)} is {one.word} against {one.against}"
    return _finding(looked, claim, one.verdict, estimate, facts)


def _of_place(looked: Looked, effect: Effect) -> Finding:
    measure = effect.measure
    ends = _value(measure, effect.low), _value(measure, effect.high)
    estimate = _estimate(_value(measure, effect.value), ends, _unit(measure), PLACES, effect.members)
    claim = f"{effect.what} {effect.name} is {effect.word} as a whole"
    facts = _facts(
        looked, effect.what, name=effect.name, measure=measure.name, members=effect.members, chance=effect.chance
    )
    return _finding(looked, claim, effect.verdict, estimate, facts)


def _of_pairs(looked: Looked) -> Iterator[Finding]:
    for pair in looked.pairs:
        if pair.found is None:
            continue
        equal = f", {pair.equal} held equal" if pair.equal else ""
        method = f"Spearman's rho over {pair.over}{equal}, Fisher's interval"
        estimate = _estimate(pair.found.rho, (pair.found.low, pair.found.high), "", method, pair.found.n)
        facts = _facts(looked, "correlation", x=pair.x, y=pair.y, equal=pair.equal, over=pair.over, n=pair.found.n)
        yield _finding(looked, pair.claim, pair.verdict, estimate, facts)


def _of_advice(looked: Looked) -> Iterator[Finding]:
    advice, fleet = looked.advice, looked.fleet
    best = advice.best[0] if advice.best else None
    facts = _facts(
        looked,
        "advice",
        answer=advice.answer,
        best=None if best is None else fleet.name(best),
        uuid=None if best is None else fleet.gpus[best].uuid,
        confidence=advice.confidence,
        slot=None if advice.slot is None else int(advice.slot.name),
        sentence=words.answer(looked),
    )
    verdicts: dict[str, Verdict] = {"gpu": "yes", "slot": "yes", "avoid": "yes", "any": "no", "one": "no"}
    estimate = None if advice.gain is None else _gain(looked, advice.gain)
    claim = "it matters which GPU is asked for"
    yield _finding(looked, claim, verdicts.get(advice.answer, "unsure"), estimate, facts)
    sentence = words.money(looked)
    if sentence is not None and advice.fourth is not None:
        low, high = advice.fourth.low or 0.0, advice.fourth.high or 0.0
        verdict: Verdict = "yes" if low > 0 else "no" if high < looked.minimum_effect else "unsure"
        facts = _facts(looked, "fourth", sentence=sentence)
        claim = "always asking for the 4th GPU saves time"
        yield _finding(looked, claim, verdict, _gain(looked, advice.fourth), facts)


def _gain(looked: Looked, gain: Gain) -> Estimate | None:
    method = "share of a random GPU's time; over runs, drawn in towards the rest as far as they scatter"
    return _estimate(gain.value, (gain.low, gain.high), "", method, len(looked.fleet.gpus))
