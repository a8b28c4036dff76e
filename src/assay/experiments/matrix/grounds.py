"""What the matrix rests on: how hard aggressors pressed, how alike two equal measurements are, who ran where."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Column, Section, Strip, Strips, Table
from assay.experiments.matrix.intensity import intensities
from assay.experiments.matrix.meetings import samples_of
from assay.experiments.matrix.words import label, ratio_text
from assay.experiments.notes import notes_table
from assay.experiments.quality import held_text
from assay.experiments.times import AXES
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from assay.core.page import Cell as Shown
    from assay.core.page import Element
    from assay.core.results import Evidence, Record
    from assay.experiments.matrix.cells import Matrix
    from assay.experiments.matrix.effects import Samples
    from assay.experiments.matrix.meetings import Row
    from assay.experiments.matrix.options import MatrixOptions
    from assay.experiments.matrix.plan import Meeting
    from assay.store.records import Records


def grounds(options: MatrixOptions, matrix: Matrix, records: Records) -> tuple[Element, ...]:
    """Return the tables and figures behind the matrix."""
    if not matrix.pairs:
        return ()
    labels = {
        record.trial: f"{record.block.replace('-', ' ')}, {said(options, meeting, victim=not options.in_turns)}"
        for meeting, record in matrix.pairs
    }
    return (
        *pressed(options, matrix),
        *alone(options, matrix),
        *(strips(options, matrix, records, row, number) for number, row in enumerate(matrix.rows)),
        placed(options, matrix),
        *watched_table(records, labels),
        *notes_table(records, labels),
    )


def pressed(options: MatrixOptions, matrix: Matrix) -> list[Element]:
    """Return how hard each aggressor pressed, naive and isolated."""
    loads = intensities(list(matrix.pairs))
    rows: list[tuple[Shown, ...]] = [
        (a.name, a.subject.label, level, _digits(load.cores), _digits(load.gb_s), _digits(load.gflops))
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
            columns=tuple(Column(title=t, numeric=t in titles[3:]) for t in titles),
            rows=tuple(rows),
            note=(
                "CPU time, bytes and operations of the aggressor in each second that it was up, over all its trials. "
                "One that presses less when isolated does less harm for that reason too."
            ),
        )
    ]


def _digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def alone(options: MatrixOptions, matrix: Matrix) -> list[Element]:
    """Return what two equal measurements differ by, and what pinning by itself changes."""
    rows: list[tuple[Shown, ...]] = [
        (label(options, q.row), ratio_text(q.twice), ratio_text(q.bare)) for q in matrix.quiet if q.measure == "median"
    ]
    if not rows:
        return []
    titles = ("victim", "again, × alone", "unpinned, × alone")
    return [
        Table(
            title="Without any aggressor",
            columns=tuple(Column(title=t, numeric="×" in t) for t in titles),
            rows=tuple(rows),
            note="The median time. Again: the same measured a second time in each block, so that it differs by chance.",
        )
    ]


def strips(options: MatrixOptions, matrix: Matrix, records: Records, row: Row, number: int) -> Strips:
    """Return every sample of one row, a strip for each company it was in, over all blocks."""
    samples_by_label: dict[str, list[Samples]] = defaultdict(list)
    for meeting, record in sorted(matrix.pairs, key=lambda pair: _order(options, pair[0])):
        if (meeting.victim, meeting.device) == row[:2] and record.status == "ok":
            samples_by_label[said(options, meeting, victim=False)] += samples_of(options, records, record, row)
    return Strips(
        title=f"Every sample of {label(options, row)}",
        name=f"samples_{number}",
        axis=AXES[row.quantity],
        unit="µs",
        strips=tuple(_strip(name, several) for name, several in samples_by_label.items() if several),
        note="All blocks together; the value is the median of the blocks' medians.",
    )


def _order(options: MatrixOptions, meeting: Meeting) -> tuple[int, int]:
    names = [None, *(a.name for a in options.aggressors)]
    return names.index(meeting.aggressor), ("alone", "again", "bare", "naive", "isolated").index(meeting.phase)


def _strip(name: str, several: list[Samples]) -> Strip:
    middle = float(np.median([np.median(samples) for samples in several]))
    return Strip(label=name, samples=tuple(np.concatenate(several).tolist()), value=middle)


def said(options: MatrixOptions, meeting: Meeting, *, victim: bool = True) -> str:
    """Write a meeting in words."""
    phases = {"alone": "alone", "again": "alone again", "bare": "alone, unpinned"}
    text = phases.get(meeting.phase, f"beside {meeting.aggressor}, {meeting.phase}")
    return f"{options.victims[meeting.victim].label}, {text}" if victim else text


def placed(options: MatrixOptions, matrix: Matrix) -> Table:
    """Return where victims and aggressors ran, by what they read back themselves; equal rows are told once."""
    rows: dict[tuple[Shown, ...], None] = {}
    for meeting, record in sorted(matrix.pairs, key=lambda pair: (pair[0].victim, _order(options, pair[0]))):
        for evidence in record.evidence:
            rows[_place(options, meeting, evidence)] = None
    titles = ("meeting", "role", "device", "isolation held", "cores", "memory nodes", "threads")
    return Table(
        title="Who ran where, as each process read it back",
        columns=tuple(Column(title=t, numeric=t == "threads") for t in titles),
        rows=tuple(rows),
    )


def _place(options: MatrixOptions, meeting: Meeting, evidence: Evidence) -> tuple[Shown, ...]:
    return (
        said(options, meeting),
        evidence.role,
        evidence.device,
        held_text(evidence),
        " ".join(map(str, evidence.allowed_cores)),
        None if evidence.memory_nodes is None else " ".join(map(str, evidence.memory_nodes)),
        evidence.thread_limit,
    )


def trouble(options: MatrixOptions, matrix: Matrix) -> list[Section]:
    """Return the trials without a result, if there are any."""
    rows = tuple(_troubled(options, *pair) for pair in matrix.pairs if pair[1].status != "ok")
    if not rows:
        return []
    table = Table(
        title="Trials without a result",
        columns=tuple(Column(title=t) for t in ("block", "meeting", "status", "reason", "end of what it printed")),
        rows=rows,
        tones=tuple("bad" for _ in rows),
    )
    return [Section(title="What went wrong", elements=(table,))]


def _troubled(options: MatrixOptions, meeting: Meeting, record: Record) -> tuple[Shown, ...]:
    lines = (record.stderr_tail or "").strip().splitlines()
    telling = [line for line in lines if "rror" in line] or lines
    return (record.block, said(options, meeting), record.status, record.reason, telling[-1] if telling else None)
