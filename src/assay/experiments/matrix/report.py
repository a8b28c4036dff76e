"""The findings and the page of ``assay contention matrix``.

The headline, the matrix as heat map and table, tails and jitter, and the method and data quality behind it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import (
    format_count,
    format_list,
    format_percent,
    format_ratio,
    format_significant,
    is_uninformative,
    ratio_cell,
)
from assay.core.page import Column, HeatMap, Page, Section, StripPlot, StripRow, Table, Text
from assay.core.results import Finding, Findings
from assay.experiments.base import Report
from assay.experiments.budget import overrun_text
from assay.experiments.matrix.analysis import MEASURES, aggressor_loads, build_matrix, victim_samples
from assay.experiments.reporting import (
    TIME_AXES,
    compose_page,
    isolation_text,
    monitor_table,
    notes_table,
    overall_origin,
    table_columns,
)

if TYPE_CHECKING:
    from assay.core.page import Cell as Shown
    from assay.core.page import Element, Page, Tone
    from assay.core.results import Estimate, Evidence, Verdict
    from assay.core.values import Params
    from assay.experiments.matrix.analysis import (
        AggressorLoad,
        ContentionMatrix,
        MatrixCell,
        Measure,
        Outcome,
        Samples,
        VictimRow,
    )
    from assay.experiments.matrix.plan import MatrixOptions, MatrixPair
    from assay.machine.model import Machine
    from assay.store.records import Records


TIME_LABELS = {"busy_us": "kernels", "call_us": "call"}
"""The times of a row in a word."""


def row_label(options: MatrixOptions, row: VictimRow) -> str:
    """Name a row: the victim, which of its times where a GPU has two, and the device where there are several."""
    name = options.victims[row.victim].label
    if sum(victim.label == name for victim in options.victims) > 1:
        name = f"{name} {row.victim + 1}"
    if row.device.startswith("cuda"):
        name = f"{name} ({TIME_LABELS[row.quantity]})"
    return f"{name} on {row.device}" if len(options.devices) > 1 else name


def outcome_text(cell: MatrixCell) -> str:
    """Write what a cell came to, with the bound that belongs to it."""
    naive, isolated = cell.naive, cell.isolated
    if cell.outcome == "no effect seen" and naive and naive.high is not None:
        return f"no effect seen (at most {format_percent(max(naive.high, 1.0) - 1)})"
    if cell.outcome == "cured by isolation" and isolated and isolated.high is not None:
        return f"cured by isolation (≤ {format_percent(max(isolated.high, 1.0) - 1)} left)"
    if cell.outcome == "not cured" and cell.reduction and cell.reduction.low is not None and cell.reduction.low > 1:
        return "not cured, but eased"
    if cell.outcome == "hurts":
        return "hurts; cure unclear"
    if cell.outcome == "not known":
        return _unknown_reason(cell)
    return cell.outcome


def _unknown_reason(cell: MatrixCell) -> str:
    if cell.naive is None:
        return "not known: not measured without isolation"
    if cell.naive.low is None or cell.naive.high is None:
        return "not known: one block tells nothing of chance"
    if is_uninformative(cell.naive.low, cell.naive.high):
        return "not known: it may be anything"
    return f"not known: anything from {cell.naive.low:.2g} to {cell.naive.high:.2g}"


MAX_NAMED_VICTIMS = 3
"""Victims that a sentence names at most."""
NOISY_MARGIN = 0.1
"""From this difference between two equal measurements on, it is said beside the result."""


def build_report(machine: Machine, options: MatrixOptions, records: Records) -> Report:
    """Return the findings and the page."""
    matrix = build_matrix(options, records)
    findings = build_findings(options, matrix)
    return Report(findings, build_page(machine, options, matrix, findings, records))


def build_findings(options: MatrixOptions, matrix: ContentionMatrix) -> Findings:
    """Return a finding for each aggressor, victim and measure, and one for what was asked and never measured."""
    strength = aggressor_loads(list(matrix.pairs))
    findings = tuple(_cell_finding(options, matrix, cell, strength) for cell in matrix.cells)
    return Findings(headline=headline(options, matrix), findings=(*findings, *_missing_findings(options, matrix)))


def _cell_finding(
    options: MatrixOptions, matrix: ContentionMatrix, cell: MatrixCell, strength: dict[tuple[str, str], AggressorLoad]
) -> Finding:
    behind = [
        record
        for meeting, record in matrix.pairs
        if (meeting.victim, meeting.device) == cell.row[:2]
        and meeting.aggressor in {None, cell.aggressor}
        and record.status == "ok"
    ]
    isolated, counts = cell.isolated, math.isfinite(cell.beyond)
    facts: Params = {
        "victim": options.victims[cell.row.victim].label,
        "device": cell.row.device,
        "quantity": cell.row.quantity,
        "aggressor": cell.aggressor,
        "measure": cell.measure,
        "outcome": cell.outcome,
        "isolated": isolated.value if isolated else None,
        "isolated_low": isolated.low if isolated else None,
        "isolated_high": isolated.high if isolated else None,
        "counts_beyond": cell.beyond if counts else None,
        **_load_facts(cell.aggressor, strength),
    }
    where = row_label(options, cell.row)
    return Finding(
        claim=f"{cell.aggressor} beside {where}: its {MEASURES[cell.measure]} grows without isolation",
        estimate=cell.naive,
        verdict=_cell_verdict(cell),
        reason=outcome_text(cell),
        records=tuple(record.trial for record in behind),
        facts=facts,
        origin=overall_origin(behind),
    )


def _cell_verdict(cell: MatrixCell) -> Verdict:
    """Return yes where it surely grows, no where it surely does not grow by what counts."""
    if cell.outcome in {"hurts", "cured by isolation", "not cured"}:
        return "yes"
    high = cell.naive.high if cell.naive else None
    return "no" if high is not None and high <= cell.beyond and math.isfinite(cell.beyond) else "unsure"


def _load_facts(aggressor: str, strength: dict[tuple[str, str], AggressorLoad]) -> Params:
    return {
        f"{phase}_{name}": value
        for phase in ("naive", "isolated")
        if (aggressor, phase) in strength
        for name, value in strength[aggressor, phase]._asdict().items()
    }


def _missing_findings(options: MatrixOptions, matrix: ContentionMatrix) -> tuple[Finding, ...]:
    """Return what never worked, each with the last reason."""
    tried: dict[tuple[str, str | None], list[tuple[str, str | None, str]]] = {}
    for meeting, record in matrix.pairs:
        key = (f"{options.victims[meeting.victim].label} on {meeting.device}", meeting.aggressor)
        tried.setdefault(key, []).append((record.status, record.reason, record.trial))
    return tuple(
        Finding(
            kind="missing",
            claim=f"{victim} can be timed {f'beside {aggressor}' if aggressor else 'alone'}",
            estimate=None,
            verdict="no",
            reason=tries[-1][1],
            records=tuple(trial for _, _, trial in tries),
            facts={"victim": victim, "aggressor": aggressor, "status": tries[-1][0]},
        )
        for (victim, aggressor), tries in tried.items()
        if all(status != "ok" for status, _, _ in tries)
    )


def headline(options: MatrixOptions, matrix: ContentionMatrix) -> str:
    """Return in one sentence what isolation cures, what it does not, and what did nothing."""
    medians = [cell for cell in matrix.cells if cell.measure == "median"]
    if not medians:
        return "Nothing could be measured."
    unmoved = [cell for cell in medians if cell.outcome == "no effect seen"]
    parts = [
        _aggressors_text(options, medians, "not cured", "isolation does not cure"),
        _aggressors_text(options, medians, "cured by isolation", "isolation cures"),
        _aggressors_text(options, medians, "hurts", "whether isolation cures is not clear for"),
        _aggressors_text(options, medians, "hurts only isolated", "only isolated processes suffer from"),
        _no_effect_text(unmoved, everywhere=len(unmoved) == len(medians)),
        _unknown_text(options, medians),
    ]
    sentence = "; ".join(part for part in parts if part)
    return f"{sentence[:1].upper()}{sentence[1:]}.{_noise_text(medians)}"


def _aggressors_text(options: MatrixOptions, cells: list[MatrixCell], outcome: Outcome, words: str) -> str:
    """Name the aggressors of one outcome, and the worst cell with how much it is."""
    matching = sorted((c for c in cells if c.outcome == outcome), key=_largest_ratio, reverse=True)
    if not matching:
        return ""
    names, worst = list(dict.fromkeys(c.aggressor for c in matching)), matching[0]
    cell_text = (
        f"beside {row_label(options, worst.row)}"
        if len(names) == 1
        else f"{worst.aggressor} beside " + row_label(options, worst.row)
    )
    return (
        f"{words} {format_list(names)} ({'worst ' if len(matching) > 1 else ''}{cell_text}: {_both_ratios_text(worst)})"
    )


def _largest_ratio(cell: MatrixCell) -> float:
    return max((e.value for e in (cell.naive, cell.isolated) if e is not None), default=1.0)


def _both_ratios_text(cell: MatrixCell) -> str:
    return f"{_short_ratio_text(cell.naive)} without, {_short_ratio_text(cell.isolated)} with"


def _short_ratio_text(estimate: Estimate | None) -> str:
    return "not measured" if estimate is None else format_ratio(estimate.value)


def _no_effect_text(cells: list[MatrixCell], *, everywhere: bool) -> str:
    if not cells:
        return ""
    rest = "" if everywhere else " elsewhere"
    at_most = max((c.naive.high for c in cells if c.naive and c.naive.high is not None), default=1.0)
    names = list(dict.fromkeys(cell.aggressor for cell in cells))
    return f"no effect is seen of {format_list(names)}{rest} (at most {format_percent(max(at_most, 1.0) - 1)})"


def _noise_text(cells: list[MatrixCell]) -> str:
    """Say so where two equal measurements differ by so much that smaller effects cannot be seen."""
    beyond = max((c.beyond for c in cells if math.isfinite(c.beyond)), default=1.0)
    if beyond <= 1 + NOISY_MARGIN:
        return ""
    most = format_percent(beyond - 1)
    return f" Alone, the same measurement differs by up to {most} here: smaller effects cannot be seen."


def _unknown_text(options: MatrixOptions, cells: list[MatrixCell]) -> str:
    """Name what is not known: aggressors of the same victims together, each with the victims it is not known for."""
    by_aggressor: dict[str, list[str]] = {}
    for cell in cells:
        if cell.outcome == "not known":
            by_aggressor.setdefault(cell.aggressor, []).append(row_label(options, cell.row))
    by_victims: dict[tuple[str, ...], list[str]] = {}
    for aggressor, victims in by_aggressor.items():
        by_victims.setdefault(tuple(victims), []).append(aggressor)
    everyone = {row_label(options, cell.row) for cell in cells}
    texts = [f"{format_list(names)} beside {_victims_text(victims, everyone)}" for victims, names in by_victims.items()]
    return f"nothing can be said yet of {', nor of '.join(texts)}" if texts else ""


def _victims_text(victims: tuple[str, ...], everyone: set[str]) -> str:
    if len(victims) == len(everyone) > MAX_NAMED_VICTIMS:
        return "any victim"
    more = len(victims) - MAX_NAMED_VICTIMS
    return format_list([*victims[:MAX_NAMED_VICTIMS], f"{more} more"] if more > 0 else list(victims))


def method_elements(options: MatrixOptions, matrix: ContentionMatrix, records: Records) -> tuple[Element, ...]:
    """Return the tables and figures behind the matrix."""
    if not matrix.pairs:
        return ()
    labels = {
        record.trial: f"{record.block.replace('-', ' ')}, {pair_text(options, meeting, victim=not options.in_turns)}"
        for meeting, record in matrix.pairs
    }
    return (
        *load_table(options, matrix),
        *baseline_table(options, matrix),
        *(sample_strips(options, matrix, records, row, number) for number, row in enumerate(matrix.rows)),
        placement_table(options, matrix),
        *monitor_table(records, labels),
        *notes_table(records, labels),
    )


def load_table(options: MatrixOptions, matrix: ContentionMatrix) -> list[Element]:
    """Return how hard each aggressor pressed, naive and isolated."""
    loads = aggressor_loads(list(matrix.pairs))
    rows: list[tuple[Shown, ...]] = [
        (
            a.name,
            a.subject.label,
            level,
            None if load.cores is None else format_significant(load.cores, 3),
            None if load.gb_s is None else format_significant(load.gb_s, 3),
            None if load.gflops is None else format_significant(load.gflops, 3),
        )
        for a in options.aggressors
        for level in ("naive", "isolated")
        if (load := loads.get((a.name, level))) is not None
    ]
    if not rows:
        return []
    titles = ("aggressor", "is", "isolation", "cores' worth", "GB/s", "GFLOP/s")
    return [
        Table(
            title="How hard the aggressors pressed",
            columns=table_columns(*titles, words=3),
            rows=tuple(rows),
            note=(
                "CPU time, bytes and operations of the aggressor in each second that it was up, over all its trials. "
                "One that presses less when isolated does less harm for that reason too."
            ),
        )
    ]


def baseline_table(options: MatrixOptions, matrix: ContentionMatrix) -> list[Element]:
    """Return what two equal measurements differ by, and what pinning by itself changes."""
    rows: list[tuple[Shown, ...]] = [
        (row_label(options, q.row), ratio_cell(q.repeated), ratio_cell(q.unpinned))
        for q in matrix.baselines
        if q.measure == "median"
    ]
    if not rows:
        return []
    titles = ("victim", "again, × alone", "unpinned, × alone")
    return [
        Table(
            title="Without any aggressor",
            columns=table_columns(*titles),
            rows=tuple(rows),
            note="The median time. Again: the same measured a second time in each block, so that it differs by chance.",
        )
    ]


def sample_strips(
    options: MatrixOptions, matrix: ContentionMatrix, records: Records, row: VictimRow, number: int
) -> StripPlot:
    """Return every sample of one row, a strip for each company it was in, over all blocks."""
    samples_by_label: dict[str, list[Samples]] = defaultdict(list)
    for meeting, record in sorted(matrix.pairs, key=lambda pair: _pair_order(options, pair[0])):
        if (meeting.victim, meeting.device) == row[:2] and record.status == "ok":
            samples_by_label[pair_text(options, meeting, victim=False)] += victim_samples(options, records, record, row)
    return StripPlot(
        title=f"Every sample of {row_label(options, row)}",
        name=f"samples_{number}",
        axis=TIME_AXES[row.quantity],
        unit="µs",
        strips=tuple(_sample_strip(name, several) for name, several in samples_by_label.items() if several),
        note="All blocks together; the value is the median of the blocks' medians.",
    )


def _pair_order(options: MatrixOptions, meeting: MatrixPair) -> tuple[int, int]:
    names = [None, *(a.name for a in options.aggressors)]
    return names.index(meeting.aggressor), ("alone", "again", "bare", "naive", "isolated").index(meeting.phase)


def _sample_strip(name: str, several: list[Samples]) -> StripRow:
    middle = float(np.median([np.median(samples) for samples in several]))
    return StripRow(label=name, samples=tuple(np.concatenate(several).tolist()), value=middle)


def pair_text(options: MatrixOptions, meeting: MatrixPair, *, victim: bool = True) -> str:
    """Write a meeting in words."""
    phases = {"alone": "alone", "again": "alone again", "bare": "alone, unpinned"}
    text = phases.get(meeting.phase, f"beside {meeting.aggressor}, {meeting.phase}")
    return f"{options.victims[meeting.victim].label}, {text}" if victim else text


def placement_table(options: MatrixOptions, matrix: ContentionMatrix) -> Table:
    """Return where victims and aggressors ran, by what they read back themselves; equal rows are told once."""
    rows: dict[tuple[Shown, ...], None] = {}
    for meeting, record in sorted(matrix.pairs, key=lambda pair: (pair[0].victim, _pair_order(options, pair[0]))):
        for evidence in record.evidence:
            rows[_placement_row(options, meeting, evidence)] = None
    titles = ("meeting", "role", "device", "isolation held", "cores", "memory nodes", "threads")
    return Table(
        title="Who ran where, as each process read it back",
        columns=tuple(Column(title=t, numeric=t == "threads") for t in titles),
        rows=tuple(rows),
    )


def _placement_row(options: MatrixOptions, meeting: MatrixPair, evidence: Evidence) -> tuple[Shown, ...]:
    return (
        pair_text(options, meeting),
        evidence.role,
        evidence.device,
        isolation_text(evidence),
        " ".join(map(str, evidence.allowed_cores)),
        None if evidence.memory_nodes is None else " ".join(map(str, evidence.memory_nodes)),
        evidence.thread_limit,
    )


OUTCOME_TONES: dict[Outcome, Tone] = {
    "no effect seen": "plain",
    "cured by isolation": "good",
    "not cured": "bad",
    "hurts": "unsure",
    "hurts only isolated": "bad",
    "not known": "unsure",
}
TAIL_MEASURES: tuple[Measure, ...] = ("p99", "jitter")


def build_page(
    machine: Machine, options: MatrixOptions, matrix: ContentionMatrix, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    return compose_page(
        machine,
        records,
        title=(
            f"assay contention matrix: {format_count(len(options.victims), 'victim')}, "
            f"{format_count(len(options.aggressors), 'aggressor')}"
        ),
        lead=findings.headline,
        lead_tone="plain" if matrix.cells else "bad",
        sections=[
            Section(title="Results", elements=_results(options, matrix, findings)),
            Section(title="Tails and jitter", elements=_tails(options, matrix)),
            Section(title="What it rests on", elements=method_elements(options, matrix, records)),
        ],
        facts={
            "devices": ", ".join(options.devices),
            "blocks": f"{len({record.block for _, record in matrix.pairs})} of {options.repeat}",
            "per trial": f"{options.duration_s:g} s",
            "seed": str(options.seed),
        },
        trial_labels={record.trial: pair_text(options, pair) for pair, record in matrix.pairs},
    )


def _results(options: MatrixOptions, matrix: ContentionMatrix, findings: Findings) -> tuple[Element, ...]:
    missing = [
        Text(text=f"Missing: not so, that {f.claim}: {f.reason}.", tone="bad")
        for f in findings.findings
        if f.kind == "missing"
    ]
    overrun_note = (
        overrun_text(options.budget_s, [record for _, record in matrix.pairs]) if options.budget_s is not None else None
    )
    late = [Text(text=f"{_capitalise(overrun_note)}.", tone="unsure")] if overrun_note is not None else []
    if not matrix.cells:
        return (*missing, *late)
    return (heat_map(options, matrix, "median"), matrix_table(options, matrix, "median"), *missing, *late)


def _tails(options: MatrixOptions, matrix: ContentionMatrix) -> tuple[Element, ...]:
    return tuple(
        element
        for what in TAIL_MEASURES
        if _is_measured(matrix, what)
        for element in (heat_map(options, matrix, what), matrix_table(options, matrix, what))
    )


def _is_measured(matrix: ContentionMatrix, what: Measure) -> bool:
    return any(cell.measure == what and (cell.naive or cell.isolated) for cell in matrix.cells)


def heat_map(options: MatrixOptions, matrix: ContentionMatrix, what: Measure) -> HeatMap:
    """Return the matrix in colours: each aggressor without isolation, and with it beside."""
    columns = [(a.name, level) for a in options.aggressors for level in ("naive", "isolated")]
    return HeatMap(
        title=f"{_capitalise(MEASURES[what])} beside each aggressor, as a multiple of that alone",
        name=f"matrix_{what}",
        rows=tuple(row_label(options, row) for row in matrix.rows),
        columns=tuple(f"{name} {level}" for name, level in columns),
        cells=tuple(
            tuple(_cell_ratio(matrix.cell(row, name, what), level) for name, level in columns) for row in matrix.rows
        ),
        unit="× alone",
        centre=1.0,
        unsure=tuple(
            tuple(_is_unsure(matrix.cell(row, name, what), level) for name, level in columns) for row in matrix.rows
        ),
        note=(
            "Naive: both may run on any core. Isolated: both are kept apart as far as this machine can. "
            "Grey: the 95 % interval includes 1, or there is none."
        ),
    )


def _capitalise(words: str) -> str:
    return words[:1].upper() + words[1:]


def _cell_ratio(cell: MatrixCell, level: str) -> float | None:
    estimate = cell.naive if level == "naive" else cell.isolated
    return estimate.value if estimate is not None else None


def _is_unsure(cell: MatrixCell, level: str) -> bool:
    """Return whether a ratio may as well be 1."""
    estimate = cell.naive if level == "naive" else cell.isolated
    return estimate is not None and (
        estimate.low is None or estimate.high is None or estimate.low <= 1.0 <= estimate.high
    )


def matrix_table(options: MatrixOptions, matrix: ContentionMatrix, what: Measure) -> Table:
    """Return the same with intervals and outcomes."""
    cells = [cell for cell in matrix.cells if cell.measure == what]
    rows: tuple[tuple[Shown, ...], ...] = tuple(
        (
            f"{row_label(options, cell.row)}, {cell.aggressor}",
            ratio_cell(cell.naive),
            ratio_cell(cell.isolated),
            outcome_text(cell),
        )
        for cell in cells
    )
    titles = ("victim, aggressor", "naive", "isolated", "outcome")
    return Table(
        title=f"{_capitalise(MEASURES[what])}, as a multiple of that alone, with 95 % intervals",
        columns=tuple(Column(title=t, numeric=t in {"naive", "isolated"}) for t in titles),
        rows=rows,
        tones=tuple(OUTCOME_TONES[cell.outcome] for cell in cells),
        note=(
            f"Ratios are taken within each block, to the victim alone at the same isolation. A ratio counts when its "
            f"interval lies beyond {1 + options.minimum_effect:g} and beyond what the same measurement, made twice, "
            "differs by chance."
        ),
    )
