"""What went wrong, for the pages of all experiments: trials without a result, and the last thing they printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.page import Cell
    from assay.core.results import Record


def trouble(records: Iterable[Record]) -> list[Section]:
    """Return a section about the trials without a result; nothing where all went well."""
    rows = tuple(_row(record) for record in records if record.status != "ok")
    if not rows:
        return []
    titles = ("block", "trial", "status", "reason", "end of what it printed")
    table = Table(
        title="Trials without a result",
        columns=tuple(Column(title=t) for t in titles),
        rows=rows,
        tones=tuple("bad" for _ in rows),
    )
    return [Section(title="What went wrong", elements=(table,))]


def _row(record: Record) -> tuple[Cell, ...]:
    lines = (record.stderr_tail or "").strip().splitlines()
    telling = [line for line in lines if "rror" in line] or lines
    return (record.block, record.trial, record.status, record.reason, telling[-1] if telling else None)
