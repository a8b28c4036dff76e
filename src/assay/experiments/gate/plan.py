"""One restart after another, until a planned look decides or the budget is spent."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from assay.core.plan import Block, Done, Method, Role, Trial
from assay.core.units import format_span
from assay.experiments.contention.budget import BESIDE_S, OTHER_START_S, START_S, spent_s
from assay.experiments.gate.answers import BASE, HEAD, answers, verdict_of
from assay.stats.gates import MOST, looks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record
    from assay.experiments.gate.options import GateOptions
    from assay.store.records import Records

FEWEST_RESTARTS = 2
"""Whatever the budget: a single one has no interval."""


def step(options: GateOptions, records: Records) -> Block | Done:
    """Return the next restart, or why there is none."""
    bad = [record for record in records if record.status != "ok"]
    if bad:
        return Done(why=f"a restart could not be measured: {bad[-1].reason}")
    n = len(records)
    if n in looks(options.restarts) and verdict_of(answers(options, records)) != "unsure":
        return Done(why=f"it was decided after {n} restarts")
    if n >= MOST:
        return Done(why=f"{n} restarts have not decided it")
    left_s = options.budget_s - sum(spent_s(records).values())
    if n >= FEWEST_RESTARTS and left_s < next_s(options, records):
        return Done(why=f"the budget of {format_span(options.budget_s)} is spent")
    name = f"restart-{n + 1}"
    next_look = next((look for look in looks(options.restarts) if look > n), MOST)
    return Block(
        name=name,
        why=f"restart {n + 1}, the next look after {next_look}",
        trials=(trial(options, name, n, start_s(options, records)),),
        left_s=max(left_s, next_s(options, records)),
    )


def next_s(options: GateOptions, records: Sequence[Record]) -> float:
    """Return about how long the next restart takes, in seconds: as the last ones, or as is usual."""
    took = sorted(spent_s(records).values())
    return took[len(took) // 2] if took else options.duration_s + start_s(options, records) + BESIDE_S


def start_s(options: GateOptions, records: Sequence[Record]) -> float:
    """Return how long it takes until both workers are ready, in seconds: as in the last restart, or as is usual."""
    setups_s = [evidence.setup_s for record in records[-1:] for evidence in record.evidence]
    return max(setups_s, default=START_S.get(options.subject.impl, OTHER_START_S))


def head_first(options: GateOptions, number: int) -> bool:
    """Return whether head has the first turn in a restart: drawn by lot for each two, of which each has it once."""
    lot = random.Random(f"{options.seed}/{number // 2}").random() < 0.5  # noqa: S311 - an order is no secret
    return lot if number % 2 == 0 else not lot


def trial(options: GateOptions, block: str, number: int, starting_s: float) -> Trial:
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
        method=Method(duration_s=options.duration_s + starting_s, cache=options.cache, timeout_s=options.timeout_s),
        settings={BASE: options.base.commit, HEAD: options.head.commit},
        strangers=options.strangers,
        placed_with=(options.device,),
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + number,
    )
