"""What ``assay run`` shows: the results, every sample, who ran where and when, what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Bar, Column, Page, Section, Strip, Strips, Table, Text, Timeline
from assay.core.units import format_time, unit_of
from assay.experiments.notes import notes_table
from assay.experiments.quality import held_text
from assay.experiments.run.findings import records_of, samples_by_process
from assay.experiments.run.plan import blocks_of, role_names
from assay.experiments.times import AXES, CLOCKS, TIMES, decisive
from assay.experiments.trouble import trouble
from assay.experiments.watched import sensor_axis, sensor_lines, watched_table
from assay.stats.intervals import median_interval

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Estimate, Finding, Findings
    from assay.experiments.run.plan import RunOptions
    from assay.machine.model import Machine
    from assay.stats.summary import Samples
    from assay.store.records import Records

_TONES: dict[str, Tone] = {"yes": "good", "no": "plain", "unsure": "unsure"}


def page(machine: Machine, options: RunOptions, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    nothing = all(finding.estimate is None for finding in findings.findings)
    results: list[Element] = [
        results_table(findings, 100 * options.precision),
        *_without_interval(findings),
        *samples_of(options, records),
        *rates_table(findings),
    ]
    sections = [
        Section(title="Results", elements=tuple(results)),
        *_reported(options, records),
        Section(title="Who ran where and when", elements=_placement(options, records)),
        *trouble(records),
    ]
    return Page(
        title=f"assay run: {', '.join(dict.fromkeys(s.label for s in options.subjects))}",
        lead=findings.headline,
        lead_tone="bad" if nothing else "plain",
        sections=tuple(sections),
        facts=_facts(machine, options),
        origin=next((r.origin for r in records if r.origin != "real"), "real"),
    )


def interval(estimate: Estimate) -> str:
    """Write an interval as people read it: "1.02 – 1.05 ms"; a dash when there is none."""
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{format_time(estimate.low)} – {format_time(estimate.high)}"


def results_table(findings: Findings, precision: float) -> Table:
    """Return the table that answers the question; what kernels take has what a caller waits beside it."""
    on_gpu = any(f.facts.get("quantity", "call_us") != "call_us" for f in findings.findings)
    extra_columns = (Column(title="call", numeric=True), Column(title="clock", numeric=True)) if on_gpu else ()
    note = (
        "Samples in so many processes; the interval is over them where there were several, else within the one, "
        f"and says nothing of the next start. ✓: known to ±{precision:.2g} % as asked; ?: no interval."
    )
    if on_gpu:
        note += " The median is that of the kernels, with the launches queued; a caller waits as long as the call."
    return Table(
        title="Time of the kernels of one call" if on_gpu else "Time of one call",
        columns=(
            Column(title="workload"),
            Column(title="device"),
            Column(title="median", numeric=True),
            Column(title="95 % interval", numeric=True),
            Column(title="±", numeric=True),
            *extra_columns,
            Column(title="samples", numeric=True),
        ),
        rows=tuple(_row(f, on_gpu=on_gpu) for f in findings.findings),
        tones=tuple("bad" if f.estimate is None else _TONES[f.verdict] for f in findings.findings),
        note=note,
    )


def _without_interval(findings: Findings) -> list[Element]:
    """Return why some results have no interval."""
    return [
        Text(text=f"{f.facts['workload']} on {f.facts['device']}: {f.reason}.", tone="unsure")
        for f in findings.findings
        if f.estimate is not None and f.estimate.low is None
    ]


def _row(finding: Finding, *, on_gpu: bool) -> tuple[Cell, ...]:
    facts, time_estimate = finding.facts, finding.estimate
    workload, device = str(facts["workload"]), str(facts["device"])
    if time_estimate is None:
        return (workload, device, str(facts["status"]), None, None, *((None, None) if on_gpu else ()), None)
    half, call_us, mhz = time_estimate.relative_half_width, facts.get("call_us"), facts.get("clock_mhz")
    extra_cells = (
        format_time(call_us) if isinstance(call_us, float) else None,
        f"{mhz:.0f} MHz" if isinstance(mhz, float) else None,
    )
    return (
        workload,
        device,
        format_time(time_estimate.value),
        interval(time_estimate),
        None if half is None else f"{half:.1%}",
        *(extra_cells if on_gpu else ()),
        f"{time_estimate.n} in {facts['processes']}",
    )


def rates_table(findings: Findings) -> list[Element]:
    """Return what the times mean in arithmetic and memory traffic, where the workloads state them."""
    stated = [f for f in findings.findings if f.estimate is not None and (f.facts["gflops"] or f.facts["gb_s"])]
    if not stated:
        return []
    shown = {"gflops": "GFLOP/s", "gb_s": "GB/s"}
    note = "Operations and least possible bytes of one call, over its median time."
    if any(f.facts["copy_percent"] is not None for f in stated):
        shown |= {"matmul_percent": "% of matmul", "copy_percent": "% of copy"}
        note += " The percentages are of the rates that a large matmul and a large copy reached in this run."
    rows = tuple(
        (
            str(f.facts["workload"]),
            str(f.facts["device"]),
            _text(f.facts["backend"]),
            *(_number(f.facts[name]) for name in shown),
        )
        for f in stated
    )
    words = [Column(title=title) for title in ("workload", "device", "backend seen")]
    columns = (*words, *(Column(title=title, numeric=True) for title in shown.values()))
    return [Table(title="Rates", columns=columns, rows=rows, note=note)]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | int | None:
    return value if isinstance(value, int | float) else None


def samples_of(options: RunOptions, records: Records) -> list[Element]:
    """Return a strip of samples for every subject and role, one figure a subject."""
    figures: list[Element] = []
    for index, subject in enumerate(options.subjects):
        strips = []
        for role in role_names(options):
            good = [r for r in records_of(options, records, index, role) if r.status == "ok"]
            quantity = decisive(good, role)
            processes = samples_by_process(records, good, role, quantity)
            strips += [_strip(f"{role}, process {n}", samples) for n, samples in enumerate(processes, 1)]
        if strips:
            figures.append(
                Strips(
                    title=f"Every sample of {subject.label}",
                    name=f"samples_{index}",
                    axis=AXES[quantity],
                    unit="µs",
                    strips=tuple(strips),
                    note="One row a process, with its median and the median's interval.",
                )
            )
    return figures


def _strip(label: str, samples: Samples) -> Strip:
    middle = float(np.median(samples))
    low, high = median_interval(samples) or (None, None)
    return Strip(label=label, samples=tuple(samples.tolist()), value=middle, low=low, high=high)


def _reported(options: RunOptions, records: Records) -> list[Section]:
    """Return what commands reported beside their time: resources and metrics."""
    rows: list[tuple[Cell, ...]] = []
    for index, subject in enumerate(options.subjects):
        for role in role_names(options):
            for record in records_of(options, records, index, role):
                rows += [
                    (subject.label, role, s.quantity, s.estimate.value, s.minimum, s.maximum, unit_of(s.quantity), s.n)
                    for s in record.estimates
                    if s.role == role and s.quantity not in {*TIMES, *CLOCKS}
                ]
    if not rows:
        return []
    titles = ("workload", "device", "quantity", "median", "least", "most", "unit", "samples")
    columns = tuple(Column(title=t, numeric=t in {"median", "least", "most", "samples"}) for t in titles)
    return [
        Section(
            title="What the command reported",
            elements=(Table(title="Beside its time", columns=columns, rows=tuple(rows)),),
        )
    ]


def _placement(options: RunOptions, records: Records) -> tuple[Element, ...]:
    elements: list[Element] = [_evidence(records)]
    bars = _bars(records)
    if bars:
        lines = sensor_lines(records, _origin_ns(records))
        elements.append(
            Timeline(
                title="When each worker was timed",
                name="timeline",
                bars=bars,
                lines=lines,
                lines_axis=sensor_axis(records),
                note=f"Mode: {options.mode}.",
            )
        )
    elements += watched_table(records, _labels(options))
    elements += notes_table(records, _labels(options))
    return tuple(elements)


def _evidence(records: Records) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for record in records:
        rows += [
            (
                record.block,
                e.role if e.rank == 0 else f"{e.role} rank {e.rank}",
                e.restart + 1,
                held_text(e),
                " ".join(map(str, e.allowed_cores)),
                e.thread_limit,
                e.involuntary_switches,
                f"{e.setup_s:.2f}",
            )
            for e in record.evidence
        ]
    titles = ("block", "role", "process", "isolation held", "cores", "threads", "switches", "set-up, s")
    columns = tuple(Column(title=t, numeric=t in {"process", "threads", "switches", "set-up, s"}) for t in titles)
    return Table(
        title="What each worker read back about itself",
        columns=columns,
        rows=tuple(rows),
        note="Switches: how often the kernel took the core away from the worker.",
    )


def _labels(options: RunOptions) -> dict[str, str]:
    """Return what each trial measures and where."""
    return {
        trial.id: f"{trial.roles[0].subjects[0].label} on {', '.join(trial.devices)}, {block.name}"
        for block in blocks_of(options)
        for trial in block.trials
    }


def _origin_ns(records: Records) -> int:
    """Return when the first worker was timed."""
    return min(s.start_ns for record in records for s in record.series if s.quantity == "call_us")


def _bars(records: Records) -> tuple[Bar, ...]:
    timed = [(record, s) for record in records for s in record.series if s.quantity == "call_us"]
    if not timed:
        return ()
    origin = _origin_ns(records)
    return tuple(
        Bar(
            lane=s.role if s.rank == 0 else f"{s.role} rank {s.rank}",
            label=record.block,
            start_s=(s.start_ns - origin) / 1e9,
            end_s=(s.end_ns - origin) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for record, s in timed
    )


def _facts(machine: Machine, options: RunOptions) -> tuple[tuple[str, str], ...]:
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})"),
        ("isolation asked", options.isolation),
        ("budget per trial", f"{options.duration_s:g} s"),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )
