"""The page of ``assay scaling run`` and its tables: speedup, factors, communication, memory, checks, predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import BYTE_SCALES, format_change, format_percent, format_scaled
from assay.core.page import Column, Page, Section, Table, Text
from assay.experiments.reporting import CLAIM_TONES, compose_page, monitor_table, table_columns
from assay.experiments.scaling.estimates import (
    EFFICIENCY_FACTORS,
    ScalingNumber,
    format_energy_cell,
    format_factor_cell,
    format_percent_cell,
    format_rate_cell,
    format_ratio_cell,
    format_time_cell,
    without_interval,
)
from assay.experiments.scaling.figures import draw_run_figures, draw_samples, draw_timeline
from assay.experiments.scaling.findings import EXPECTED_EFFICIENCY, evaluate_gate, find_largest_shape, judge_efficiency
from assay.experiments.scaling.plan import describe_skipped, format_shape_short, list_skipped

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Findings
    from assay.experiments.scaling.analysis import AnalysedShape, ScalingAnalysis
    from assay.experiments.scaling.forecast import PredictionScore
    from assay.experiments.scaling.options import ScalingOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


def shape_heading(options: ScalingOptions) -> str:
    """Return the heading of the column that names shapes."""
    if not options.is_attention:
        return "ranks"
    return "tokens a rank: ranks" if options.mode == "weak" else "tokens: ranks"


def label_shape(options: ScalingOptions, result: AnalysedShape) -> str:
    """Name a shape so that its row can be told from all others."""
    return format_shape_short(result.shape, is_attention=options.is_attention)


def describe_intervals(options: ScalingOptions, analysis: ScalingAnalysis) -> str:
    """Say what intervals are of, or why there is none."""
    times = [result["time"] for result in analysis.all if result["time"].estimate is not None]
    if times and all(result.bounds is None for result in times):
        why = times[0].unsure_reason or "no interval"
        return f"{why[:1].upper()}{why[1:]}."
    if options.repeat > 1:
        return f"95 % intervals over {options.repeat} repeats, each started afresh (Student's t)."
    return "95 % intervals within one start of each, which say nothing of the next start; --repeat 3 gives those."


def speedup_table(options: ScalingOptions, analysis: ScalingAnalysis) -> Table:
    """Return the answer: time, throughput, speedup and efficiency of every shape."""
    least = options.min_efficiency or EXPECTED_EFFICIENCY
    unit = "tokens/s" if options.is_attention else "calls/s"
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for result in analysis.all:
        if result.facts is None:
            rows.append((label_shape(options, result), result.status or "not yet measured", None, None, None))
            tones.append("bad" if result.status == "failed" else "unsure")
            continue
        several = result.shape.world > 1
        rows.append(
            (
                label_shape(options, result),
                format_time_cell(without_interval(result["time"])),
                format_rate_cell(without_interval(result["throughput"])),
                format_ratio_cell(result["speedup"]),
                format_percent_cell(result["efficiency"]),
            )
        )
        tones.append(CLAIM_TONES[judge_efficiency(result["efficiency"], least)] if several else "plain")
    passes = ", forward and backward" if options.is_attention else ""
    return Table(
        title=f"What more ranks buy, {options.mode} scaling: {options.subject.label}",
        columns=table_columns(shape_heading(options), "time", unit, "speedup", "efficiency"),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            f"Time: median over iterations of the slowest rank{passes}. Speedup: {unit} over one rank's; efficiency: "
            f"speedup over ranks. {describe_intervals(options, analysis)} Marked against an "
            f"efficiency of {format_percent(least, digits=3)}."
        ),
    )


FACTOR_TITLES = ("shards", "contention", "balance", "exposed", "rest")
FACTOR_NOTE = (
    "Their product is the efficiency. In turn: what is left of it by smaller shapes, neighbours, waiting for the "
    "slowest rank, transfers that are not hidden, and all else."
)


def factor_table(options: ScalingOptions, analysis: ScalingAnalysis, *, with_intervals: bool) -> list[Element]:
    """Return the factors of each efficiency: short for the answer, with intervals for who asks more."""
    measured = [result for result in analysis.measured if result["split_shard"].estimate is not None]
    if not measured:
        return []
    keep = (lambda result: result) if with_intervals else without_interval
    rows = tuple(
        (label_shape(options, result), *(format_factor_cell(keep(result[name])) for name in EFFICIENCY_FACTORS))
        for result in measured
    )
    meant = (
        "Shards: a rank's share computed alone, against the whole computed alone over the ranks of a ring. Contention: "
        "that share alone, against the same beside neighbours. Balance: mean computing, against the slowest rank's. "
        "Exposed: computing, against computing and transfers that are not hidden. Rest: those two, against the time."
    )
    return [
        Table(
            title=f"Where the efficiency goes: its factors{', with intervals' if with_intervals else ''}",
            columns=table_columns(shape_heading(options), *FACTOR_TITLES),
            rows=rows,
            note=meant if with_intervals else FACTOR_NOTE,
        )
    ]


def _received_cell(result: AnalysedShape) -> str | None:
    received = None if result.facts is None else result.facts.received_bytes
    return None if received is None else format_scaled(received, BYTE_SCALES)


def communication_tables(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the three runs of one plan: all of it, computing only, transfers only; and what follows from them."""
    sent = [result for result in analysis.scaled if result["communication"].estimate is not None]
    silent: dict[str, list[str]] = {}
    for result in analysis.scaled:
        if result.facts is not None and result not in sent:
            silent.setdefault(result["communication"].reason or "", []).append(label_shape(options, result))
    notes = [Text(text=f"{reason[:1].upper()}{reason[1:]} ({'; '.join(those)}).") for reason, those in silent.items()]
    if not sent:
        return list(notes)
    return [
        Table(
            title="Three runs of one plan",
            columns=table_columns(shape_heading(options), "all of it", "computing only", "transfers only"),
            rows=tuple(
                (
                    label_shape(options, result),
                    *(format_time_cell(result[name]) for name in ("time", "compute", "communication")),
                )
                for result in sent
            ),
            note="Each the median over iterations of its slowest rank, taken in turns in one process.",
        ),
        Table(
            title="What communication costs",
            columns=table_columns(shape_heading(options), "exposed", "of the time", "hidden", "received"),
            rows=tuple(
                (
                    label_shape(options, result),
                    format_time_cell(result["exposed"]),
                    format_percent_cell(result["exposed_share"]),
                    format_percent_cell(result["overlap"]),
                    _received_cell(result),
                )
                for result in sent
            ),
            note=(
                "Exposed: all of it less computing only. Hidden: the share of the transfers that is not exposed; below "
                "0 % both together take longer than one after the other. Received: by all ranks in one call."
            ),
        ),
        *notes,
    ]


def describe_sharing(options: ScalingOptions) -> str:
    """Say how many ranks share how many devices."""
    there = len(options.devices)
    one, several = ("GPU", "GPUs") if options.kind == "cuda" else ("group of cores", "groups of cores")
    return f"{options.local_rank_count} ranks share {there} {one if there == 1 else several}"


def note_texts(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the gate's answer, what was skipped, and what crowds the cores."""
    texts: list[Element] = []
    answer = evaluate_gate(options, analysis)
    if answer is not None:
        texts.append(Text(text=answer.sentence, tone=CLAIM_TONES[answer.verdict]))
    texts += [Text(text=f"Skipped: {sentence}") for sentence in describe_skipped(list_skipped(options))]
    if options.local_rank_count > len(options.devices):
        texts.append(Text(text=f"{describe_sharing(options)}: efficiency counts ranks, not devices.", tone="unsure"))
    if options.link is None and options.is_attention and analysis.scaled:
        texts.append(Text(text="Nothing was predicted before it was measured, as no --link says what transfers take."))
    return texts


OUTCOME_TITLES = {"within": "within", "faster": "faster", "slower": "slower", "unknown": "not sure"}


def check_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the errors of forward and gradients, as they were before anything was timed."""
    names = {"forward": "forward", "total": "forward and gradients"} if options.is_attention else {"total": "result"}
    checked = [result.facts.checks for result in analysis.all if result.facts is not None and result.facts.checks]
    if not checked:
        return []
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for result in analysis.all:
        checks = result.facts.checks if result.facts is not None else {}
        if checks:
            errors = [f"{checks[name].error:.2g}" if name in checks else None for name in names]
            most = max(check.tolerance for check in checks.values())
            rows.append((label_shape(options, result), *errors, f"{most:.2g}"))
            tones.append("good" if all(check.passed for check in checks.values()) else "bad")
    measures = dict.fromkeys(check.measure for checks in checked for check in checks.values())
    return [
        Table(
            title="Errors against a float64 reference, before anything was timed",
            columns=table_columns(shape_heading(options), *names.values(), "at most"),
            rows=tuple(rows),
            tones=tuple(tones),
            note=f"The worst of all ranks: {'; '.join(measures)}. A result that is wrong is not timed.",
        )
    ]


def bytes_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return what ranks received against what the formula says they must, where there are rings."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for result in analysis.scaled:
        facts = result.facts
        if result.shape.ring > 1 and facts is not None and facts.received_bytes is not None:
            rows.append(
                (
                    label_shape(options, result),
                    f"{facts.received_bytes:,.0f}",
                    None if facts.expected_bytes is None else f"{facts.expected_bytes:,.0f}",
                    None if facts.byte_inflation is None else f"{facts.byte_inflation:.3g}",
                )
            )
            tones.append("good" if facts.received_bytes == facts.expected_bytes else "bad")
    if not rows:
        return []
    return [
        Table(
            title="Bytes that ranks received in one call",
            columns=table_columns(shape_heading(options), "received", "by the formula", "over least"),
            rows=tuple(rows),
            tones=tuple(tones),
            note="Of all ranks together, counted as transfers were posted; a dash: nothing need be sent.",
        )
    ]


def passes_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the times of both passes, and what the speedup says of the share that is not shared out."""
    measured = [result for result in analysis.all if result["forward"].estimate is not None]
    if not measured:
        return []
    rows = tuple(
        (
            label_shape(options, result),
            format_time_cell(result["forward"]),
            format_time_cell(result["backward"]),
            format_time_cell(result["time"]),
            format_percent_cell(result["karp_flatt"]),
        )
        for result in measured
    )
    return [
        Table(
            title="Both passes",
            columns=table_columns(shape_heading(options), "forward", "backward", "both", "Karp–Flatt"),
            rows=rows,
            note=(
                "Medians over iterations of the slowest rank; backward: both less forward. Karp–Flatt: "
                "the serial share of a ring's work that would explain its speedup; a dash where nothing is shared out."
            ),
        )
    ]


def memory_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the most that each rank held."""
    on_gpu = options.kind == "cuda"
    rows: list[tuple[Cell, ...]] = []
    for result in analysis.all:
        for memory in result.facts.memory if result.facts is not None else ():
            gpu = (memory.allocated_mib, memory.reserved_mib, memory.device_mib) if on_gpu else ()
            rows.append((label_shape(options, result), memory.rank, memory.device, *gpu, memory.process_mib))
    if not rows:
        return []
    titles = ("allocated, MiB", "reserved, MiB", "in use by NVML, MiB") if on_gpu else ()
    head = table_columns(shape_heading(options), "rank", "device", *titles, "process, MiB")
    words_in = {shape_heading(options), "device"}
    note = "Process: the most that its host memory held, all subjects of the trial and the check included."
    if on_gpu:
        note += (
            " Allocated and reserved: the allocator's peaks in one call. NVML: of the whole device, whoever uses it."
        )
    return [
        Table(
            title="Peak memory of each rank",
            columns=tuple(c.model_copy(update={"numeric": c.title not in words_in}) for c in head),
            rows=tuple(rows),
            note=note,
        )
    ]


def arithmetic_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return operations a second, how much of what is possible that is, and whether any is done twice."""
    measured = [result for result in analysis.all if result.facts is not None and result["tflops"].estimate is not None]
    if not measured:
        return []
    rows = tuple(
        (
            label_shape(options, result),
            format_rate_cell(_to_flop_per_s(result["tflops"])),
            format_ratio_cell(result["mfu_matmul"]),
            format_ratio_cell(result["mfu_datasheet"]),
            result.facts.flop_inflation if result.facts is not None else None,
        )
        for result in measured
    )
    reasons = dict.fromkeys(measured[0][name].reason for name in ("mfu_matmul", "mfu_datasheet"))
    why = "; ".join(reason for reason in reasons if reason)
    return [
        Table(
            title="Arithmetic",
            columns=table_columns(
                shape_heading(options), "FLOP/s", "of a matmul, %", "of the data sheet, %", "FLOP over least"
            ),
            rows=rows,
            note=(
                "FLOP/s: least operations of forward and backward, all ranks. FLOP over least: done by all ranks. "
                + (f"Not known: {why}." if why else "")
            ).strip(),
        )
    ]


def _to_flop_per_s(tflops: ScalingNumber) -> ScalingNumber:
    estimate = tflops.estimate
    if estimate is None:
        return tflops
    ends = {end: None if (v := getattr(estimate, end)) is None else v * 1e12 for end in ("low", "high")}
    return ScalingNumber(estimate.model_copy(update={"value": estimate.value * 1e12, **ends}))


def energy_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return the energy of one token."""
    measured = [result for result in analysis.all if result["energy_per_token"].estimate is not None]
    if measured:
        unit = "J a token" if options.is_attention else "J a call"
        rows = tuple(
            (label_shape(options, result), format_energy_cell(result["energy_per_token"])) for result in measured
        )
        method = measured[0]["energy_per_token"].estimate
        note = None if method is None else f"{method.method}."
        return [
            Table(
                title=f"Energy, {unit}", columns=table_columns(shape_heading(options), "energy"), rows=rows, note=note
            )
        ]
    reason = next((result["energy_per_token"].reason for result in analysis.all), None)
    return [Text(text=f"Energy of a token: {reason}.")] if reason else []


def prediction_table(options: ScalingOptions, analysis: ScalingAnalysis) -> list[Element]:
    """Return what was predicted beside what was measured."""
    if not analysis.scores:
        return []
    tones: dict[str, Tone] = {"within": "good", "unknown": "unsure"}
    assumptions = dict.fromkeys(assumption for score in analysis.scores for assumption in score.predicted.assumptions)
    return [
        Table(
            title="What was predicted before it was measured",
            columns=(*table_columns(shape_heading(options), "predicted", "measured", "error"), Column(title="it was")),
            rows=tuple(_prediction_row(options, score) for score in analysis.scores),
            tones=tuple(tones.get(score.outcome, CLAIM_TONES["no"]) for score in analysis.scores),
            note=" ".join(f"{assumption.rstrip('.')}." for assumption in assumptions),
        )
    ]


def _prediction_row(options: ScalingOptions, score: PredictionScore) -> tuple[Cell, ...]:
    predicted = score.predicted.time_s
    ends = {end: None if (v := getattr(predicted, end)) is None else v * 1e6 for end in ("low", "high")}
    in_us = ScalingNumber(predicted.model_copy(update={"value": predicted.value * 1e6, **ends}))
    return (
        format_shape_short(score.shape, is_attention=options.is_attention),
        format_time_cell(in_us),
        format_time_cell(score.measured),
        None if score.error is None else format_change(1 + score.error),
        OUTCOME_TITLES[score.outcome],
    )


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
    answer = (speedup_table(options, analysis), *short, *note_texts(options, analysis))
    factors = tuple(factor_table(options, analysis, with_intervals=True))
    return [
        Section(title="Results", elements=answer),
        Section(title="Over ranks", elements=(*figures.scaling, *passes_table(options, analysis))),
        Section(title="Where the efficiency goes", elements=factors),
        Section(title="Communication", elements=tuple(communication_tables(options, analysis))),
        Section(title="Predicted and measured", elements=tuple(prediction_table(options, analysis))),
        Section(title="Is it right?", elements=(*check_table(options, analysis), *bytes_table(options, analysis))),
        Section(title="Memory", elements=(*memory_table(options, analysis), *figures.memory)),
        Section(
            title="Arithmetic and energy",
            elements=(*arithmetic_table(options, analysis), *energy_table(options, analysis)),
        ),
        Section(title="At a glance", elements=figures.heat_maps),
        Section(title="Every sample", elements=tuple(draw_samples(options, analysis))),
        Section(title="What ran when", elements=_timeline_elements(analysis, records)),
    ]


def _lead_tone(options: ScalingOptions, analysis: ScalingAnalysis) -> Tone:
    if not any(result.facts is not None for result in analysis.all):
        return "bad"
    if not analysis.measured:
        return "plain"
    return CLAIM_TONES[
        judge_efficiency(find_largest_shape(analysis)["efficiency"], options.min_efficiency or EXPECTED_EFFICIENCY)
    ]


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
        "calls": f"{options.warmup_runs} to warm up, {options.benchmark_runs} timed, of each subject",
        "repeats": str(options.repeat),
        "isolation asked": options.isolation,
        "seed": str(options.seed),
    }
