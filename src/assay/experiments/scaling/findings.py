"""What is claimed of the records, each claim with its number, its verdict and the trials behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate, Finding
from assay.experiments.scaling.gate import gate, judge
from assay.experiments.scaling.numbers import QUANTITIES
from assay.experiments.scaling.shapes import Shape, sentences, skipped, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import Verdict
    from assay.core.values import Params
    from assay.experiments.scaling.analysis import Analysis, Scaled
    from assay.experiments.scaling.numbers import Known
    from assay.experiments.scaling.options import ScalingOptions

EXPECTED = 0.7
"""The efficiency that is held against where no gate names another."""
SMALL_SHARE = 0.1
"""Exposed communication below this share of the time is called little."""
OPPOSITE: dict[Verdict, Verdict] = {"yes": "no", "no": "yes", "unsure": "unsure"}
BEYOND_TIMES = ("speedup", "efficiency", "exposed_share")
"""Numbers that are judged rather than only known."""


def findings_of(options: ScalingOptions, found: Analysis) -> tuple[Finding, ...]:
    """Return every finding, those that answer the question first."""
    return (
        *_of_the_gate(options, found),
        *(finding for result in found.scaled for finding in _judged(options, found, result)),
        *(finding for result in found.all for finding in _of_truth(options, found, result)),
        *(finding for result in found.all for finding in _known(options, found, result)),
        *_of_predictions(options, found),
        *_of_the_skipped(options),
    )


def _facts(options: ScalingOptions, shape: Shape, about: str) -> Params:
    return {
        "about": about,
        "sequence": shape.sequence or None,
        "world": shape.world,
        "ring": shape.ring,
        "mode": options.mode,
    }


def _name(options: ScalingOptions, each: Scaled) -> str:
    return words(each.shape, is_attention=options.is_attention)


def _trials(found: Analysis, each: Scaled) -> tuple[str, ...]:
    ring = Shape(each.shape.sequence, each.shape.ring, each.shape.ring)
    return found.laid.trials(each.shape, each.shape.alone, *([ring] if each.shape.ring > 1 else []))


def _of_the_gate(options: ScalingOptions, found: Analysis) -> Iterator[Finding]:
    answer = gate(options, found)
    if answer is not None:
        yield Finding(
            claim=f"Every shape has an efficiency of at least {options.min_efficiency:.0%}",
            estimate=None,
            verdict=answer.verdict,
            reason=answer.sentence,
            records=found.laid.trials(*(result.shape for result in found.all)),
            facts={"about": "gate", "min_efficiency": options.min_efficiency},
        )


def _judged(options: ScalingOptions, found: Analysis, each: Scaled) -> Iterator[Finding]:
    """Return what is claimed of a shape of several ranks: that it is faster, efficient, and waits for little."""
    least = options.min_efficiency or EXPECTED
    efficient = f"each rank is worth at least {least:.0%} of one alone"
    hidden = f"communication that is not hidden takes less than {SMALL_SHARE:.0%} of the time"
    claims: tuple[tuple[str, str, Verdict], ...] = (
        ("speedup", "more ranks get through more than one", _above(each["speedup"], 1.0)),
        ("efficiency", efficient, judge(each["efficiency"], least)),
        ("exposed_share", hidden, OPPOSITE[_above(each["exposed_share"], SMALL_SHARE)]),
    )
    for name, claim, verdict in claims:
        number = each[name]
        yield Finding(
            claim=f"{_name(options, each)}: {claim}",
            estimate=number.estimate,
            verdict=verdict,
            reason=number.why_unsure,
            records=_trials(found, each),
            facts=_facts(options, each.shape, name),
        )


def _above(known: Known, edge: float) -> Verdict:
    if known.ends is None:
        return "unsure"
    low, high = known.ends
    return "yes" if low > edge else "no" if high < edge else "unsure"


def _of_truth(options: ScalingOptions, found: Analysis, each: Scaled) -> Iterator[Finding]:
    """Return whether a shape came off, whether it is right, and whether what came is what must come."""
    records, facts = found.laid.trials(each.shape), each.facts
    if facts is None:
        yield Finding(
            claim=f"{_name(options, each)} can be measured",
            estimate=None,
            verdict="no" if each.status == "failed" else "unsure",
            reason=each.reason,
            records=records,
            facts={**_facts(options, each.shape, "status"), "status": each.status},
        )
        return
    for name, check in facts.checks.items():
        what = (
            "forward is right"
            if name == "forward"
            else "the result is right"
            if name != "total"
            else "forward and gradients are right"
        )
        yield Finding(
            claim=f"{_name(options, each)}: {what}",
            estimate=_plain(check.error, "", f"{check.measure} against float64, the worst of all ranks"),
            verdict="yes" if check.passed else "no",
            reason=None,
            records=records,
            facts={**_facts(options, each.shape, f"check_{name}"), "tolerance": check.tolerance},
        )
    if facts.received_bytes is not None and facts.expected_bytes is not None:
        yield Finding(
            claim=f"{_name(options, each)}: ranks receive no more than they must",
            estimate=_plain(facts.received_bytes, "B", "counted as transfers were posted, all ranks, one call"),
            verdict="yes" if facts.received_bytes <= facts.expected_bytes else "no",
            records=records,
            facts={
                **_facts(options, each.shape, "received_bytes"),
                "expected_bytes": facts.expected_bytes,
                "byte_inflation": facts.byte_inflation,
                "flop_inflation": facts.flop_inflation,
            },
        )


def _plain(value: float, unit: str, method: str) -> Estimate:
    return Estimate(value=value, low=None, high=None, unit=unit, scope="run", method=method, n=1)


def _known(options: ScalingOptions, found: Analysis, each: Scaled) -> Iterator[Finding]:
    """Return every other number, and whether it is known with an interval."""
    if each.facts is None:
        return
    for name, quantity in QUANTITIES.items():
        number = each[name]
        if name in BEYOND_TIMES or (number.estimate is None and each.shape.world == 1):
            continue
        yield Finding(
            claim=f"{_name(options, each)}: {quantity.words} is known",
            estimate=number.estimate,
            verdict="yes" if number.ends is not None else "unsure",
            reason=number.why_unsure,
            records=_trials(found, each),
            facts=_facts(options, each.shape, name),
        )
    for memory in each.facts.memory:
        allocator_mib = {"allocated_mib": memory.allocated_mib, "reserved_mib": memory.reserved_mib}
        yield Finding(
            claim=f"{_name(options, each)}: the peak memory of rank {memory.rank} is known",
            estimate=None if memory.allocated_mib is None else _plain(memory.allocated_mib, "MiB", "the allocator"),
            verdict="unsure" if memory.allocated_mib is None else "yes",
            reason="the allocator of a CPU counts nothing" if memory.allocated_mib is None else None,
            records=found.laid.trials(each.shape),
            facts={
                **_facts(options, each.shape, "memory"),
                "rank": memory.rank,
                **allocator_mib,
                "process_mib": memory.process_mib,
                "device_mib": memory.device_mib,
            },
        )


def _of_predictions(options: ScalingOptions, found: Analysis) -> Iterator[Finding]:
    verdicts: dict[str, Verdict] = {"within": "yes", "faster": "no", "slower": "no", "unknown": "unsure"}
    for score in found.scores:
        predicted = score.predicted.time_s
        yield Finding(
            claim=f"{words(score.shape, is_attention=True)}: it takes as long as was predicted",
            estimate=predicted,
            verdict=verdicts[score.outcome],
            reason=None if score.outcome == "within" else f"measured: {score.outcome}",
            records=found.laid.trials(score.shape),
            facts={**_facts(options, score.shape, "prediction"), "error": score.error},
        )


def _of_the_skipped(options: ScalingOptions) -> Iterator[Finding]:
    for shape in skipped(options):
        facts: Params = {"about": "skipped", "world": shape.world, "ring": shape.ring}
        (sentence,) = sentences([shape])
        yield Finding(
            claim=f"{sentence.partition(':')[0]} can be measured here",
            estimate=None,
            verdict="unsure",
            reason=f"skipped: {shape.reason}",
            records=(),
            facts=facts,
        )
