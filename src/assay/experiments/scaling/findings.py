"""The findings, the headline and the efficiency gate of ``assay scaling run``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.format import format_percent, format_time
from assay.core.results import Estimate, Finding
from assay.experiments.scaling.estimates import (
    EFFICIENCY_FACTORS,
    QUANTITIES,
    format_percent_cell,
    format_rate_cell,
    format_ratio_cell,
)
from assay.experiments.scaling.plan import ScalingShape, describe_skipped, format_shape, list_skipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import Verdict
    from assay.core.values import Params
    from assay.experiments.scaling.analysis import AnalysedShape, ScalingAnalysis
    from assay.experiments.scaling.estimates import ScalingNumber
    from assay.experiments.scaling.options import ScalingOptions


LITTLE_LOST = 0.98
"""A factor above this loses so little that it limits nothing."""

LIMIT_REASONS = {
    "split_shard": "a share takes longer than its part of the whole",
    "split_contention": "side by side a rank computes slower than alone",
    "split_balance": "ranks wait for the slowest",
    "split_exposed": "communication is not hidden behind computing",
    "split_rest": "computing and transfers hinder each other",
}


def write_headline(options: ScalingOptions, analysis: ScalingAnalysis) -> str:
    """Return the answer."""
    if not analysis.measured:
        return _headline_without_baseline(options, analysis)
    main = find_largest_shape(analysis)
    parts = [
        f"{_speedup_clause(options, main)}; {_limit_clause(main)}",
        *_other_lengths(analysis, main),
        *_doubt_sentences(options, analysis),
    ]
    return f"{'. '.join(parts)}."


def find_largest_shape(analysis: ScalingAnalysis) -> AnalysedShape:
    """Return the shape that the answer is about: most ranks, the largest ring, the longest sequence."""
    return max(analysis.measured, key=lambda result: (result.shape.world, result.shape.ring, result.shape.sequence))


def name_ranks(options: ScalingOptions, scaled: AnalysedShape) -> str:
    """Name a shape's ranks by what they run on."""
    world = scaled.shape.world
    own = options.kind == "cuda" and len(options.devices) >= world
    text = f"{world} GPUs" if own else f"{world} ranks"
    if options.kind == "cuda" and not own:
        text += f" on {len(options.devices)} GPU{'' if len(options.devices) == 1 else 's'}"
    if not options.is_attention:
        return text
    if scaled.shape.ring == 1:
        return f"{text}, each with sequences of its own,"
    return f"{text} in {'one ring' if scaled.shape.rings == 1 else f'{scaled.shape.rings} rings'}"


def _speedup_clause(options: ScalingOptions, scaled: AnalysedShape) -> str:
    weak = options.mode == "weak" and options.is_attention
    at = f" at {scaled.shape.sequence} tokens{' a rank' if weak else ''}" if scaled.shape.sequence else ""
    done = f"{name_ranks(options, scaled)} get through {format_ratio_cell(scaled['speedup']) or '–'} as much as one{at}"
    return f"{done}, an efficiency of {format_percent_cell(scaled['efficiency']) or '–'}"


def _limit_clause(scaled: AnalysedShape) -> str:
    """Say what is lost most."""
    factors = {name: scaled[name] for name in EFFICIENCY_FACTORS if scaled[name].value is not None}
    efficiency = scaled["efficiency"]
    if (efficiency.value or 0.0) >= 1:
        if efficiency.bounds is not None and efficiency.bounds[0] < LITTLE_LOST:
            return "whether anything is lost cannot be said: the interval reaches below 100 %"
        return "nothing is lost; more than 100 % is what caches, or noise, give"
    if not factors:
        return f"what limits it is not known: {next(scaled[name].reason for name in EFFICIENCY_FACTORS)}"
    worst = min(factors, key=lambda name: factors[name].value or 1.0)
    value, ends = factors[worst].value or 1.0, factors[worst].bounds
    if value >= LITTLE_LOST:
        return "little is lost anywhere"
    text = f"most is lost to {EFFICIENCY_FACTORS[worst]} (×{value:.2f}): {LIMIT_REASONS[worst]}"
    return text if ends is not None and ends[1] < 1 else f"perhaps {text}"


def _other_lengths(analysis: ScalingAnalysis, main: AnalysedShape) -> list[str]:
    """Say how it is at the other sequences."""
    shape = main.shape
    others = [
        result
        for result in analysis.measured
        if (result.shape.world, result.shape.ring) == (shape.world, shape.ring) and result.shape != shape
    ]
    clauses = [
        f"{format_percent_cell(result['efficiency']) or '–'} at {result.shape.sequence}" for result in others[:2]
    ]
    return [f"It is {' and '.join(clauses)}"] if clauses else []


def _doubt_sentences(options: ScalingOptions, analysis: ScalingAnalysis) -> list[str]:
    bare = sum(result["efficiency"].bounds is None for result in analysis.measured)
    missing = [result for result in analysis.all if result.status not in {"ok", None}]
    sentences = []
    if bare:
        more = "more --benchmark-runs, or --repeat 3, give one"
        sentences.append(f"{'It has' if bare == 1 else f'{bare} shapes have'} no interval; {more}")
    if missing:
        names = [format_shape(result.shape, is_attention=options.is_attention) for result in missing]
        sentences.append(f"Not measured: {'; '.join(names[:3])}{' and more' if len(names) > 3 else ''}")
    return sentences


def _headline_without_baseline(options: ScalingOptions, analysis: ScalingAnalysis) -> str:
    """Say what ranks do where nothing could be held against one of them: it may be too much for one."""
    measured = [result for result in analysis.all if result["time"].value is not None]
    if not measured:
        return "Nothing could be measured."
    main = max(measured, key=lambda result: (result.shape.world, result.shape.ring, result.shape.sequence))
    unit = "tokens/s" if options.is_attention else "calls/s"
    at = f" at {main.shape.sequence} tokens" if main.shape.sequence else ""
    several = main.shape.world > 1
    done = (
        f"{name_ranks(options, main) if several else 'One rank'} get{'' if several else 's'} through "
        f"{format_rate_cell(main['throughput'])} {unit}{at}, in {format_time(main['time'].value or 0.0)} a call"
    )
    if not analysis.scaled:
        return f"{done}; what more ranks buy was not asked: `--nproc 2` does."
    why = next((result.reason or result["efficiency"].reason for result in analysis.scaled), None)
    return f"{done}; what more ranks buy is not known: {why}."


MIN_REPEATS = 2
"""Starts that an interval takes: one is one draw, and says nothing of the next."""

GATE_REPEATS = 5
"""Starts that a gate plans: with two or three Student's t is so wide that hardly anything is sure."""


@dataclass(frozen=True)
class ScalingGate:
    """The answer: no only where all of an interval lies below; yes where all of every interval lies above."""

    verdict: Verdict
    sentence: str


def judge_efficiency(efficiency: ScalingNumber, least: float) -> Verdict:
    """Return whether an efficiency is at least so much; without an interval nothing is sure."""
    if efficiency.bounds is None:
        return "unsure"
    low, high = efficiency.bounds
    return "no" if high < least else "yes" if low >= least else "unsure"


def refuse_blind_gate(least: float | None, repeat: int | None) -> None:
    """Refuse a gate that could never say no, before anything is measured.

    Raises:
        BadInput: A gate is asked for with so few starts that there is no interval; null repeats: as many as it plans.
    """
    if least is not None and repeat is not None and repeat < MIN_REPEATS:
        raise BadInput(
            f"--min-efficiency could never say no: --repeat {repeat} gives no interval over starts. "
            f"--repeat {GATE_REPEATS} does, and is what a gate plans by itself."
        )


def judge_gated_efficiency(efficiency: ScalingNumber, least: float) -> Verdict:
    """Return a gate's answer for one shape: an interval within one start decides nothing."""
    return judge_efficiency(efficiency, least) if efficiency.is_over_starts else "unsure"


def evaluate_gate(options: ScalingOptions, analysis: ScalingAnalysis) -> ScalingGate | None:
    """Return the gate's answer; null where none was asked for."""
    least = options.min_efficiency
    if least is None:
        return None
    requirement = f"an efficiency of at least {format_percent(least, digits=3)}"
    if not analysis.scaled:
        return ScalingGate("unsure", f"Unsure of {requirement}: nothing was measured with more than one rank.")
    by_verdict: dict[str, list[str]] = {"no": [], "unsure": [], "yes": []}
    for result in analysis.scaled:
        number = result["efficiency"]
        value = format_percent_cell(number) if number.value is not None else (number.reason or "not measured")
        why = "" if number.value is None or number.is_over_starts else ", without an interval over starts"
        clause = f"{format_shape(result.shape, is_attention=options.is_attention)}: {value}{why}"
        by_verdict[judge_gated_efficiency(number, least)].append(clause)
    if by_verdict["no"]:
        return ScalingGate("no", f"Below {requirement}: {'; '.join(by_verdict['no'])}.")
    if by_verdict["unsure"]:
        return ScalingGate("unsure", f"Unsure of {requirement}: {'; '.join(by_verdict['unsure'])}.")
    return ScalingGate("yes", f"Every shape has {requirement}.")


EXPECTED_EFFICIENCY = 0.7
"""The efficiency that is held against where no gate names another."""
SMALL_SHARE = 0.1
"""Exposed communication below this share of the time is called little."""
OPPOSITE_VERDICT: dict[Verdict, Verdict] = {"yes": "no", "no": "yes", "unsure": "unsure"}
JUDGED_NUMBERS = ("speedup", "efficiency", "exposed_share")
"""Numbers that are judged rather than only known."""


def build_findings(options: ScalingOptions, analysis: ScalingAnalysis) -> tuple[Finding, ...]:
    """Return every finding, those that answer the question first."""
    return (
        *_gate_findings(options, analysis),
        *(finding for result in analysis.scaled for finding in _judged_findings(options, analysis, result)),
        *(finding for result in analysis.all for finding in _check_findings(options, analysis, result)),
        *(finding for result in analysis.all for finding in _number_findings(options, analysis, result)),
        *_prediction_findings(options, analysis),
        *_skipped_findings(options),
    )


def _finding_facts(options: ScalingOptions, shape: ScalingShape) -> Params:
    return {
        "sequence": shape.sequence or None,
        "world": shape.world,
        "ring": shape.ring,
        "mode": options.mode,
    }


def _name_shape(options: ScalingOptions, result: AnalysedShape) -> str:
    return format_shape(result.shape, is_attention=options.is_attention)


def _finding_trials(analysis: ScalingAnalysis, result: AnalysedShape) -> tuple[str, ...]:
    ring = ScalingShape(result.shape.sequence, result.shape.ring, result.shape.ring)
    return analysis.timings.trials(result.shape, result.shape.alone, *([ring] if result.shape.ring > 1 else []))


def _gate_findings(options: ScalingOptions, analysis: ScalingAnalysis) -> Iterator[Finding]:
    answer = evaluate_gate(options, analysis)
    least = options.min_efficiency
    if answer is not None and least is not None:
        yield Finding(
            kind="gate",
            claim=f"Every shape has an efficiency of at least {format_percent(least, digits=3)}",
            estimate=None,
            verdict=answer.verdict,
            reason=answer.sentence,
            records=analysis.timings.trials(*(result.shape for result in analysis.all)),
            facts={"min_efficiency": least},
            gate="failed" if answer.verdict == "no" else "passed",
        )


def _judged_findings(options: ScalingOptions, analysis: ScalingAnalysis, result: AnalysedShape) -> Iterator[Finding]:
    """Return what is claimed of a shape of several ranks: that it is faster, efficient, and waits for little."""
    least = options.min_efficiency or EXPECTED_EFFICIENCY
    efficient = f"each rank is worth at least {format_percent(least, digits=3)} of one alone"
    hidden = f"communication that is not hidden takes less than {format_percent(SMALL_SHARE)} of the time"
    claims: tuple[tuple[str, str, Verdict], ...] = (
        ("speedup", "more ranks get through more than one", _judge_above(result["speedup"], 1.0)),
        ("efficiency", efficient, judge_efficiency(result["efficiency"], least)),
        ("exposed_share", hidden, OPPOSITE_VERDICT[_judge_above(result["exposed_share"], SMALL_SHARE)]),
    )
    for name, claim, verdict in claims:
        number = result[name]
        yield Finding(
            kind=name,
            claim=f"{_name_shape(options, result)}: {claim}",
            estimate=number.estimate,
            verdict=verdict,
            reason=number.unsure_reason,
            records=_finding_trials(analysis, result),
            facts=_finding_facts(options, result.shape),
        )


def _judge_above(number: ScalingNumber, edge: float) -> Verdict:
    if number.bounds is None:
        return "unsure"
    low, high = number.bounds
    return "yes" if low > edge else "no" if high < edge else "unsure"


def _check_findings(options: ScalingOptions, analysis: ScalingAnalysis, result: AnalysedShape) -> Iterator[Finding]:
    """Return whether a shape came off, whether it is right, and whether what came is what must come."""
    records, facts = analysis.timings.trials(result.shape), result.facts
    if facts is None:
        yield Finding(
            kind="status",
            claim=f"{_name_shape(options, result)} can be measured",
            estimate=None,
            verdict="no" if result.status == "failed" else "unsure",
            reason=result.reason,
            records=records,
            facts={**_finding_facts(options, result.shape), "status": result.status},
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
            kind=f"check_{name}",
            claim=f"{_name_shape(options, result)}: {what}",
            estimate=_plain_estimate(check.error, "", f"{check.measure} against float64, the worst of all ranks"),
            verdict="yes" if check.passed else "no",
            reason=None,
            records=records,
            facts={**_finding_facts(options, result.shape), "tolerance": check.tolerance},
        )
    if facts.received_bytes is not None and facts.expected_bytes is not None:
        yield Finding(
            kind="received_bytes",
            claim=f"{_name_shape(options, result)}: ranks receive no more than they must",
            estimate=_plain_estimate(
                facts.received_bytes, "B", "counted as transfers were posted, all ranks, one call"
            ),
            verdict="yes" if facts.received_bytes <= facts.expected_bytes else "no",
            records=records,
            facts={
                **_finding_facts(options, result.shape),
                "expected_bytes": facts.expected_bytes,
                "byte_inflation": facts.byte_inflation,
                "flop_inflation": facts.flop_inflation,
            },
        )


def _plain_estimate(value: float, unit: str, method: str) -> Estimate:
    return Estimate(value=value, low=None, high=None, unit=unit, scope="run", method=method, n=1)


def _number_findings(options: ScalingOptions, analysis: ScalingAnalysis, result: AnalysedShape) -> Iterator[Finding]:
    """Return every other number, and whether it is known with an interval."""
    if result.facts is None:
        return
    for name, quantity in QUANTITIES.items():
        number = result[name]
        if name in JUDGED_NUMBERS or (number.estimate is None and result.shape.world == 1):
            continue
        yield Finding(
            kind=name,
            claim=f"{_name_shape(options, result)}: {quantity.words} is known",
            estimate=number.estimate,
            verdict="yes" if number.bounds is not None else "unsure",
            reason=number.unsure_reason,
            records=_finding_trials(analysis, result),
            facts=_finding_facts(options, result.shape),
        )
    for memory in result.facts.memory:
        allocator_mib = {"allocated_mib": memory.allocated_mib, "reserved_mib": memory.reserved_mib}
        yield Finding(
            kind="memory",
            claim=f"{_name_shape(options, result)}: the peak memory of rank {memory.rank} is known",
            estimate=None
            if memory.allocated_mib is None
            else _plain_estimate(memory.allocated_mib, "MiB", "the allocator"),
            verdict="unsure" if memory.allocated_mib is None else "yes",
            reason="the allocator of a CPU counts nothing" if memory.allocated_mib is None else None,
            records=analysis.timings.trials(result.shape),
            facts={
                **_finding_facts(options, result.shape),
                "rank": memory.rank,
                **allocator_mib,
                "process_mib": memory.process_mib,
                "device_mib": memory.device_mib,
            },
        )


def _prediction_findings(options: ScalingOptions, analysis: ScalingAnalysis) -> Iterator[Finding]:
    verdicts: dict[str, Verdict] = {"within": "yes", "faster": "no", "slower": "no", "unknown": "unsure"}
    for score in analysis.scores:
        predicted = score.predicted.time_s
        yield Finding(
            kind="prediction",
            claim=f"{format_shape(score.shape, is_attention=True)}: it takes as long as was predicted",
            estimate=predicted,
            verdict=verdicts[score.outcome],
            reason=None if score.outcome == "within" else f"measured: {score.outcome}",
            records=analysis.timings.trials(score.shape),
            facts={**_finding_facts(options, score.shape), "error": score.error},
        )


def _skipped_findings(options: ScalingOptions) -> Iterator[Finding]:
    for shape in list_skipped(options):
        facts: Params = {"world": shape.world, "ring": shape.ring}
        (sentence,) = describe_skipped([shape])
        yield Finding(
            kind="skipped",
            claim=f"{sentence.partition(':')[0]} can be measured here",
            estimate=None,
            verdict="unsure",
            reason=f"skipped: {shape.reason}",
            records=(),
            facts=facts,
        )
