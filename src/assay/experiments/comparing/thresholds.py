"""Whether thresholds rose from the baseline to another result, as ``assay threshold run --baseline`` judges it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.experiments.comparing.from_older import THRESHOLD
from assay.experiments.comparing.judging import on_same
from assay.experiments.threshold import baseline, saved
from assay.experiments.threshold.answers import answer

if TYPE_CHECKING:
    from assay.core.results import Verdict
    from assay.experiments.comparing.aligning import Table


@dataclass(frozen=True)
class Rose:
    """Whether one threshold rose in the result at a place: yes, no, or that cannot be told; in words."""

    other: int
    name: str
    rose: Verdict
    said: str


def risen(table: Table) -> list[Rose]:
    """Return for each threshold that the baseline and another result on the same model have whether it rose.

    The other is decided anew by the baseline's margin and time, so that like is held against like.
    """
    names = [name for name in table.shared if name.quantity == THRESHOLD]
    others = [
        other
        for other in range(1, len(table.sources))
        if any(table.rows[name][other] and on_same(table.rows[name][0], table.rows[name][other]) for name in names)
    ]
    return [rose for other in others for rose in _risen(table, other)]


def _risen(table: Table, other: int) -> list[Rose]:
    first, second = (Path(table.sources[index].path) for index in (0, other))
    try:
        before, old, new = baseline.read(first), saved.read(first), saved.read(second)
    except BadInput:
        return []
    margin = None if old.results is None else old.thresholds[0][0].margin
    decide_on = new.decide_on if old.results is None else old.decide_on
    answers = [answer(item, decide_on) for item in new.judged(margin, decide_on)]
    return [Rose(other, item.name, item.rose, item.said) for item in baseline.compare(answers, before)]
