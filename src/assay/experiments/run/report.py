"""The findings and the page of ``assay run``.

The time of each workload on each device with its interval, every sample, rates, placement, failures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_list, format_percent, format_time, time_cell, unit_of
from assay.core.page import Page, Section, StripPlot, StripRow, Table, Text, Timeline, TimelineBar, build_table
from assay.core.results import Finding, Findings
from assay.experiments.base import Report
from assay.experiments.reporting import (
    CLAIM_TONES,
    CLOCK_QUANTITIES,
    TIME_AXES,
    TIME_QUANTITIES,
    compose_page,
    isolation_text,
    monitor_table,
    notes_table,
    primary_time,
    sensor_axis,
    sensor_lines,
    table_columns,
)
from assay.experiments.run.plan import (
    REFERENCE_BLOCK,
    build_blocks,
    ceiling_shares,
    compute_rates,
    measured_ceilings,
    subject_facts,
)
from assay.stats.intervals import estimate_median, median_interval, slowest_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Estimate, Record, Scope, Verdict
    from assay.core.values import Params, Subject
    from assay.experiments.run.plan import Ceilings, RunOptions
    from assay.machine.model import Machine
    from assay.stats.intervals import Samples
    from assay.store.records import Records


@dataclass(frozen=True, eq=False)
class SubjectResult:
    """One subject on one role: the records of its trials, those with a result, and its samples in µs by process."""

    subject: Subject
    index: int
    role: str
    tried: tuple[Record, ...]
    good: tuple[Record, ...]
    quantity: str
    processes: tuple[Samples, ...]


def build_report(machine: Machine, options: RunOptions, records: Records) -> Report:
    """Return the time of each workload on each device, every sample, and who ran where and when."""
    results = collect_results(options, records)
    findings = build_findings(options, results, records)
    return Report(findings, build_page(machine, options, results, findings, records))


def collect_results(options: RunOptions, records: Records) -> list[SubjectResult]:
    """Return what was measured of each subject in each role; one that was not even tried is left out."""
    tried_by_role: dict[tuple[int, str], list[Record]] = {}
    blocks = [block for block in build_blocks(options) if block.name != REFERENCE_BLOCK]
    trials = {trial.id: trial for block in blocks for trial in block.trials}
    for record in records:
        for role in trials[record.trial].roles if record.trial in trials else ():
            for index, subject in enumerate(options.subjects):
                if subject == role.subjects[0]:
                    tried_by_role.setdefault((index, role.name), []).append(record)
    names = ("ranks",) if options.ranks > 1 else options.devices
    results = []
    for index, subject in enumerate(options.subjects):
        for name in names:
            tried = tuple(tried_by_role.get((index, name), ()))
            good = tuple(record for record in tried if record.status == "ok")
            quantity = primary_time(good, name)
            processes = tuple(samples_by_process(records, good, name, quantity))
            if tried:
                results.append(SubjectResult(subject, index, name, tried, good, quantity, processes))
    return results


def build_findings(options: RunOptions, results: Sequence[SubjectResult], records: Records) -> Findings:
    """Return the time of each workload on each device, and whether it is known as exactly as was wanted."""
    most = measured_ceilings(options, records)
    findings = tuple(_subject_finding(options, result, records, most) for result in results)
    return Findings(headline=_headline(options, findings), findings=findings)


def samples_by_process(records: Records, chosen: Sequence[Record], role: str, quantity: str) -> list[Samples]:
    """Return the samples of a quantity, one array a process; over ranks the slowest of each iteration."""
    processes: list[Samples] = []
    for record in chosen:
        series = [s for s in record.series if s.role == role and s.quantity == quantity]
        processes += [
            slowest_rank([records.samples(s) for s in series if s.restart == restart])
            for restart in sorted({s.restart for s in series})
        ]
    return processes


def _subject_finding(options: RunOptions, result: SubjectResult, records: Records, most: Ceilings) -> Finding:
    """Return what is known of one subject in one role."""
    label, role, good = result.subject.label, result.role, result.good
    if not good:
        last = result.tried[-1]
        return Finding(
            kind="missing",
            claim=f"{label} can be timed on {role}",
            estimate=None,
            verdict="no",
            reason=last.reason,
            records=tuple(record.trial for record in result.tried),
            facts={"workload": label, "device": role, "status": last.status},
            origin=last.origin,
        )
    scope: Scope = "process" if result.subject.command is None else "run"
    time_estimate = estimate_median(list(result.processes), "µs", scope_of_one=scope)
    facts = subject_facts(good, role)
    rates = compute_rates(facts, time_estimate.value)
    verdict, reason = _judge_precision(time_estimate, options.precision)
    target = format_percent(options.precision, digits=3)
    return Finding(
        claim=f"{label} on {role}, {options.mode}: {TIME_QUANTITIES[result.quantity]} is known to ±{target}",
        estimate=time_estimate,
        verdict=verdict,
        reason=reason,
        records=tuple(record.trial for record in good),
        facts={
            "workload": label,
            "device": role,
            "processes": len(result.processes),
            "quantity": result.quantity,
            **_other_times(records, result),
            "method": facts.timed.method if facts and facts.timed else None,
            "cache": facts.timed.cache if facts and facts.timed and facts.timed.method != "wall" else None,
            "backend": facts.backend if facts else None,
            **rates,
            **ceiling_shares(rates, result.subject, role, most),
        },
        origin=good[0].origin,
    )


def _other_times(records: Records, result: SubjectResult) -> Params:
    """Return the medians of the other times and of the clock; null where they were not taken."""
    medians: Params = {}
    for name in (*TIME_QUANTITIES, "clock_mhz"):
        if name != result.quantity:
            processes = samples_by_process(records, result.good, result.role, name)
            medians[name] = float(np.median(np.concatenate(processes))) if processes else None
    return medians


def _judge_precision(time_estimate: Estimate, precision: float) -> tuple[Verdict, str | None]:
    half_width = time_estimate.relative_half_width
    if half_width is None:
        return "unsure", f"{time_estimate.method}; more processes (--restarts, a longer --duration) give one over them"
    if half_width <= precision:
        return "yes", None
    return (
        "no",
        f"it is known to ±{format_percent(half_width, digits=3)}; a longer --duration or more --repeat narrows it",
    )


def _headline(options: RunOptions, findings: tuple[Finding, ...]) -> str:
    """Return the result in one sentence."""
    measured = [(f, f.estimate) for f in findings if f.estimate is not None]
    if not measured:
        return "Nothing could be measured."
    how = f"over {options.ranks} ranks" if options.ranks > 1 else "alone"
    if options.mode == "concurrent" and len(options.devices) > 1:
        how = "side by side"
    times_by_workload: dict[str, list[str]] = {}
    for f, estimate in measured:
        where = f"{format_time(estimate.value)} on {f.facts['device']}"
        times_by_workload.setdefault(str(f.facts["workload"]), []).append(where)
    parts = []
    for workload, texts in times_by_workload.items():
        several = f"{', '.join(texts[:3])} and so on" if len(texts) > 4 else format_list(texts)
        parts.append(f"{workload} takes {several}")
    more = f"; and {len(parts) - 3} more" if len(parts) > 3 else ""
    half_widths = [half for _, estimate in measured if (half := estimate.relative_half_width) is not None]
    sure = f" The widest interval is ±{format_percent(max(half_widths))}." if half_widths else ""
    refused = len(measured) - len(half_widths)
    if refused:
        sure += f" {refused} ha{'s' if refused == 1 else 've'} no interval; the table says why."
    return f"{'; '.join(parts[:3])}{more} ({how}).{sure}"


def build_page(
    machine: Machine, options: RunOptions, results: Sequence[SubjectResult], findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    nothing = all(finding.estimate is None for finding in findings.findings)
    without_interval = (
        Text(text=f"{f.facts['workload']} on {f.facts['device']}: {f.reason}.", tone="unsure")
        for f in findings.findings
        if f.estimate is not None and f.estimate.low is None
    )
    elements: list[Element] = [
        _results_table(findings, options.precision),
        *without_interval,
        *_sample_figures(options, results),
        *_rates_table(findings),
    ]
    return compose_page(
        machine,
        records,
        title=f"assay run: {', '.join(dict.fromkeys(s.label for s in options.subjects))}",
        lead=findings.headline,
        lead_tone="bad" if nothing else "plain",
        sections=[
            Section(title="Results", elements=tuple(elements)),
            *_reported_sections(results),
            Section(title="Who ran where and when", elements=_placement_elements(options, records)),
        ],
        facts={
            "isolation asked": options.isolation,
            "budget per trial": f"{options.duration_s:g} s",
            "seed": str(options.seed),
        },
    )


PRECISION_TONES: dict[Verdict, Tone] = {**CLAIM_TONES, "no": "plain"}


def _results_table(findings: Findings, precision: float) -> Table:
    """Return the table that answers the question; on a GPU the kernels' time, with the call's beside it."""
    on_gpu = any(f.facts.get("quantity", "call_us") != "call_us" for f in findings.findings)
    extra_titles = ("call", "clock") if on_gpu else ()
    note = (
        "Samples in so many processes; the interval is over them where there were several, else within the one, "
        f"and says nothing of the next start. "
        f"✓: known to ±{format_percent(precision, digits=3)} as asked; ?: no interval."
    )
    if on_gpu:
        note += " The median is that of the kernels, with the launches queued; a caller waits as long as the call."
    return Table(
        title="Time of the kernels of one call" if on_gpu else "Time of one call",
        columns=table_columns("workload", "device", "median", "±", *extra_titles, "samples", words=2),
        rows=tuple(_result_row(f, on_gpu=on_gpu) for f in findings.findings),
        tones=tuple("bad" if f.estimate is None else PRECISION_TONES[f.verdict] for f in findings.findings),
        note=note,
    )


def _result_row(finding: Finding, *, on_gpu: bool) -> tuple[Cell, ...]:
    facts, time_estimate = finding.facts, finding.estimate
    workload, device = str(facts["workload"]), str(facts["device"])
    if time_estimate is None:
        return (workload, device, str(facts["status"]), None, *((None, None) if on_gpu else ()), None)
    half, call_us, mhz = time_estimate.relative_half_width, facts.get("call_us"), facts.get("clock_mhz")
    call = format_time(call_us) if isinstance(call_us, float) else None
    clock = f"{mhz:.0f} MHz" if isinstance(mhz, float) else None
    return (
        workload,
        device,
        time_cell(time_estimate),
        None if half is None else format_percent(half),
        *((call, clock) if on_gpu else ()),
        f"{time_estimate.n} in {facts['processes']}",
    )


def _rates_table(findings: Findings) -> list[Element]:
    """Return what the times mean in arithmetic and memory traffic, where the workloads state them."""
    stated = [f for f in findings.findings if f.estimate is not None and (f.facts["gflops"] or f.facts["gb_s"])]
    if not stated:
        return []
    shown = {"workload": "workload", "device": "device", "backend": "backend seen", "gflops": "GFLOP/s", "gb_s": "GB/s"}
    note = "Operations and least possible bytes of one call, over its median time."
    if any(f.facts["copy_percent"] is not None for f in stated):
        shown |= {"matmul_percent": "% of matmul", "copy_percent": "% of copy"}
        note += " The percentages are of the rates that a large matmul and a large copy reached in this run."
    rows = tuple(tuple(f.facts[name] for name in shown) for f in stated)
    return [Table(title="Rates", columns=table_columns(*shown.values(), words=3), rows=rows, note=note)]


def _sample_figures(options: RunOptions, results: Sequence[SubjectResult]) -> list[Element]:
    """Return a strip of samples for every subject and role, one figure a subject."""
    figures: list[Element] = []
    for index, subject in enumerate(options.subjects):
        measured = [result for result in results if result.index == index and result.good]
        strips = []
        for result in measured:
            for number, samples in enumerate(result.processes, 1):
                low, high = median_interval(samples) or (None, None)
                strips.append(
                    StripRow(
                        label=f"{result.role}, process {number}",
                        samples=tuple(samples.tolist()),
                        value=float(np.median(samples)),
                        low=low,
                        high=high,
                    )
                )
        if strips:
            figures.append(
                StripPlot(
                    title=f"Every sample of {subject.label}",
                    name=f"samples_{index}",
                    axis=TIME_AXES[measured[-1].quantity],
                    unit="µs",
                    strips=tuple(strips),
                    note="One row a process, with its median and the median's interval.",
                )
            )
    return figures


def _reported_sections(results: Sequence[SubjectResult]) -> list[Section]:
    """Return what commands reported beside their time: resources and metrics."""
    reported = [
        (result, summary)
        for result in results
        for record in result.tried
        for summary in record.estimates
        if summary.role == result.role and summary.quantity not in {*TIME_QUANTITIES, *CLOCK_QUANTITIES}
    ]
    if not reported:
        return []
    table = build_table(
        "Beside its time",
        reported,
        {
            "workload": lambda row: row[0].subject.label,
            "device": lambda row: row[0].role,
            "quantity": lambda row: row[1].quantity,
            "median": lambda row: row[1].estimate.value,
            "least": lambda row: row[1].minimum,
            "most": lambda row: row[1].maximum,
            "unit": lambda row: unit_of(row[1].quantity),
            "samples": lambda row: row[1].n,
        },
        numeric=("median", "least", "most", "samples"),
    )
    return [Section(title="What the command reported", elements=(table,), brief=True)]


def _placement_elements(options: RunOptions, records: Records) -> tuple[Element, ...]:
    labels = {
        trial.id: f"{trial.roles[0].subjects[0].label} on {', '.join(trial.devices)}, {block.name}"
        for block in build_blocks(options)
        for trial in block.trials
    }
    return (
        _evidence_table(records),
        *_timeline(options, records),
        *monitor_table(records, labels),
        *notes_table(records, labels),
    )


def _rank_text(role: str, rank: int) -> str:
    return role if rank == 0 else f"{role} rank {rank}"


def _evidence_table(records: Records) -> Table:
    return build_table(
        "What each worker read back about itself",
        [(record.block, evidence) for record in records for evidence in record.evidence],
        {
            "block": lambda row: row[0],
            "role": lambda row: _rank_text(row[1].role, row[1].rank),
            "process": lambda row: row[1].restart + 1,
            "isolation held": lambda row: isolation_text(row[1]),
            "cores": lambda row: " ".join(map(str, row[1].allowed_cores)),
            "threads": lambda row: row[1].thread_limit,
            "switches": lambda row: row[1].involuntary_switches,
            "set-up, s": lambda row: f"{row[1].setup_s:.2f}",
        },
        numeric=("process", "threads", "switches", "set-up, s"),
        note="Switches: how often the kernel took the core away from the worker.",
    )


def _timeline(options: RunOptions, records: Records) -> list[Element]:
    """Return when each worker was timed, with what the monitor saw above."""
    timed = [(record, s) for record in records for s in record.series if s.quantity == "call_us"]
    if not timed:
        return []
    origin_ns = min(s.start_ns for _, s in timed)
    bars = tuple(
        TimelineBar(
            lane=_rank_text(s.role, s.rank),
            label=record.block,
            start_s=(s.start_ns - origin_ns) / 1e9,
            end_s=(s.end_ns - origin_ns) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for record, s in timed
    )
    return [
        Timeline(
            title="When each worker was timed",
            name="timeline",
            bars=bars,
            lines=sensor_lines(records, origin_ns),
            lines_axis=sensor_axis(records),
            note=f"Mode: {options.mode}.",
        )
    ]
