"""The findings, the headline and the efficiency gate of ``assay scaling run``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.format import (
    RATE_SCALES,
    format_count,
    format_percent,
    format_scaled,
    format_time,
    percent_cell,
    ratio_cell,
)
from assay.core.results import Estimate, Finding
from assay.experiments.scaling.plan import ScalingShape, describe_skipped, format_shape, list_skipped
from assay.experiments.scaling.timings import EFFICIENCY_FACTORS, QUANTITIES, is_over_starts, judge_at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.core.results import Verdict
    from assay.core.values import Scalar
    from assay.experiments.scaling.analysis import AnalysedShape, ScalingAnalysis
    from assay.experiments.scaling.plan import ScalingOptions


SMALL_LOSS = 0.98
"""A factor above this loses so little that it limits nothing."""

LIMIT_REASONS = {
    "split_shard": "a shard takes longer than its part of the whole",
    "split_contention": "ranks compute slower side by side than alone",
    "split_balance": "ranks wait for the slowest",
    "split_exposed": "communication does not overlap computation",
    "split_rest": "computation and transfers slow each other down",
}


def write_headline(options: ScalingOptions, analysis: ScalingAnalysis) -> str:
    """Return the answer."""
    if not analysis.measured:
        return _headline_without_baseline(options, analysis)
    main = find_largest_shape(analysis)
    parts = [
        f"{_speedup_clause(options, main)}; {_limit_clause(main)}",
        *_other_lengths(analysis, main),
        *_caveats(options, analysis),
    ]
    return f"{'. '.join(parts)}."


def _size_of(result: AnalysedShape) -> tuple[int, int, int]:
    return result.shape.world, result.shape.ring, result.shape.sequence


def find_largest_shape(analysis: ScalingAnalysis) -> AnalysedShape:
    """Return the shape that the answer is about: most ranks, the largest ring, the longest sequence."""
    return max(analysis.measured, key=_size_of)


def name_ranks(options: ScalingOptions, result: AnalysedShape) -> str:
    """Name a shape's ranks by the devices they run on."""
    world, devices = result.shape.world, len(options.devices)
    if options.kind != "cuda":
        text = format_count(world, "rank")
    elif devices >= world:
        text = format_count(world, "GPU")
    else:
        text = f"{format_count(world, 'rank')} on {format_count(devices, 'GPU')}"
    if not options.is_attention or world == 1:
        return text
    if result.shape.ring == 1:
        return f"{text} with independent sequences"
    return f"{text} in {'one ring' if result.shape.rings == 1 else f'{result.shape.rings} rings'}"


def _speedup_clause(options: ScalingOptions, result: AnalysedShape) -> str:
    per_rank = " per rank" if options.mode == "weak" and options.is_attention else ""
    at = f" at {result.shape.sequence} tokens{per_rank}" if result.shape.sequence else ""
    speedup = ratio_cell(result["speedup"]) or "unknown"
    return f"{name_ranks(options, result)}: speedup {speedup}{at}, efficiency {percent_cell(result['efficiency'])}"


def _limit_clause(result: AnalysedShape) -> str:
    """Name the largest loss."""
    efficiency = result["efficiency"]
    if efficiency is not None and efficiency.value >= 1:
        if efficiency.low is not None and efficiency.low < SMALL_LOSS:
            return "a loss is possible: the interval extends below 100 %"
        return "no loss; more than 100 % comes from caches or noise"
    factors = {name: factor for name in EFFICIENCY_FACTORS if (factor := result[name]) is not None}
    if not factors:
        return f"the limiting factor is unknown: {result.missing_reason(next(iter(EFFICIENCY_FACTORS)))}"
    worst = min(factors, key=lambda name: factors[name].value)
    value, high = factors[worst].value, factors[worst].high
    if value >= SMALL_LOSS:
        return f"no factor loses more than {format_percent(1 - SMALL_LOSS)}"
    certainty = "largest loss" if high is not None and high < 1 else "probably the largest loss"
    return f"{certainty}: {EFFICIENCY_FACTORS[worst]} (×{value:.2f}), {LIMIT_REASONS[worst]}"


def _other_lengths(analysis: ScalingAnalysis, main: AnalysedShape) -> list[str]:
    """Report the efficiency at the other sequences."""
    shape = main.shape
    others = [
        result
        for result in analysis.measured
        if (result.shape.world, result.shape.ring) == (shape.world, shape.ring) and result.shape != shape
    ]
    clauses = [f"{percent_cell(result['efficiency'])} at {result.shape.sequence}" for result in others[:2]]
    return [f"Efficiency {' and '.join(clauses)} tokens"] if clauses else []


def _caveats(options: ScalingOptions, analysis: ScalingAnalysis) -> list[str]:
    bare = sum(efficiency.bounds is None for result in analysis.measured if (efficiency := result["efficiency"]))
    failed = [format_shape(options, r.shape) for r in analysis.all if r.is_failed]
    sentences = []
    if bare:
        count = "No interval" if bare == 1 else f"{bare} shapes have no interval"
        sentences.append(f"{count}: use more --benchmark-runs, or --repeat 3")
    if failed:
        sentences.append(f"Not measured: {'; '.join(failed[:3])}{' and more' if len(failed) > 3 else ''}")
    return sentences


def _headline_without_baseline(options: ScalingOptions, analysis: ScalingAnalysis) -> str:
    """Report throughput and time where no shape can be compared with one rank, which may lack the memory."""
    main = max((result for result in analysis.all if result["time"] is not None), key=_size_of, default=None)
    if main is None or (time := main["time"]) is None or (throughput := main["throughput"]) is None:
        return "Nothing could be measured."
    unit = "tokens/s" if options.is_attention else "calls/s"
    at = f" at {main.shape.sequence} tokens" if main.shape.sequence else ""
    rate = format_scaled(throughput.value, RATE_SCALES, throughput.low, throughput.high, 3)
    done = f"{name_ranks(options, main)}: {rate} {unit}{at}, {format_time(time.value)} per call"
    if not analysis.scaled:
        return f"{done}; no speedup was requested (use --nproc 2)."
    return f"{done}; the speedup is unknown: {analysis.scaled[0].missing_reason('efficiency')}."


MIN_REPEATS = 2
"""Starts that an interval needs: a single start says nothing about the next."""

GATE_REPEATS = 5
"""Starts that a gate plans: with two or three, Student's t is so wide that hardly anything is decided."""


@dataclass(frozen=True)
class ScalingGate:
    """The answer: no only where a whole interval lies below; yes where every whole interval lies above."""

    verdict: Verdict
    sentence: str


def refuse_blind_gate(least: float | None, repeat: int | None) -> None:
    """Refuse a gate that can never fail, before anything is measured.

    Raises:
        BadInput: A gate with so few starts that there is no interval; null repeats: as many as a gate plans.
    """
    if least is not None and repeat is not None and repeat < MIN_REPEATS:
        raise BadInput(
            f"--min-efficiency can never fail with --repeat {repeat}, which gives no interval over starts. "
            f"Use --repeat {GATE_REPEATS}, the default of a gate."
        )


def judge_gated_efficiency(efficiency: Estimate | None, least: float) -> Verdict:
    """Return a gate's answer for one shape: an interval within one start decides nothing."""
    return judge_at_least(efficiency, least) if efficiency is not None and is_over_starts(efficiency) else "unsure"


def evaluate_gate(options: ScalingOptions, analysis: ScalingAnalysis) -> ScalingGate | None:
    """Return the gate's answer; null where none was requested."""
    least = options.min_efficiency
    if least is None:
        return None
    requirement = f"the required efficiency of {format_percent(least, digits=3)}"
    if not analysis.scaled:
        return ScalingGate("unsure", f"Inconclusive for {requirement}: only one rank was measured.")
    by_verdict: dict[Verdict, list[str]] = {"no": [], "unsure": [], "yes": []}
    for result in analysis.scaled:
        efficiency = result["efficiency"]
        value = percent_cell(efficiency) or result.missing_reason("efficiency")
        doubt = "" if efficiency is None or is_over_starts(efficiency) else ", without an interval over starts"
        clause = f"{format_shape(options, result.shape)}: {value}{doubt}"
        by_verdict[judge_gated_efficiency(efficiency, least)].append(clause)
    if by_verdict["no"]:
        return ScalingGate("no", f"Below {requirement}: {'; '.join(by_verdict['no'])}.")
    if by_verdict["unsure"]:
        return ScalingGate("unsure", f"Inconclusive for {requirement}: {'; '.join(by_verdict['unsure'])}.")
    return ScalingGate("yes", f"Every shape reaches {requirement}.")


EXPECTED_EFFICIENCY = 0.7
"""The efficiency that shapes are judged by where no gate sets another."""
SMALL_SHARE = 0.1
"""Exposed communication below this share of the time is called small."""
JUDGED_NUMBERS = ("speedup", "efficiency", "exposed_share")
"""Numbers with a claim of their own."""


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


def _finding_builder(options: ScalingOptions, shape: ScalingShape, records: tuple[str, ...]) -> Callable[..., Finding]:
    """Return a function that builds the findings of a shape."""
    of_shape = {"sequence": shape.sequence or None, "world": shape.world, "ring": shape.ring, "mode": options.mode}

    def build(
        kind: str, claim: str, verdict: Verdict, estimate: Estimate | None, reason: str | None = None, **facts: Scalar
    ) -> Finding:
        return Finding(
            kind=kind,
            claim=f"{format_shape(options, shape)}: {claim}",
            estimate=estimate,
            verdict=verdict,
            reason=reason,
            records=records,
            facts={**of_shape, **facts},
        )

    return build


def _finding_trials(analysis: ScalingAnalysis, result: AnalysedShape) -> tuple[str, ...]:
    ring = ScalingShape(result.shape.sequence, result.shape.ring, result.shape.ring)
    return analysis.timings.trials(result.shape, result.shape.alone, *([ring] if result.shape.ring > 1 else []))


def _gate_findings(options: ScalingOptions, analysis: ScalingAnalysis) -> Iterator[Finding]:
    answer, least = evaluate_gate(options, analysis), options.min_efficiency
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
    """Return what is claimed of several ranks: that they are faster, efficient, and expose little communication."""
    least = options.min_efficiency or EXPECTED_EFFICIENCY
    claims: dict[str, tuple[str, Verdict]] = {
        "speedup": ("faster than one rank", _judge_above(result["speedup"], 1.0)),
        "efficiency": (
            f"efficiency is at least {format_percent(least, digits=3)}",
            judge_at_least(result["efficiency"], least),
        ),
        "exposed_share": (
            f"exposed communication takes less than {format_percent(SMALL_SHARE)} of the time",
            _judge_below(result["exposed_share"], SMALL_SHARE),
        ),
    }
    build = _finding_builder(options, result.shape, _finding_trials(analysis, result))
    for name, (claim, verdict) in claims.items():
        yield build(name, claim, verdict, result[name], result.missing_reason(name))


def _judge_above(number: Estimate | None, edge: float) -> Verdict:
    if number is None or number.bounds is None:
        return "unsure"
    low, high = number.bounds
    return "yes" if low > edge else "no" if high < edge else "unsure"


def _judge_below(number: Estimate | None, edge: float) -> Verdict:
    opposite: dict[Verdict, Verdict] = {"yes": "no", "no": "yes", "unsure": "unsure"}
    return opposite[_judge_above(number, edge)]


def _check_findings(options: ScalingOptions, analysis: ScalingAnalysis, result: AnalysedShape) -> Iterator[Finding]:
    """Return whether a shape was measured, whether its results are correct, and whether it received excess bytes."""
    records, facts = analysis.timings.trials(result.shape), result.facts
    build = _finding_builder(options, result.shape, records)
    if facts is None:
        verdict: Verdict = "no" if result.status == "failed" else "unsure"
        yield build("status", "it can be measured", verdict, None, result.missing_reason("time"), status=result.status)
        return
    for name, check in facts.checks.items():
        what = {"forward": "forward is", "total": "forward and gradients are"}.get(name, "the result is")
        error = _plain_estimate(check.error, "", f"{check.measure} relative to float64, worst of all ranks")
        passed: Verdict = "yes" if check.passed else "no"
        yield build(f"check_{name}", f"{what} correct", passed, error, tolerance=check.tolerance)
    if facts.received_bytes is not None and facts.expected_bytes is not None:
        excess = {"byte_inflation": facts.byte_inflation, "flop_inflation": facts.flop_inflation}
        yield build(
            "received_bytes",
            "ranks receive no more bytes than required",
            "yes" if facts.received_bytes <= facts.expected_bytes else "no",
            _plain_estimate(facts.received_bytes, "B", "counted when transfers were posted, all ranks, one call"),
            expected_bytes=facts.expected_bytes,
            **excess,
        )


def _plain_estimate(value: float, unit: str, method: str) -> Estimate:
    return Estimate(value=value, low=None, high=None, unit=unit, scope="run", method=method, n=1)


def _number_findings(options: ScalingOptions, analysis: ScalingAnalysis, result: AnalysedShape) -> Iterator[Finding]:
    """Return every other number, and whether it has an interval."""
    if result.facts is None:
        return
    build = _finding_builder(options, result.shape, _finding_trials(analysis, result))
    for name, quantity in QUANTITIES.items():
        estimate = result[name]
        if name not in JUDGED_NUMBERS and (estimate is not None or result.shape.world > 1):
            verdict: Verdict = "yes" if estimate is not None and estimate.bounds is not None else "unsure"
            yield build(name, f"{quantity.words} has an interval", verdict, estimate, result.missing_reason(name))
    build = _finding_builder(options, result.shape, analysis.timings.trials(result.shape))
    for memory in result.facts.memory:
        claim = f"the allocator reports the peak memory of rank {memory.rank}"
        sizes = {name: getattr(memory, name) for name in ("allocated_mib", "reserved_mib", "process_mib", "device_mib")}
        if memory.allocated_mib is None:
            reason = "the CPU allocator counts nothing"
            yield build("memory", claim, "unsure", None, reason, rank=memory.rank, **sizes)
        else:
            peak = _plain_estimate(memory.allocated_mib, "MiB", "the allocator")
            yield build("memory", claim, "yes", peak, rank=memory.rank, **sizes)


def _prediction_findings(options: ScalingOptions, analysis: ScalingAnalysis) -> Iterator[Finding]:
    verdicts: dict[str, Verdict] = {"within": "yes", "faster": "no", "slower": "no", "unknown": "unsure"}
    for score in analysis.scores:
        build = _finding_builder(options, score.shape, analysis.timings.trials(score.shape))
        reason = None if score.outcome == "within" else f"measured: {score.outcome}"
        claim = "it takes as long as predicted"
        yield build("prediction", claim, verdicts[score.outcome], score.predicted.time_s, reason, error=score.error)


def _skipped_findings(options: ScalingOptions) -> Iterator[Finding]:
    for shape in list_skipped(options):
        (sentence,) = describe_skipped([shape])
        yield Finding(
            kind="skipped",
            claim=f"{sentence.partition(':')[0]} can be measured here",
            estimate=None,
            verdict="unsure",
            reason=f"skipped: {shape.reason}",
            records=(),
            facts={"world": shape.world, "ring": shape.ring},
        )
