"""The options of ``assay gate``, and its restarts.

One after another, until a planned interim analysis decides or the budget is spent.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from assay.core.format import format_duration
from assay.core.values import Adaptive, Block, Cache, Done, InterferencePolicy, Isolation, Role, Subject, Trial, Value
from assay.experiments.budget import DEFAULT_WORKER_START_S, TRIAL_OVERHEAD_S, WORKER_START_S, block_durations_s
from assay.experiments.gate.analysis import BASE, HEAD, build_answers, overall_verdict
from assay.launch.checkouts import Checkouts, Revision
from assay.stats.blocks import MAX_RESTARTS, MIN_RESTARTS, plan_gate_looks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record
    from assay.experiments.gate.analysis import GateAnswer
    from assay.store.records import Records


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
        why=f"restart {n + 1}, the next look after {next_look}",
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
    """Return whether head has the first turn in a restart: drawn by lot for each two, of which each has it once."""
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


DecideOn = Literal["both", "kernels", "call"]

RESTARTS, QUICK_RESTARTS = 5, 3
DURATION_S, QUICK_DURATION_S = 3.0, 1.0
BUDGET_S, QUICK_BUDGET_S = 120.0, 30.0
MINIMUM_EFFECT = 0.02


class GateOptions(Value):
    """Two revisions held against each other on one device."""

    checkouts: Checkouts
    subject: Subject
    device: str
    minimum_effect: float = Field(default=MINIMUM_EFFECT, gt=0, lt=1, description="0.02: worse by 2 % is too much.")
    restarts: int = Field(default=RESTARTS, ge=MIN_RESTARTS, le=MAX_RESTARTS, description="Before the first look.")
    duration_s: float = Field(default=DURATION_S, gt=0, description="A restart, its starting not counted.")
    budget_s: float = Field(default=BUDGET_S, gt=0, description="No restart begins that would not fit any more.")
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
    notes: tuple[str, ...] = Field(default=(), description="What was said of the revisions before they were measured.")
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
        """The revision that the other is held against."""
        return self.checkouts.revisions[0]

    @property
    def head(self) -> Revision:
        """The revision that is judged."""
        return self.checkouts.revisions[1]

    @property
    def same_commit(self) -> bool:
        """Whether it is one commit twice: an A/A run, which shows what the machine itself does."""
        return self.base.commit == self.head.commit
