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
from assay.core.page import HeatMap, Page, Section, StripPlot, StripRow, Table, Text, build_table
from assay.core.results import Finding, Findings
from assay.experiments.base import Report
from assay.experiments.budget import overrun_text
from assay.experiments.matrix.analysis import MEASURES, aggressor_loads, build_matrix, victim_samples
from assay.experiments.matrix.plan import ISOLATION_LEVELS
from assay.experiments.reporting import (
    TIME_AXES,
    TIME_LABELS,
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
    from assay.core.results import Estimate, Verdict
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
    naive, isolated, reduction = cell.naive, cell.isolated, cell.reduction
    if cell.outcome == "no effect seen" and naive and naive.high is not None:
        return f"no effect seen (at most {format_percent(max(naive.high, 1.0) - 1)})"
    if cell.outcome == "cured by isolation" and isolated and isolated.high is not None:
        return f"cured by isolation (≤ {format_percent(max(isolated.high, 1.0) - 1)} left)"
    if cell.outcome == "not cured" and reduction and reduction.low is not None and reduction.low > 1:
        return "not cured, but eased"
    if cell.outcome == "hurts":
        return "hurts; cure unclear"
    return _unknown_reason(naive) if cell.outcome == "not known" else cell.outcome


def _unknown_reason(naive: Estimate | None) -> str:
    if naive is None:
        return "not known: not measured without isolation"
    if naive.low is None or naive.high is None:
        return "not known: one block tells nothing of chance"
    if is_uninformative(naive.low, naive.high):
        return "not known: it may be anything"
    return f"not known: anything from {naive.low:.2g} to {naive.high:.2g}"


MAX_NAMED_VICTIMS = 3
"""Victims that a sentence names at most."""
NOISY_MARGIN = 0.1
"""From this difference between two equal measurements on, it is said beside the result."""


def build_report(machine: Machine, options: MatrixOptions, records: Records) -> Report:
    """Return what each aggressor does to each victim, whether isolation cures it, and what it rests on."""
    matrix = build_matrix(options, records)
    findings = build_findings(options, matrix)
    return Report(findings, build_page(machine, options, matrix, findings, records))


def build_findings(options: MatrixOptions, matrix: ContentionMatrix) -> Findings:
    """Return a finding for each aggressor, victim and measure, and one for what was asked and never measured."""
    loads = aggressor_loads(matrix.pairs)
    findings = tuple(_cell_finding(options, matrix, cell, loads) for cell in matrix.cells)
    return Findings(headline=headline(options, matrix), findings=(*findings, *_missing_findings(options, matrix)))


def _cell_finding(
    options: MatrixOptions, matrix: ContentionMatrix, cell: MatrixCell, loads: dict[tuple[str, str], AggressorLoad]
) -> Finding:
    behind = [
        record
        for pair, record in matrix.pairs
        if (pair.victim, pair.device) == cell.row[:2]
        and pair.aggressor in {None, cell.aggressor}
        and record.status == "ok"
    ]
    isolated = cell.isolated
    load_facts: Params = {
        f"{phase}_{name}": value
        for phase in ("naive", "isolated")
        if (load := loads.get((cell.aggressor, phase))) is not None
        for name, value in load._asdict().items()
    }
    return Finding(
        claim=(
            f"{cell.aggressor} beside {row_label(options, cell.row)}: its {MEASURES[cell.measure]} grows without "
            "isolation"
        ),
        estimate=cell.naive,
        verdict=_cell_verdict(cell),
        reason=outcome_text(cell),
        records=tuple(record.trial for record in behind),
        facts={
            "victim": options.victims[cell.row.victim].label,
            "device": cell.row.device,
            "quantity": cell.row.quantity,
            "aggressor": cell.aggressor,
            "measure": cell.measure,
            "outcome": cell.outcome,
            "isolated": isolated.value if isolated else None,
            "isolated_low": isolated.low if isolated else None,
            "isolated_high": isolated.high if isolated else None,
            "counts_beyond": cell.beyond if math.isfinite(cell.beyond) else None,
            **load_facts,
        },
        origin=overall_origin(behind),
    )


def _cell_verdict(cell: MatrixCell) -> Verdict:
    """Return yes where it surely grows, no where it surely does not grow by what counts."""
    if cell.outcome in {"hurts", "cured by isolation", "not cured"}:
        return "yes"
    high = cell.naive.high if cell.naive else None
    return "no" if high is not None and high <= cell.beyond and math.isfinite(cell.beyond) else "unsure"


def _missing_findings(options: MatrixOptions, matrix: ContentionMatrix) -> tuple[Finding, ...]:
    """Return what never worked, each with the last reason."""
    tried: dict[tuple[str, str | None], list[tuple[str, str | None, str]]] = {}
    for pair, record in matrix.pairs:
        key = (f"{options.victims[pair.victim].label} on {pair.device}", pair.aggressor)
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
    parts = [
        _aggressors_text(options, medians, "not cured", "isolation does not cure"),
        _aggressors_text(options, medians, "cured by isolation", "isolation cures"),
        _aggressors_text(options, medians, "hurts", "whether isolation cures is not clear for"),
        _aggressors_text(options, medians, "hurts only isolated", "only isolated processes suffer from"),
        _no_effect_text(medians),
        _unknown_text(options, medians),
    ]
    return f"{_capitalise('; '.join(part for part in parts if part))}.{_noise_text(medians)}"


def _aggressors_text(options: MatrixOptions, cells: list[MatrixCell], outcome: Outcome, words: str) -> str:
    """Name the aggressors of one outcome, and the worst cell with how much it is."""

    def largest_ratio(cell: MatrixCell) -> float:
        return max((e.value for e in (cell.naive, cell.isolated) if e is not None), default=1.0)

    matching = sorted((c for c in cells if c.outcome == outcome), key=largest_ratio, reverse=True)
    if not matching:
        return ""
    names, worst = list(dict.fromkeys(c.aggressor for c in matching)), matching[0]
    cell_text = f"beside {row_label(options, worst.row)}"
    cell_text = cell_text if len(names) == 1 else f"{worst.aggressor} {cell_text}"
    naive, isolated = ("not measured" if e is None else format_ratio(e.value) for e in (worst.naive, worst.isolated))
    which = "worst " if len(matching) > 1 else ""
    return f"{words} {format_list(names)} ({which}{cell_text}: {naive} without, {isolated} with)"


def _no_effect_text(medians: list[MatrixCell]) -> str:
    cells = [cell for cell in medians if cell.outcome == "no effect seen"]
    if not cells:
        return ""
    rest = "" if len(cells) == len(medians) else " elsewhere"
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
    texts = []
    for labels, names in by_victims.items():
        everywhere = len(labels) == len(everyone) > MAX_NAMED_VICTIMS
        who = "any victim" if everywhere else format_list(labels, most=MAX_NAMED_VICTIMS)
        texts.append(f"{format_list(names)} beside {who}")
    return f"nothing can be said yet of {', nor of '.join(texts)}" if texts else ""


def _method_elements(options: MatrixOptions, matrix: ContentionMatrix, records: Records) -> tuple[Element, ...]:
    """Return the tables and figures behind the matrix."""
    if not matrix.pairs:
        return ()
    labels = {
        record.trial: f"{record.block.replace('-', ' ')}, {_pair_text(options, pair, victim=not options.in_turns)}"
        for pair, record in matrix.pairs
    }
    return (
        *_load_table(options, matrix),
        *_baseline_table(options, matrix),
        *(_sample_strips(options, matrix, records, row, number) for number, row in enumerate(matrix.rows)),
        _placement_table(options, matrix),
        *monitor_table(records, labels),
        *notes_table(records, labels),
    )


def _load_table(options: MatrixOptions, matrix: ContentionMatrix) -> list[Element]:
    """Return how hard each aggressor pressed, naive and isolated."""
    loads = aggressor_loads(matrix.pairs)
    rows: list[tuple[Shown, ...]] = [
        (
            a.name,
            a.subject.label,
            level,
            *(
                None if value is None else format_significant(value, 3)
                for value in (load.cores, load.gb_s, load.gflops)
            ),
        )
        for a in options.aggressors
        for level in ("naive", "isolated")
        if (load := loads.get((a.name, level))) is not None
    ]
    if not rows:
        return []
    note = (
        "CPU time, bytes and operations of the aggressor in each second that it was up, over all its trials. "
        "One that presses less when isolated does less harm for that reason too."
    )
    columns = table_columns("aggressor", "is", "isolation", "cores' worth", "GB/s", "GFLOP/s", words=3)
    return [Table(title="How hard the aggressors pressed", columns=columns, rows=tuple(rows), note=note)]


def _baseline_table(options: MatrixOptions, matrix: ContentionMatrix) -> list[Element]:
    """Return what two equal measurements differ by, and what pinning by itself changes."""
    medians = [baseline for baseline in matrix.baselines if baseline.measure == "median"]
    if not medians:
        return []
    table = build_table(
        "Without any aggressor",
        medians,
        {
            "victim": lambda baseline: row_label(options, baseline.row),
            "again, × alone": lambda baseline: ratio_cell(baseline.repeated),
            "unpinned, × alone": lambda baseline: ratio_cell(baseline.unpinned),
        },
        numeric=("again, × alone", "unpinned, × alone"),
        note="The median time. Again: the same measured a second time in each block, so that it differs by chance.",
    )
    return [table]


def _sample_strips(
    options: MatrixOptions, matrix: ContentionMatrix, records: Records, row: VictimRow, number: int
) -> StripPlot:
    """Return every sample of one row, a strip for each aggressor and phase, over all blocks."""
    samples_by_label: dict[str, list[Samples]] = defaultdict(list)
    for pair, record in sorted(matrix.pairs, key=lambda item: _pair_order(options, item[0])):
        if (pair.victim, pair.device) == row[:2] and record.status == "ok":
            samples_by_label[_pair_text(options, pair, victim=False)] += victim_samples(options, records, record, row)
    strips = []
    for name, several in samples_by_label.items():
        if several:
            middle = float(np.median([np.median(samples) for samples in several]))
            strips.append(StripRow(label=name, samples=tuple(np.concatenate(several).tolist()), value=middle))
    return StripPlot(
        title=f"Every sample of {row_label(options, row)}",
        name=f"samples_{number}",
        axis=TIME_AXES[row.quantity],
        unit="µs",
        strips=tuple(strips),
        note="All blocks together; the value is the median of the blocks' medians.",
    )


def _pair_order(options: MatrixOptions, pair: MatrixPair) -> tuple[int, int]:
    names = [None, *(a.name for a in options.aggressors)]
    return names.index(pair.aggressor), list(ISOLATION_LEVELS).index(pair.phase)


def _pair_text(options: MatrixOptions, pair: MatrixPair, *, victim: bool = True) -> str:
    """Write a pair in words."""
    phases = {"alone": "alone", "again": "alone again", "bare": "alone, unpinned"}
    text = phases.get(pair.phase, f"beside {pair.aggressor}, {pair.phase}")
    return f"{options.victims[pair.victim].label}, {text}" if victim else text


def _placement_table(options: MatrixOptions, matrix: ContentionMatrix) -> Table:
    """Return where victims and aggressors ran, by what they read back themselves; equal rows are told once."""
    rows: dict[tuple[Shown, ...], None] = {}
    for pair, record in sorted(matrix.pairs, key=lambda item: (item[0].victim, _pair_order(options, item[0]))):
        for evidence in record.evidence:
            nodes = evidence.memory_nodes
            cells = (
                _pair_text(options, pair),
                evidence.role,
                evidence.device,
                isolation_text(evidence),
                " ".join(map(str, evidence.allowed_cores)),
                None if nodes is None else " ".join(map(str, nodes)),
                evidence.thread_limit,
            )
            rows[cells] = None
    return Table(
        title="Who ran where, as each process read it back",
        columns=table_columns(
            "meeting", "role", "device", "isolation held", "cores", "memory nodes", "threads", words=6
        ),
        rows=tuple(rows),
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
            Section(title="What it rests on", elements=_method_elements(options, matrix, records)),
        ],
        facts={
            "devices": ", ".join(options.devices),
            "blocks": f"{len({record.block for _, record in matrix.pairs})} of {options.repeat}",
            "per trial": f"{options.duration_s:g} s",
            "seed": str(options.seed),
        },
        trial_labels={record.trial: _pair_text(options, pair) for pair, record in matrix.pairs},
    )


def _results(options: MatrixOptions, matrix: ContentionMatrix, findings: Findings) -> tuple[Element, ...]:
    missing = [
        Text(text=f"Missing: not so, that {f.claim}: {f.reason}.", tone="bad")
        for f in findings.findings
        if f.kind == "missing"
    ]
    overrun = None
    if options.budget_s is not None:
        overrun = overrun_text(options.budget_s, [record for _, record in matrix.pairs])
    late = [] if overrun is None else [Text(text=f"{_capitalise(overrun)}.", tone="unsure")]
    if not matrix.cells:
        return (*missing, *late)
    return (_heat_map(options, matrix, "median"), _matrix_table(options, matrix, "median"), *missing, *late)


def _tails(options: MatrixOptions, matrix: ContentionMatrix) -> tuple[Element, ...]:
    measured = {cell.measure for cell in matrix.cells if cell.naive or cell.isolated}
    return tuple(
        element
        for what in TAIL_MEASURES
        if what in measured
        for element in (_heat_map(options, matrix, what), _matrix_table(options, matrix, what))
    )


def _heat_map(options: MatrixOptions, matrix: ContentionMatrix, what: Measure) -> HeatMap:
    """Return the matrix in colours: each aggressor without isolation, and with it beside."""
    by_row = []
    for row in matrix.rows:
        cells = [matrix.cell(row, aggressor.name, what) for aggressor in options.aggressors]
        by_row.append([estimate for cell in cells for estimate in (cell.naive, cell.isolated)])
    return HeatMap(
        title=f"{_capitalise(MEASURES[what])} beside each aggressor, as a multiple of that alone",
        name=f"matrix_{what}",
        rows=tuple(row_label(options, row) for row in matrix.rows),
        columns=tuple(f"{a.name} {level}" for a in options.aggressors for level in ("naive", "isolated")),
        cells=tuple(tuple(None if e is None else e.value for e in estimates) for estimates in by_row),
        unit="× alone",
        centre=1.0,
        unsure=tuple(tuple(e is not None and _may_be_one(e) for e in estimates) for estimates in by_row),
        note=(
            "Naive: both may run on any core. Isolated: both are kept apart as far as this machine can. "
            "Grey: the 95 % interval includes 1, or there is none."
        ),
    )


def _capitalise(words: str) -> str:
    return words[:1].upper() + words[1:]


def _may_be_one(ratio: Estimate) -> bool:
    return ratio.low is None or ratio.high is None or ratio.low <= 1.0 <= ratio.high


def _matrix_table(options: MatrixOptions, matrix: ContentionMatrix, what: Measure) -> Table:
    """Return the same with intervals and outcomes."""

    def tone(cell: MatrixCell) -> Tone:
        return OUTCOME_TONES[cell.outcome]

    return build_table(
        f"{_capitalise(MEASURES[what])}, as a multiple of that alone, with 95 % intervals",
        [cell for cell in matrix.cells if cell.measure == what],
        {
            "victim, aggressor": lambda cell: f"{row_label(options, cell.row)}, {cell.aggressor}",
            "naive": lambda cell: ratio_cell(cell.naive),
            "isolated": lambda cell: ratio_cell(cell.isolated),
            "outcome": outcome_text,
        },
        numeric=("naive", "isolated"),
        tone=tone,
        note=(
            f"Ratios are taken within each block, to the victim alone at the same isolation. A ratio counts when its "
            f"interval lies beyond {1 + options.minimum_effect:g} and beyond what the same measurement, made twice, "
            "differs by chance."
        ),
    )
