"""What the records say of each threshold, as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate, Finding, Findings
from assay.experiments.threshold.answers import answer
from assay.experiments.threshold.options import TIMES
from assay.experiments.threshold.plan import walk
from assay.stats.crossover import TOO_LOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Verdict
    from assay.core.values import Params
    from assay.experiments.threshold.answers import Answer, Place
    from assay.experiments.threshold.options import ThresholdOptions
    from assay.stats.crossover import Kind
    from assay.store.records import Records

VERDICTS: dict[Kind, Verdict] = {"threshold": "yes", "disable": "no", "unsure": "unsure"}
METHOD = "from the largest size down, the last whose speed-up is surely above the margin"


def analyse(options: ThresholdOptions, records: Records) -> Findings:
    """Return where each threshold is, by what is decided on and by each time, and whether parity passed."""
    answers = answers_of(options, records)
    origin = next((record.origin for record in records if record.origin != "real"), "real")
    result = [
        finding.model_copy(update={"origin": origin}) for answer in answers for finding in _findings(answer, options)
    ]
    return Findings(headline=headline(answers), findings=tuple(result))


def answers_of(options: ThresholdOptions, records: Records) -> list[Answer]:
    """Return the answer to each threshold."""
    return [answer(judged_threshold, options.decide_on) for judged_threshold in walk(options, records).judged(options)]


def headline(answers: Sequence[Answer]) -> str:
    """Return all answers in one sentence."""
    clauses = "; ".join(answer.headline for answer in answers)
    margins = sorted({answer.judged.threshold.margin for answer in answers})
    by = " and ".join(f"{margin:g}×" for margin in margins)
    return f"Faster by {by}: {clauses}."


def _findings(found: Answer, options: ThresholdOptions) -> Iterable[Finding]:
    trials = tuple(
        dict.fromkeys(measurement.trial for point in found.judged.points for measurement in point.seen.taken)
    )
    yield _finding(found, found.place, options.decide_on, trials, about="threshold")
    for time in TIMES:
        if time in found.by_time:
            yield _finding(found, found.by_time[time], time, trials, about="time")
    yield Finding(
        claim=f"the fast path of {found.name} gives what its reference gives",
        estimate=None,
        verdict="yes" if found.parity == "passed" else "no" if found.parity == "failed" else "unsure",
        records=trials,
        reason=None if found.parity == "passed" else found.why[0].rstrip("."),
        facts={"about": "parity", "name": found.name, "parity": found.parity},
    )


def _finding(found: Answer, place: Place, by: str, trials: tuple[str, ...], *, about: str) -> Finding:
    threshold = found.judged.threshold
    fast, reference = threshold.points[0].fast.label, threshold.points[0].reference.label
    facts: Params = {
        "about": about,
        "name": found.name,
        "key": found.key,
        "decision": place.decision,
        "low": place.low,
        "high": place.high,
        "margin": threshold.margin,
        "decided_on": by,
        "parity": found.parity,
        "value": found.value if about == "threshold" else place.size,
    }
    where = f"from {place.size:g} on" if place.size is not None else "from some size on"
    return Finding(
        claim=f"{where} {fast} is at least {threshold.margin:g}× as fast as {reference} ({found.name}, {by})",
        estimate=_estimate(place, found),
        verdict=VERDICTS[place.decision],
        records=trials,
        reason=" ".join(found.why).rstrip(".") or None if about == "threshold" else None,
        facts=facts,
    )


def _estimate(place: Place, found: Answer) -> Estimate | None:
    """Return a threshold as a number with its interval; null where it is none."""
    if place.size is None:
        return None
    return Estimate(
        value=place.size,
        low=place.low,
        high=place.high,
        unit="size",
        scope="run",
        method=METHOD,
        confidence=1 - TOO_LOW,
        n=max(1, sum(len(measurement.times) for point in found.judged.points for measurement in point.seen.taken)),
    )
