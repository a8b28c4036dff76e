"""The page of ``assay scaling run`` and its tables: speedup, factors, communication, memory, checks, predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from assay._version import __version__
from assay.core.format import (
    BYTE_SCALES,
    RATE_SCALES,
    format_change,
    format_count,
    format_joules,
    format_percent,
    format_ratio,
    format_scaled,
    format_time,
    percent_cell,
    ratio_cell,
    time_cell,
)
from assay.core.page import Page, Section, StripPlot, StripRow, Text, Timeline, TimelineBar, build_table
from assay.experiments.reporting import CLAIM_TONES, compose_page, monitor_table, sensor_axis, sensor_lines
from assay.experiments.scaling.findings import EXPECTED_EFFICIENCY, evaluate_gate, find_largest_shape
from assay.experiments.scaling.plan import describe_skipped, format_shape, format_shape_short, list_skipped
from assay.experiments.scaling.result_rows import ScalingFigures, build_run_rows, draw_figures
from assay.experiments.scaling.timings import EFFICIENCY_FACTORS, judge_at_least, reduce_ranks
from assay.stats.intervals import median_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Estimate, Findings
    from assay.experiments.scaling.analysis import AnalysedShape, PredictionScore, RankMemory, ScalingAnalysis
    from assay.experiments.scaling.plan import ScalingOptions
    from assay.experiments.scaling.timings import ShapeTiming
    from assay.machine.model import Machine
    from assay.store.records import Records

    CellOfShape = Callable[[AnalysedShape], Cell]


def shape_heading(options: ScalingOptions) -> str:
    """Return the heading of the column that names shapes."""
    if not options.is_attention:
        return "ranks"
    return "tokens per rank: ranks" if options.mode == "weak" else "tokens: ranks"


def _shape_table(
    options: ScalingOptions,
    title: str,
    results: Sequence[AnalysedShape],
    columns: Mapping[str, CellOfShape],
    *,
    note: str | None,
    tone: Callable[[AnalysedShape], Tone] | None = None,
) -> list[Element]:
    """Return a table with one row per shape; nothing without shapes."""
    if not results:
        return []
    named: dict[str, CellOfShape] = {
        shape_heading(options): lambda result: format_shape_short(options, result.shape),
        **columns,
    }
    return [build_table(title, results, named, numeric=tuple(columns), tone=tone, note=note)]


def _column(name: str, write: Callable[[Estimate | None], str | None]) -> CellOfShape:
    return lambda result: write(result[name])


def rate_cell(rate: Estimate | None) -> str | None:
    """Write a rate with a prefix: ``166 k (163–170)``."""
    return None if rate is None else format_scaled(rate.value, RATE_SCALES, rate.low, rate.high, 3)


def factor_cell(factor: Estimate | None, *, with_interval: bool) -> str | None:
    """Write a factor of efficiency: ``0.62× (0.49–0.78)``; one that is 1 by definition as "1"."""
    if factor is None or (factor.value == 1 and factor.bounds in {None, (1.0, 1.0)}):
        return None if factor is None else "1"
    return ratio_cell(factor) if with_interval else format_ratio(factor.value)


def describe_intervals(options: ScalingOptions, analysis: ScalingAnalysis) -> str:
    """Describe the intervals, or say why there are none."""
    timed = [result for result in analysis.all if result["time"] is not None]
    if timed and not any((time := result["time"]) is not None and time.bounds for result in timed):
        why = timed[0].missing_reason("time") or "no interval"
        return f"{why[:1].upper()}{why[1:]}."
    if options.repeat > 1:
        return f"95 % intervals over {options.repeat} repeats, each started afresh (Student's t)."
    return "95 % intervals within one start, which say nothing about the next start (use --repeat 3)."


def speedup_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the answer: time, throughput, speedup and efficiency of every shape."""
    least = options.min_efficiency or EXPECTED_EFFICIENCY
    unit = "tokens/s" if options.is_attention else "calls/s"

    def time_or_status(result: AnalysedShape) -> str | None:
        if result.facts is None:
            return result.status or "not yet measured"
        return None if (time := result["time"]) is None else format_time(time.value)

    def rate(throughput: Estimate | None) -> str | None:
        return None if throughput is None else format_scaled(throughput.value, RATE_SCALES, digits=3)

    def tone(result: AnalysedShape) -> Tone:
        if result.facts is None:
            return "bad" if result.status == "failed" else "unsure"
        return CLAIM_TONES[judge_at_least(result["efficiency"], least)] if result.shape.world > 1 else "plain"

    passes = ", forward and backward" if options.is_attention else ""
    return _shape_table(
        options,
        f"Speedup, {options.mode} scaling: {options.subject.label}",
        analysis.all,
        {
            "time": time_or_status,
            unit: _column("throughput", rate),
            "speedup": _column("speedup", ratio_cell),
            "efficiency": _column("efficiency", percent_cell),
        },
        tone=tone,
        note=(
            f"Time: median over iterations of the slowest rank{passes}. Speedup: {unit} relative to one rank; "
            f"efficiency: speedup per rank. {describe_intervals(options, analysis)} "
            f"Colour: efficiency against {format_percent(least, digits=3)}."
        ),
    )


FACTOR_TITLES = ("shards", "contention", "balance", "exposed", "rest")
FACTOR_NOTE = (
    "Their product is the efficiency. Losses from smaller shards, neighbouring ranks, waiting for the slowest rank, "
    "exposed communication, and everything else."
)
FACTOR_DEFINITIONS = (
    "Shards: the whole computed alone, per rank of a ring, relative to one shard alone. Contention: that shard alone, "
    "relative to the same beside other ranks. Balance: mean computation relative to the slowest rank's. Exposed: "
    "computation relative to computation and exposed transfers. Rest: those two relative to the time."
)


def factor_table(options: ScalingOptions, analysis: ScalingAnalysis, *, with_intervals: bool) -> list[Element]:
    """Return the factors of each efficiency: short for the answer, and with intervals and definitions."""
    columns: dict[str, CellOfShape] = {
        title: _column(name, lambda factor: factor_cell(factor, with_interval=with_intervals))
        for title, name in zip(FACTOR_TITLES, EFFICIENCY_FACTORS, strict=True)
    }
    return _shape_table(
        options,
        f"Factors of the efficiency{', with intervals' if with_intervals else ''}",
        [result for result in analysis.measured if result["split_shard"] is not None],
        columns,
        note=FACTOR_DEFINITIONS if with_intervals else FACTOR_NOTE,
    )


def communication_tables(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the times of everything, of computation alone and of transfers alone; and the exposed communication."""

    def received(result: AnalysedShape) -> str | None:
        count = None if result.facts is None else result.facts.received_bytes
        return None if count is None else format_scaled(count, BYTE_SCALES)

    sent = [result for result in analysis.scaled if result["communication"] is not None]
    silent: dict[str, list[str]] = {}
    for result in analysis.scaled:
        if result.facts is not None and result not in sent:
            silent.setdefault(result.missing_reason("communication") or "", []).append(
                format_shape_short(options, result.shape)
            )
    return [
        *_shape_table(
            options,
            "Computation and transfers apart",
            sent,
            {
                "both": _column("time", time_cell),
                "computation alone": _column("compute", time_cell),
                "transfers alone": _column("communication", time_cell),
            },
            note="Medians over iterations of the slowest rank, measured in turns in one process.",
        ),
        *_shape_table(
            options,
            "Exposed communication",
            sent,
            {
                "exposed": _column("exposed", time_cell),
                "of the time": _column("exposed_share", percent_cell),
                "overlapped": _column("overlap", percent_cell),
                "received": received,
            },
            note=(
                "Exposed: both minus computation alone. Overlapped: the share of the transfers that is not exposed; "
                "below 0 % both together take longer than one after the other. Received: by all ranks in one call."
            ),
        ),
        *(Text(text=f"{reason[:1].upper()}{reason[1:]} ({'; '.join(labels)}).") for reason, labels in silent.items()),
    ]


def describe_sharing(options: ScalingOptions) -> str:
    """Say how many ranks share how many devices."""
    count = len(options.devices)
    groups = "group of cores" if count == 1 else "groups of cores"
    devices = format_count(count, "GPU") if options.kind == "cuda" else f"{count} {groups}"
    return f"{options.local_rank_count} ranks share {devices}"


def note_texts(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the gate's answer, what was skipped, and whether ranks share devices."""
    texts: list[Element] = []
    answer = evaluate_gate(options, analysis)
    if answer is not None:
        texts.append(Text(text=answer.sentence, tone=CLAIM_TONES[answer.verdict]))
    texts += [Text(text=f"Skipped: {sentence}") for sentence in describe_skipped(list_skipped(options))]
    if options.local_rank_count > len(options.devices):
        texts.append(Text(text=f"{describe_sharing(options)}: efficiency is per rank, not per device.", tone="unsure"))
    if options.link is None and options.is_attention and analysis.scaled:
        texts.append(Text(text="No predictions: they need the speed of the link (--link)."))
    return texts


def check_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the errors of forward and gradients, as they were before anything was timed."""
    checks = {r.shape: r.facts.checks for r in analysis.all if r.facts is not None and r.facts.checks}
    names = {"forward": "forward", "forward and gradients": "total"} if options.is_attention else {"result": "total"}
    measures = dict.fromkeys(check.measure for by_name in checks.values() for check in by_name.values())

    def error(name: str) -> CellOfShape:
        return lambda result: f"{check.error:.2g}" if (check := checks[result.shape].get(name)) else None

    return _shape_table(
        options,
        "Errors relative to a float64 reference, before anything was timed",
        [result for result in analysis.all if result.shape in checks],
        {title: error(name) for title, name in names.items()}
        | {"tolerance": lambda result: f"{max(check.tolerance for check in checks[result.shape].values()):.2g}"},
        tone=lambda result: "good" if all(check.passed for check in checks[result.shape].values()) else "bad",
        note=f"Worst of all ranks: {'; '.join(measures)}. A wrong result is not timed.",
    )


def bytes_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the bytes that ranks received, and those that the algorithm requires, where there are rings."""
    facts = {r.shape: r.facts for r in analysis.scaled if r.facts is not None and r.facts.received_bytes is not None}

    def count(name: str, style: str = ",.0f") -> CellOfShape:
        return lambda result: None if (n := getattr(facts[result.shape], name)) is None else format(n, style)

    return _shape_table(
        options,
        "Bytes received by ranks in one call",
        [result for result in analysis.scaled if result.shape.ring > 1 and result.shape in facts],
        {
            "received": count("received_bytes"),
            "required": count("expected_bytes"),
            "received / required": count("byte_inflation", ".3g"),
        },
        tone=lambda r: "good" if facts[r.shape].received_bytes == facts[r.shape].expected_bytes else "bad",
        note="All ranks together, counted when transfers were posted; a dash: nothing has to be sent.",
    )


def passes_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the times of both passes, and the serial fraction that follows from the speedup."""
    return _shape_table(
        options,
        "Forward and backward pass",
        [result for result in analysis.all if result["forward"] is not None],
        {
            "forward": _column("forward", time_cell),
            "backward": _column("backward", time_cell),
            "both": _column("time", time_cell),
            "Karp–Flatt": _column("karp_flatt", percent_cell),
        },
        note=(
            "Medians over iterations of the slowest rank; backward: both minus forward. Karp–Flatt: the serial "
            "fraction of a ring's work that explains its speedup; a dash where no sequence is sharded."
        ),
    )


def memory_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the peak memory of each rank."""
    rows = [(r, memory) for r in analysis.all if r.facts is not None for memory in r.facts.memory]
    if not rows:
        return []
    columns: dict[str, Callable[[tuple[AnalysedShape, RankMemory]], Cell]] = {
        shape_heading(options): lambda row: format_shape_short(options, row[0].shape),
        "rank": lambda row: row[1].rank,
        "device": lambda row: row[1].device,
    }
    note = "Process: peak host memory, including all subjects of the trial and the check."
    if options.kind == "cuda":
        columns |= {
            "allocated, MiB": lambda row: row[1].allocated_mib,
            "reserved, MiB": lambda row: row[1].reserved_mib,
            "in use by NVML, MiB": lambda row: row[1].device_mib,
        }
        note += " Allocated and reserved: the allocator's peaks in one call. NVML: the whole device, all processes."
    columns["process, MiB"] = lambda row: row[1].process_mib
    words = {shape_heading(options), "device"}
    return [build_table("Peak memory per rank", rows, columns, numeric=set(columns) - words, note=note)]


def arithmetic_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return FLOP/s, their share of the device's peak, and whether any operation is done twice."""
    measured = [result for result in analysis.all if result.facts is not None and result["tflops"] is not None]
    reasons = (measured[0].missing_reason(name) for name in ("mfu_matmul", "mfu_datasheet")) if measured else ()
    why = "; ".join(reason for reason in dict.fromkeys(reasons) if reason)

    def share(percent: Estimate | None) -> str | None:
        return percent_cell(None if percent is None else percent.scaled("", over=100))

    def flop_rate(tflops: Estimate | None) -> str | None:
        return rate_cell(None if tflops is None else tflops.scaled("", times=1e12))

    return _shape_table(
        options,
        "Arithmetic",
        measured,
        {
            "FLOP/s": _column("tflops", flop_rate),
            "of a matmul": _column("mfu_matmul", share),
            "of the data sheet": _column("mfu_datasheet", share),
            "FLOP / minimum": lambda result: None if result.facts is None else result.facts.flop_inflation,
        },
        note=(
            "FLOP/s: minimum operations of forward and backward, all ranks. FLOP / minimum: operations of all ranks "
            f"relative to that.{f' Not available: {why}.' if why else ''}"
        ),
    )


def energy_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the energy per token."""

    def joules(energy: Estimate | None) -> str | None:
        return None if energy is None else format_joules(energy.value, energy.low, energy.high, 3)

    measured = {result: energy for result in analysis.all if (energy := result["energy_per_token"]) is not None}
    if not measured:
        reason = next((result.missing_reason("energy_per_token") for result in analysis.all), None)
        return [Text(text=f"No energy per token: {reason}.")] if reason else []
    title = f"Energy {'per token' if options.is_attention else 'per call'}"
    note = f"{next(iter(measured.values())).method}."
    return _shape_table(options, title, list(measured), {"energy": _column("energy_per_token", joules)}, note=note)


OUTCOME_TITLES = {"within": "as predicted", "faster": "faster", "slower": "slower", "unknown": "inconclusive"}
OUTCOME_TONES: dict[str, Tone] = {"within": "good", "faster": "bad", "slower": "bad", "unknown": "unsure"}


def prediction_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the predicted times beside the measured ones."""
    if not analysis.scores:
        return []
    assumptions = dict.fromkeys(assumption for score in analysis.scores for assumption in score.predicted.assumptions)
    columns: dict[str, Callable[[PredictionScore], Cell]] = {
        shape_heading(options): lambda score: format_shape_short(options, score.shape),
        "predicted": lambda score: time_cell(score.predicted.time_s.scaled("µs", times=1e6)),
        "measured": lambda score: time_cell(score.measured),
        "error": lambda score: None if score.error is None else format_change(1 + score.error),
        "outcome": lambda score: OUTCOME_TITLES[score.outcome],
    }
    return [
        build_table(
            "Predictions made before measuring",
            analysis.scores,
            columns,
            numeric=("predicted", "measured", "error"),
            tone=lambda score: OUTCOME_TONES[score.outcome],
            note=" ".join(f"{assumption.rstrip('.')}." for assumption in assumptions),
        )
    ]


MAX_STRIPS = 24


def draw_run_figures(options: ScalingOptions, analysis: ScalingAnalysis) -> ScalingFigures:
    """Return the figures that ``assay scaling analyse`` draws of a run; none with a single number of ranks."""
    if not analysis.measured:
        return ScalingFigures((), (), ())
    figures = draw_figures(build_run_rows(options, analysis, "this run", __version__, "this machine"))
    return figures if len(options.lengths) > 1 else figures._replace(heat_maps=())


def draw_samples(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the samples of each shape, of the slowest rank of each iteration; one figure per sequence."""
    shown: dict[int, list[ShapeTiming]] = {}
    for timing in sorted(analysis.timings.completed, key=lambda timing: (timing.plan.shape, timing.plan.repeat)):
        if timing.plan.kind == "ring":
            shown.setdefault(timing.plan.shape.sequence, []).append(timing)
    sequences = dict.fromkeys(result.shape.sequence for result in analysis.all)
    return [
        StripPlot(
            title=f"Samples{f' at {sequence} tokens' if sequence else ''}",
            name=f"samples_{sequence}",
            axis="time of the slowest rank",
            unit="ms",
            strips=tuple(_sample_strip(options, timing) for timing in shown[sequence][:MAX_STRIPS]),
            note="Forward and backward. One row per start, with its median and the interval of the median.",
        )
        for sequence in sequences
        if sequence in shown
    ]


def _sample_strip(options: ScalingOptions, timing: ShapeTiming) -> StripRow:
    shape = replace(timing.plan.shape, sequence=0)
    again = f", repeat {timing.plan.repeat}" if options.repeat > 1 else ""
    values = reduce_ranks(timing, "total")["slowest"] / 1e3
    low, high = median_interval(values) or (None, None)
    label, value = f"{format_shape(options, shape)}{again}", float(np.median(values))
    return StripRow(label=label, samples=tuple(values.tolist()), value=value, low=low, high=high)


def draw_timeline(analysis: ScalingAnalysis, records: Records) -> list[Element]:
    """Return when each trial ran, with the readings of the monitor."""
    if not analysis.timings.attempts:
        return []
    origin = min(record.window.start_ns for _, record in analysis.timings.attempts)
    lanes = {"ring": "shapes", "share": "shares alone", "energy": "energy", "yardstick": "matmul"}
    bars = tuple(
        TimelineBar(
            lane=lanes[plan.kind],
            label=plan.shape.name if plan.kind != "yardstick" else "matmul",
            start_s=(record.window.start_ns - origin) / 1e9,
            end_s=(record.window.end_ns - origin) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for plan, record in analysis.timings.attempts
    )
    return [
        Timeline(
            title="Timeline of the trials",
            name="timeline",
            bars=bars,
            lines=sensor_lines(records, origin),
            lines_axis=sensor_axis(records),
            note="n: tokens, p: ranks, r: ranks per ring.",
        )
    ]


def build_page(
    machine: Machine, options: ScalingOptions, analysis: ScalingAnalysis, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    return compose_page(
        machine,
        records,
        title=f"assay scaling: {options.subject.label}",
        lead=findings.headline,
        lead_tone=_lead_tone(options, analysis),
        sections=_build_sections(options, analysis, records),
        facts=_page_facts(options),
    )


def _build_sections(options: ScalingOptions, analysis: ScalingAnalysis, records: Records) -> list[Section]:
    figures = draw_run_figures(options, analysis)
    short = factor_table(options, analysis, with_intervals=False)
    elements: dict[str, Sequence[Element]] = {
        "Results": [*speedup_table(options, analysis), *short, *note_texts(options, analysis)],
        "Over ranks": [*figures.scaling, *passes_table(options, analysis)],
        "Efficiency losses": factor_table(options, analysis, with_intervals=True),
        "Communication": communication_tables(options, analysis),
        "Predictions": prediction_table(options, analysis),
        "Correctness": [*check_table(options, analysis), *bytes_table(options, analysis)],
        "Memory": [*memory_table(options, analysis), *figures.memory],
        "Arithmetic and energy": [*arithmetic_table(options, analysis), *energy_table(options, analysis)],
        "Heat maps": figures.heat_maps,
        "Samples": draw_samples(options, analysis),
        "Timeline": _timeline_elements(analysis, records),
    }
    return [Section(title=title, elements=tuple(of_section)) for title, of_section in elements.items()]


def _lead_tone(options: ScalingOptions, analysis: ScalingAnalysis) -> Tone:
    if not any(result.facts is not None for result in analysis.all):
        return "bad"
    if not analysis.measured:
        return "plain"
    least = options.min_efficiency or EXPECTED_EFFICIENCY
    return CLAIM_TONES[judge_at_least(find_largest_shape(analysis)["efficiency"], least)]


def _timeline_elements(analysis: ScalingAnalysis, records: Records) -> tuple[Element, ...]:
    labels = {record.trial: str(plan.trial.settings["phase"]) for plan, record in analysis.timings.attempts}
    traces = [trace for result in analysis.all if result.facts is not None for trace in result.facts.traces]
    notes = dict.fromkeys(note for record in records for note in record.notes)
    return (
        *draw_timeline(analysis, records),
        *monitor_table(records, labels),
        *(Text(text=f"Trace for ui.perfetto.dev or chrome://tracing: {trace}") for trace in traces),
        *(Text(text=f"Note: {note.message}.") for note in notes),
    )


def _page_facts(options: ScalingOptions) -> dict[str, str]:
    params = ", ".join(
        f"{name} {value}"
        for name, value in options.subject.params.items()
        if not options.is_attention or name not in {"sequence", "ring", "passes", "only"}
    )
    return {
        "devices": ", ".join(options.devices),
        "scaling": options.mode,
        "parameters": params or "none",
        "calls": f"{options.warmup_runs} warm-up, {options.benchmark_runs} timed, per subject",
        "repeats": str(options.repeat),
        "isolation asked": options.isolation,
        "seed": str(options.seed),
    }
