"""The experiment behind ``assay gate``: is one revision slower than another by more than a limit?

Restarts of both revisions in turns, one after another, until a planned interim analysis decides or the budget is spent.
For each quantity that is judged: how much worse head is than base, over the restarts. The page has the verdict in one
sentence, changes in percent against the limit, every restart, and the two revisions.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from assay.core.errors import BadInput
from assay.core.format import format_change, format_count, format_duration, format_percent, format_value, unit_of
from assay.core.page import Column, Section, StripPlot, StripRow, Table, Text, build_table
from assay.core.results import Estimate, Finding
from assay.core.values import Adaptive, Block, Cache, Done, InterferencePolicy, Isolation, Role, Subject, Trial, Value
from assay.experiments.base import Experiment, Report
from assay.experiments.budget import DEFAULT_WORKER_START_S, TRIAL_OVERHEAD_S, WORKER_START_S, block_durations_s
from assay.experiments.reporting import (
    CLAIM_TONES,
    TIME_QUANTITIES,
    compose_page,
    gather_findings,
    monitor_table,
    notes_table,
)
from assay.launch.checkouts import Checkouts, Revision
from assay.launch.schedules import TURNS
from assay.stats.blocks import (
    MAX_RESTARTS,
    MIN_RESTARTS,
    LimitDecision,
    decide_limit,
    estimate_restarts_needed,
    plan_gate_looks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.page import Cell, Element, Page
    from assay.core.results import Findings, Record, Verdict
    from assay.machine.model import Machine
    from assay.stats.blocks import LimitVerdict
    from assay.stats.intervals import Samples
    from assay.store.records import Records


DecideOn = Literal["both", "kernels", "call"]

RESTARTS, QUICK_RESTARTS = 5, 3
DURATION_S, QUICK_DURATION_S = 3.0, 1.0
BUDGET_S, QUICK_BUDGET_S = 120.0, 30.0
MINIMUM_EFFECT = 0.02


class GateOptions(Value):
    """Two revisions compared on one device."""

    checkouts: Checkouts
    subject: Subject
    device: str
    minimum_effect: float = Field(default=MINIMUM_EFFECT, gt=0, lt=1, description="0.02: worse by 2 % is too much.")
    restarts: int = Field(default=RESTARTS, ge=MIN_RESTARTS, le=MAX_RESTARTS, description="Before the first look.")
    duration_s: float = Field(default=DURATION_S, gt=0, description="Of a restart, start-up excluded.")
    budget_s: float = Field(default=BUDGET_S, gt=0, description="No restart begins that would exceed it.")
    decide_on: DecideOn = Field(default="both", description="On a GPU: the time of the kernels, of a call, or both.")
    gate_time: bool = Field(default=True, description="False: only the metrics are judged.")
    lower_is_better: tuple[str, ...] = Field(default=(), description="Numbers of a command that are judged.")
    higher_is_better: tuple[str, ...] = ()
    unsure: Literal["pass", "fail"] = "pass"
    isolation: Isolation = "full"
    on_interference: InterferencePolicy = "warn"
    cache: Cache | None = None
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    notes: tuple[str, ...] = Field(default=(), description="Notes on the revisions, from before they were measured.")
    seed: int = 0

    @model_validator(mode="after")
    def _something_is_judged(self) -> Self:
        if not self.gate_time and not self.lower_is_better and not self.higher_is_better:
            raise ValueError(
                "nothing is judged: without the time, name a metric with --lower-is-better or --higher-is-better"
            )
        return self

    @property
    def base(self) -> Revision:
        """The revision that the other is compared with."""
        return self.checkouts.revisions[0]

    @property
    def head(self) -> Revision:
        """The revision that is judged."""
        return self.checkouts.revisions[1]

    @property
    def same_commit(self) -> bool:
        """Whether it is one commit twice: an A/A run, which shows what the machine itself does."""
        return self.base.commit == self.head.commit


BASE, HEAD = "base", "head"
CALL_QUANTITY = "call_us"
KERNEL_QUANTITIES = tuple(name for name in TIME_QUANTITIES if name != CALL_QUANTITY)
GATE_VERDICTS: dict[LimitVerdict, Verdict] = {"worse": "no", "not worse": "yes", "unsure": "unsure"}
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
    questions = gate_questions(options, records)
    return [_build_answer(options, records, question, len(questions)) for question in questions]


def overall_verdict(results: Sequence[GateAnswer]) -> Verdict:
    """Return whether all is within the limit: one that is not decides, and so does one that is not known."""
    verdicts = {answer.verdict for answer in results}
    return "no" if "no" in verdicts else "unsure" if "unsure" in verdicts or not verdicts else "yes"


def _build_answer(options: GateOptions, records: Records, question: GateQuestion, question_count: int) -> GateAnswer:
    good = [record for record in records if record.status == "ok"]
    pairs = tuple(pair for record in good if (pair := restart_pair(records, record, question.quantity)) is not None)
    undecided = LimitDecision("unsure", None)
    if len(pairs) < len(good):
        return GateAnswer(question, pairs, undecided, f"{question.quantity} was not reported in every restart")
    if any(pair.ratio is None for pair in pairs):
        return GateAnswer(question, pairs, undecided, f"{question.quantity} is not above zero, and has no ratio")
    decision = decide_limit(log_ratios(question, pairs), options.minimum_effect, question_count)
    return GateAnswer(question, pairs, decision)


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


def next_gate_step(options: GateOptions, records: Records) -> Block | Done:
    """Return the next restart, or why there is none.

    Raises:
        BadInput: Neither revision reported a metric that is gated on; the sentence says how it is reported.
    """
    for name in (*options.lower_is_better, *options.higher_is_better):
        for record in records:
            if record.status == "ok" and not any(series.quantity == name and series.n for series in record.series):
                raise BadInput(
                    f"Neither revision reported {name}: add --metric {name}=REGEX, or write it to $ASSAY_RESULT."
                )
    return next_restart(options, records)


MIN_RESTARTS_FOR_INTERVAL = 2
"""Whatever the budget: a single one has no interval."""


def next_restart(options: GateOptions, records: Records, answers: Sequence[GateAnswer] | None = None) -> Block | Done:
    """Return the next restart, or why there is none; ``answers`` are those of the records (null: built when needed)."""
    bad = [record for record in records if record.status != "ok"]
    if bad:
        return Done(why=f"a restart could not be measured: {bad[-1].reason}")
    n = len(records)
    if n in plan_gate_looks(options.restarts):
        results = build_answers(options, records) if answers is None else answers
        if overall_verdict(results) != "unsure":
            return Done(why=f"it was decided after {n} restarts")
    if n >= MAX_RESTARTS:
        return Done(why=f"{n} restarts have not decided it")
    left_s = options.budget_s - sum(block_durations_s(records).values())
    if n >= MIN_RESTARTS_FOR_INTERVAL and left_s < expected_restart_s(options, records):
        return Done(why=f"the budget of {format_duration(options.budget_s)} is spent")
    name = f"restart-{n + 1}"
    next_look = next((look for look in plan_gate_looks(options.restarts) if look > n), MAX_RESTARTS)
    return Block(
        name=name,
        why=f"restart {n + 1}; next decision after restart {next_look}",
        trials=(restart_trial(options, name, n, worker_start_s(options, records)),),
        left_s=max(left_s, expected_restart_s(options, records)),
    )


def expected_restart_s(options: GateOptions, records: Sequence[Record]) -> float:
    """Return about how long the next restart takes, in seconds: as the last ones, or as is usual."""
    took = sorted(block_durations_s(records).values())
    return took[len(took) // 2] if took else options.duration_s + worker_start_s(options, records) + TRIAL_OVERHEAD_S


def worker_start_s(options: GateOptions, records: Sequence[Record]) -> float:
    """Return how long it takes until both workers are ready, in seconds: as in the last restart, or as is usual."""
    setups_s = [evidence.setup_s for record in records[-1:] for evidence in record.evidence]
    return max(setups_s, default=WORKER_START_S.get(options.subject.impl, DEFAULT_WORKER_START_S))


def head_first(options: GateOptions, number: int) -> bool:
    """Return whether head has the first turn in a restart: random in every second restart, alternating after it."""
    lot = random.Random(f"{options.seed}/{number // 2}").random() < 0.5  # noqa: S311 - an order is no secret
    return lot if number % 2 == 0 else not lot


def restart_trial(options: GateOptions, block: str, number: int, starting_s: float) -> Trial:
    """Return one restart: both revisions in processes of their own, in turns on one device."""
    roles = [
        Role(
            name=name,
            subjects=(options.subject.model_copy(update={"source": options.checkouts.source(revision)}),),
            devices=(options.device,),
            isolation=options.isolation,
        )
        for name, revision in ((BASE, options.base), (HEAD, options.head))
    ]
    return Trial(
        block=block,
        roles=tuple(reversed(roles) if head_first(options, number) else roles),
        schedule="turns",
        mode=Adaptive(duration_s=options.duration_s + starting_s, cache=options.cache, timeout_s=options.timeout_s),
        settings={BASE: options.base.commit, HEAD: options.head.commit},
        on_interference=options.on_interference,
        placed_with=(options.device,),
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + number,
    )


VERDICT_TEXTS: dict[Verdict, str] = {"yes": "passes", "no": "fails", "unsure": "not enough data"}
SAFETY_FACTOR = 1.3
"""Of the time that is reckoned to be needed: more than that is advised."""


def limit_text(options: GateOptions, question: GateQuestion) -> str:
    """Write how much of a change is too much."""
    edge = 1 + options.minimum_effect
    change = 100 * ((1 / edge if question.higher_is_better else edge) - 1)
    return f"{'+' if change > 0 else '−'}{abs(change):.3g} %"


def change_text(answer: GateAnswer) -> str:
    """Write a change with its interval, or why there is none."""
    ratio = answer.change
    if ratio is None:
        return answer.reason or "not measured"
    value, low, high = ratio
    return f"{format_change(value)}, a single restart" if low is None else format_change(value, low, high)


def headline(options: GateOptions, results: Sequence[GateAnswer], records: Records) -> str:
    """Return the answer in one sentence, and what would help where there is none."""
    verdict = overall_verdict(results)
    telling = [answer for answer in results if answer.verdict == verdict] or list(results)
    details = "; ".join(
        f"{a.question.name} {change_text(a)}, the limit is {limit_text(options, a.question)}" for a in telling
    )
    same = ", the same commit twice" if options.same_commit else ""
    count = format_count(sum(record.status == "ok" for record in records), "restart")
    sentence = f"{VERDICT_TEXTS[verdict].capitalize()}: head against base{same}, {details} ({count})."
    return sentence if verdict != "unsure" else f"{sentence} {advice(options, telling, records)}".strip()


def advice(options: GateOptions, unsure: Sequence[GateAnswer], records: Records) -> str:
    """Say what would decide it, as far as can be foreseen."""
    bad = [record for record in records if record.status != "ok"]
    if bad:
        return f"{bad[-1].reason}."
    if any(answer.reason is not None for answer in unsure):
        return ""
    count = len(gate_questions(options, records))
    needed = [estimate_restarts_needed(log_ratios(a.question, a.pairs), options.minimum_effect, count) for a in unsure]
    disturbed = sum(bool(record.disturbed) for record in records)
    if disturbed > len(records) / 2:
        busy = f"{disturbed} of {len(records)} restarts"
        return f"Others kept the machine busy in {busy}; --on-interference wait waits for them."
    if None in needed:
        return "It is too near the limit for this machine's noise; with a longer --duration restarts agree better."
    most = max(n for n in needed if n is not None)
    seconds = SAFETY_FACTOR * most * expected_restart_s(options, records)
    return f"About {most} restarts would decide it: --budget {max(1, round(seconds))}s."


def build_page(
    machine: Machine, options: GateOptions, results: Sequence[GateAnswer], findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    labels = {record.trial: record.block.replace("-", " ") for record in records}
    step = next_restart(options, records, results)
    ended = [Text(text=f"It ended as {step.why}.")] if isinstance(step, Done) else []
    notes = [Text(text=f"{note[:1].upper()}{note[1:]}.") for note in options.notes]
    elements: dict[str, Sequence[Element]] = {
        "Results": [answers_table(options, results), *notes, *_ratio_figure(results)],
        "Every restart": [_restarts_table(options, answer) for answer in results],
        "The revisions": [_revisions_table(options)],
        "What it rests on": [*monitor_table(records, labels), *notes_table(records, labels), *ended],
    }
    return compose_page(
        machine,
        records,
        title=f"assay gate: {options.subject.label}",
        lead=findings.headline,
        lead_tone=CLAIM_TONES[overall_verdict(results)],
        sections=[Section(title=title, elements=tuple(of_section)) for title, of_section in elements.items()],
        facts={
            "device": options.device,
            "isolation asked": options.isolation,
            "repository": options.checkouts.repository,
            "minimum effect": f"{100 * options.minimum_effect:.3g} %",
            "seed": str(options.seed),
        },
    )


def answers_table(options: GateOptions, results: Sequence[GateAnswer]) -> Table:
    """Return what is known about each quantity."""
    titles = ("quantity", "base", "head", "change", "interval", "limit", "answer")
    return Table(
        title="Head against base",
        columns=tuple(Column(title=title, numeric=1 <= index <= 5) for index, title in enumerate(titles)),
        rows=tuple(_answer_row(options, answer) for answer in results),
        tones=tuple(CLAIM_TONES[answer.verdict] for answer in results),
        note="Typical medians of the restarts. The interval is over restarts and holds at every look together with the "
        "others (95 %): it passes where all of it is within the limit, and fails where all of it is beyond.",
    )


def _answer_row(options: GateOptions, answer: GateAnswer) -> tuple[Cell, ...]:
    question, ratio = answer.question, answer.change
    limit, verdict = limit_text(options, question), VERDICT_TEXTS[answer.verdict]
    if ratio is None:
        return (question.name, None, None, None, None, limit, answer.reason or verdict)
    value, low, high = ratio
    base = sorted(pair.base for pair in answer.pairs)[len(answer.pairs) // 2]
    interval = None if low is None or high is None else f"{format_change(low)} to {format_change(high)}"
    cells = (question.format_value(base), question.format_value(base * value), format_change(value), interval)
    return (question.name, *cells, limit, verdict)


def _ratio_figure(results: Sequence[GateAnswer]) -> list[Element]:
    strips = []
    for answer in results:
        if answer.change is not None:
            ratios = tuple(pair.ratio for pair in answer.pairs if pair.ratio is not None)
            value, low, high = answer.change
            strips.append(StripRow(label=answer.question.name, samples=ratios, value=value, low=low, high=high))
    if not strips:
        return []
    title, name, note = "Head over base", "ratios", "A dot a restart."
    return [
        StripPlot(title=title, name=name, axis="head over base", unit="×", strips=tuple(strips), centre=1.0, note=note)
    ]


def _restarts_table(options: GateOptions, answer: GateAnswer) -> Table:
    def number(pair: RestartPair) -> int:
        return int(pair.block.rpartition("-")[2])

    format_value = answer.question.format_value
    columns: dict[str, Callable[[RestartPair], Cell]] = {
        "restart": number,
        "first turn": lambda pair: "head" if head_first(options, number(pair) - 1) else "base",
        "base": lambda pair: format_value(pair.base),
        "head": lambda pair: format_value(pair.head),
        "change": lambda pair: None if pair.ratio is None else format_change(pair.ratio),
    }
    note = "Both in processes of their own. The medians are of all turns; the change is that of neighbouring ones."
    numeric = set(columns) - {"first turn"}
    return build_table(answer.question.name.capitalize(), answer.pairs, columns, numeric=numeric, note=note)


def _revisions_table(options: GateOptions) -> Table:
    setup = "" if options.checkouts.setup is None else f" Set up by: {options.checkouts.setup}"
    columns: dict[str, Callable[[Revision], Cell]] = {
        "revision": lambda revision: revision.name,
        "as named": lambda revision: revision.ref,
        "commit": lambda revision: revision.commit,
        "checked out in": lambda revision: revision.checkout,
        "interpreter": lambda revision: revision.interpreter,
    }
    note = f"The checkouts are removed when all is measured.{setup}"
    return build_table("What was measured", options.checkouts.revisions, columns, note=note)


METHOD = "geometric mean over restarts of the ratio of medians, Student's t; all looks together miss it in 5 % at most"


def build_findings(options: GateOptions, results: Sequence[GateAnswer], records: Records) -> Findings:
    """Return whether head is within the limit, by everything that is judged and by each of it."""
    sentence = headline(options, results, records)
    quantities = (_quantity_finding(options, answer) for answer in results)
    return gather_findings(sentence, (_gate_finding(options, results, sentence, records), *quantities), records)


def _gate_finding(options: GateOptions, results: Sequence[GateAnswer], sentence: str, records: Records) -> Finding:
    verdict = overall_verdict(results)
    is_failed = verdict == "no" or (verdict == "unsure" and options.unsure == "fail")
    return Finding(
        kind="gate",
        claim=f"head is not worse than base by more than {format_percent(options.minimum_effect, digits=3)}",
        estimate=None,
        verdict=verdict,
        reason=sentence,
        records=tuple(record.trial for record in records),
        facts={
            "answer": VERDICT_TEXTS[verdict],
            "unsure": options.unsure,
            "base": options.base.commit,
            "head": options.head.commit,
            "restarts": len(records),
            "minimum_effect": options.minimum_effect,
        },
        gate="failed" if is_failed else "passed",
    )


def _quantity_finding(options: GateOptions, answer: GateAnswer) -> Finding:
    estimate = None
    if answer.change is not None:
        value, low, high = answer.change
        n = len(answer.pairs)
        estimate = Estimate(value=value, low=low, high=high, unit="×", scope="run", method=METHOD, n=n)
    question = answer.question
    return Finding(
        kind="quantity",
        claim=f"the {question.name} of head over that of base is within {limit_text(options, question)}",
        estimate=estimate,
        verdict=answer.verdict,
        reason=answer.reason or change_text(answer),
        records=tuple(pair.trial for pair in answer.pairs),
        facts={"quantity": question.quantity, "higher_is_better": question.higher_is_better},
    )


def build_report(machine: Machine, options: GateOptions, records: Records) -> Report:
    """Return whether head is within the limit, every restart, and the two revisions."""
    results = build_answers(options, records)
    findings = build_findings(options, results, records)
    return Report(findings, build_page(machine, options, results, findings, records))


EXPERIMENT = Experiment(
    "gate",
    GateOptions,
    step=lambda _, options, records: next_gate_step(options, records),
    report=build_report,
    checkouts=lambda options: options.checkouts,
)
