"""What went wrong, for the pages of all experiments: trials without a result, and the last thing they printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Section, Table, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell, Element
    from assay.core.results import LostGpu, Record


def trouble(records: Iterable[Record]) -> list[Section]:
    """Return a section about the trials without a result and the GPUs lost; nothing where all went well."""
    all_records = list(records)
    elements = (*_failed(all_records), *_lost(all_records))
    return [Section(title="What went wrong", elements=elements)] if elements else []


def _failed(records: Sequence[Record]) -> list[Element]:
    rows = tuple(_row(record) for record in records if record.status != "ok")
    if not rows:
        return []
    titles = ("block", "trial", "status", "reason", "end of what it printed")
    return [
        Table(
            title="Trials without a result",
            columns=tuple(Column(title=t) for t in titles),
            rows=rows,
            tones=tuple("bad" for _ in rows),
        )
    ]


def _lost(records: Sequence[Record]) -> list[Element]:
    """Return a sentence for each metered GPU that was lost: when first, why, and in how many trials it is missing."""
    lost: dict[str, list[tuple[Record, LostGpu]]] = {}
    for record in records:
        for gpu in record.lost_gpus:
            lost.setdefault(gpu.uuid, []).append((record, gpu))
    return [Text(text=_lost_text(several), tone="bad") for several in lost.values()]


def _lost_text(several: Sequence[tuple[Record, LostGpu]]) -> str:
    record, gpu = several[0]
    when = f"{gpu.after_s:.1f} s into trial {record.trial}" if gpu.after_s else f"before trial {record.trial}"
    trials = f"{len(several)} trial{'' if len(several) == 1 else 's'}"
    return (
        f"GPU {gpu.gpu} was lost {when} of {record.block}: {gpu.reason}. The result is partial: {trials} "
        "without its sensors from then on."
    )


def _row(record: Record) -> tuple[Cell, ...]:
    lines = (record.stderr_tail or "").strip().splitlines()
    telling = [line for line in lines if "rror" in line] or lines
    return (record.block, record.trial, record.status, record.reason, telling[-1] if telling else None)
