"""For each quantity that is judged: how much worse head is than base, over the restarts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_value, unit_of
from assay.experiments.reporting import TIME_QUANTITIES
from assay.launch.schedules import TURNS
from assay.stats.blocks import LimitDecision, decide_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record, Verdict
    from assay.experiments.gate.plan import GateOptions
    from assay.stats.blocks import LimitVerdict as GateVerdict
    from assay.stats.intervals import Samples
    from assay.store.records import Records

BASE, HEAD = "base", "head"
CALL_QUANTITY = "call_us"
KERNEL_QUANTITIES = tuple(name for name in TIME_QUANTITIES if name != CALL_QUANTITY)
GATE_VERDICTS: dict[GateVerdict, Verdict] = {"worse": "no", "not worse": "yes", "unsure": "unsure"}
QUANTITY_NAMES = {
    CALL_QUANTITY: "time of a call",
    "busy_us": "time of its kernels",
    "span_us": "time from first to last kernel",
}


@dataclass(frozen=True)
class GateQuestion:
    """A quantity that is judged, and which way is worse."""

    quantity: str
    higher_is_better: bool = False

    @property
    def name(self) -> str:
        """The quantity for people."""
        return QUANTITY_NAMES.get(self.quantity, self.quantity)

    def format_value(self, value: float) -> str:
        """Write a value with its unit."""
        return format_value(value, "us" if self.quantity in TIME_QUANTITIES else unit_of(self.quantity))


@dataclass(frozen=True)
class RestartPair:
    """What one restart gave: the medians of both revisions, head over base turn by turn, and the trial it is of.

    ``ratio`` is null where one of them is not above zero.
    """

    trial: str
    block: str
    base: float
    head: float
    ratio: float | None


@dataclass(frozen=True)
class GateAnswer:
    """What is known about one quantity. Where there is no ratio, ``reason`` says why."""

    question: GateQuestion
    pairs: tuple[RestartPair, ...]
    decision: LimitDecision
    reason: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether head is within the limit."""
        return GATE_VERDICTS[self.decision.verdict]

    @property
    def logs(self) -> list[float]:
        """Of each restart the logarithm of how much worse head is."""
        return log_ratios(self.question, self.pairs)

    @property
    def change(self) -> tuple[float, float | None, float | None] | None:
        """Head over base, and the ends of its interval; null where it is not known."""
        ratio = self.decision.ratio
        if ratio is None:
            return None
        if not self.question.higher_is_better:
            return ratio.value, ratio.low, ratio.high
        ends = [None if end is None else 1 / end for end in (ratio.high, ratio.low)]
        return 1 / ratio.value, ends[0], ends[1]


def gate_questions(options: GateOptions, records: Sequence[Record]) -> tuple[GateQuestion, ...]:
    """Return what is judged: the times that were taken and asked for, then the metrics."""
    measured = {series.quantity for record in records if record.status == "ok" for series in record.series}
    kernels = [next((name for name in KERNEL_QUANTITIES if name in measured), CALL_QUANTITY)]
    times = {"both": [*kernels, CALL_QUANTITY], "kernels": kernels, "call": [CALL_QUANTITY]}[options.decide_on]
    return (
        *(GateQuestion(name) for name in dict.fromkeys(times) if options.gate_time),
        *(GateQuestion(name) for name in options.lower_is_better),
        *(GateQuestion(name, higher_is_better=True) for name in options.higher_is_better),
    )


def build_answers(options: GateOptions, records: Records) -> list[GateAnswer]:
    """Return what is known about everything that is judged."""
    to_judge = gate_questions(options, records)
    return [_build_answer(options, records, question, len(to_judge)) for question in to_judge]


def overall_verdict(results: Sequence[GateAnswer]) -> Verdict:
    """Return whether all is within the limit: one that is not decides, and so does one that is not known."""
    verdicts = {answer.verdict for answer in results}
    return "no" if "no" in verdicts else "unsure" if "unsure" in verdicts or not verdicts else "yes"


def _build_answer(options: GateOptions, records: Records, question: GateQuestion, question_count: int) -> GateAnswer:
    good = [record for record in records if record.status == "ok"]
    pairs = tuple(pair for record in good if (pair := restart_pair(records, record, question.quantity)) is not None)
    why = None
    if len(pairs) < len(good):
        why = f"{question.quantity} was not reported in every restart"
    elif any(pair.ratio is None for pair in pairs):
        why = f"{question.quantity} is not above zero, and has no ratio"
    if why is not None:
        return GateAnswer(question, pairs, LimitDecision("unsure", None), why)
    return GateAnswer(
        question, pairs, decide_limit(log_ratios(question, pairs), options.minimum_effect, question_count)
    )


def log_ratios(question: GateQuestion, pairs: Sequence[RestartPair]) -> list[float]:
    """Return of each restart the logarithm of how much worse head is: above zero is worse."""
    sign = -1.0 if question.higher_is_better else 1.0
    return [sign * math.log(pair.ratio) for pair in pairs if pair.ratio is not None]


def restart_pair(records: Records, record: Record, quantity: str) -> RestartPair | None:
    """Return what a restart gave for a quantity; null where one of the two gave nothing."""
    samples_by_role = {s.role: records.samples(s) for s in record.series if s.quantity == quantity and s.n}
    if not {BASE, HEAD} <= set(samples_by_role):
        return None
    base, head = samples_by_role[BASE], samples_by_role[HEAD]
    return RestartPair(
        record.trial, record.block, float(np.median(base)), float(np.median(head)), paired_ratio(base, head)
    )


def paired_ratio(base: Samples, head: Samples) -> float | None:
    """Return the typical ratio of neighbouring turns; null where a sample is not above zero.

    Turns are equally long, so the samples of each are an equal part of all. What slows the whole machine down for
    a while slows down both turns that it falls into, and their ratio does not see it.
    """
    if min(base.min(), head.min()) <= 0:
        return None
    turns = min(TURNS, len(base), len(head))
    by_turn = zip(np.array_split(base, turns), np.array_split(head, turns), strict=True)
    return math.exp(float(np.median([math.log(np.median(theirs) / np.median(ours)) for ours, theirs in by_turn])))
