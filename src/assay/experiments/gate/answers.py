"""What the restarts say: for each quantity that is judged, how much worse head is than base."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.units import format_time, unit_of
from assay.experiments.times import TIMES
from assay.launch.schedules import TURNS
from assay.stats.gates import Judged, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record, Verdict
    from assay.experiments.gate.options import GateOptions
    from assay.stats.gates import Verdict as GateVerdict
    from assay.stats.summary import Samples
    from assay.store.records import Records

BASE, HEAD = "base", "head"
CALL = "call_us"
KERNELS = tuple(name for name in TIMES if name != CALL)
VERDICTS: dict[GateVerdict, Verdict] = {"worse": "no", "not worse": "yes", "unsure": "unsure"}
NAMES = {CALL: "time of a call", "busy_us": "time of its kernels", "span_us": "time from first to last kernel"}


@dataclass(frozen=True)
class Question:
    """A quantity that is judged, and which way is worse."""

    quantity: str
    higher_is_better: bool = False

    @property
    def name(self) -> str:
        """The quantity for people."""
        return NAMES.get(self.quantity, self.quantity)

    def told(self, value: float) -> str:
        """Write a value with its unit."""
        return format_time(value) if self.quantity in TIMES else f"{value:.4g} {unit_of(self.quantity)}".strip()


@dataclass(frozen=True)
class Pair:
    """What one restart gave: the medians of both revisions, head over base turn by turn, and the trial it is of.

    ``ratio`` is null where one of them is not above zero.
    """

    trial: str
    block: str
    base: float
    head: float
    ratio: float | None


@dataclass(frozen=True)
class Answer:
    """What is known about one quantity. Where there is no ratio, ``reason`` says why."""

    question: Question
    pairs: tuple[Pair, ...]
    judged: Judged
    reason: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether head is within the limit."""
        return VERDICTS[self.judged.verdict]

    @property
    def logs(self) -> list[float]:
        """Of each restart the logarithm of how much worse head is."""
        return logs(self.question, self.pairs)

    @property
    def change(self) -> tuple[float, float | None, float | None] | None:
        """Head over base, and the ends of its interval; null where it is not known."""
        ratio = self.judged.ratio
        if ratio is None:
            return None
        if not self.question.higher_is_better:
            return ratio.value, ratio.low, ratio.high
        ends = [None if end is None else 1 / end for end in (ratio.high, ratio.low)]
        return 1 / ratio.value, ends[0], ends[1]


def questions(options: GateOptions, records: Sequence[Record]) -> tuple[Question, ...]:
    """Return what is judged: the times that were taken and asked for, then the metrics."""
    measured = {series.quantity for record in records if record.status == "ok" for series in record.series}
    kernels = [next((name for name in KERNELS if name in measured), CALL)]
    times = {"both": [*kernels, CALL], "kernels": kernels, "call": [CALL]}[options.decide_on]
    return (
        *(Question(name) for name in dict.fromkeys(times) if options.gate_time),
        *(Question(name) for name in options.lower_is_better),
        *(Question(name, higher_is_better=True) for name in options.higher_is_better),
    )


def answers(options: GateOptions, records: Records) -> list[Answer]:
    """Return what is known about everything that is judged."""
    to_judge = questions(options, records)
    return [_answer(options, records, question, len(to_judge)) for question in to_judge]


def verdict_of(found: Sequence[Answer]) -> Verdict:
    """Return whether all is within the limit: one that is not decides, and so does one that is not known."""
    verdicts = {answer.verdict for answer in found}
    return "no" if "no" in verdicts else "unsure" if "unsure" in verdicts or not verdicts else "yes"


def _answer(options: GateOptions, records: Records, question: Question, asked: int) -> Answer:
    good = [record for record in records if record.status == "ok"]
    pairs = tuple(pair for record in good if (pair := pair_of(records, record, question.quantity)) is not None)
    why = None
    if len(pairs) < len(good):
        why = f"{question.quantity} was not reported in every restart"
    elif any(pair.ratio is None for pair in pairs):
        why = f"{question.quantity} is not above zero, and has no ratio"
    if why is not None:
        return Answer(question, pairs, Judged("unsure", None), why)
    return Answer(question, pairs, judge(logs(question, pairs), options.minimum_effect, asked))


def logs(question: Question, pairs: Sequence[Pair]) -> list[float]:
    """Return of each restart the logarithm of how much worse head is: above zero is worse."""
    sign = -1.0 if question.higher_is_better else 1.0
    return [sign * math.log(pair.ratio) for pair in pairs if pair.ratio is not None]


def pair_of(records: Records, record: Record, quantity: str) -> Pair | None:
    """Return what a restart gave for a quantity; null where one of the two gave nothing."""
    samples_by_role = {s.role: records.samples(s) for s in record.series if s.quantity == quantity and s.n}
    if not {BASE, HEAD} <= set(samples_by_role):
        return None
    base, head = samples_by_role[BASE], samples_by_role[HEAD]
    return Pair(record.trial, record.block, float(np.median(base)), float(np.median(head)), turn_by_turn(base, head))


def turn_by_turn(base: Samples, head: Samples) -> float | None:
    """Return the typical ratio of neighbouring turns; null where a sample is not above zero.

    Turns are equally long, so the samples of each are an equal part of all. What slows the whole machine down for
    a while slows down both turns that it falls into, and their ratio does not see it.
    """
    if min(base.min(), head.min()) <= 0:
        return None
    turns = min(TURNS, len(base), len(head))
    by_turn = zip(np.array_split(base, turns), np.array_split(head, turns), strict=True)
    return math.exp(float(np.median([math.log(np.median(theirs) / np.median(ours)) for ours, theirs in by_turn])))
