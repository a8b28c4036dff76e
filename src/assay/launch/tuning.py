"""Tuners of a crew, under the schedule of its trial, after its times were taken.

alone      A ▓▓▓▓▓▓            together   A ▓▓▓▓▓▓░░░░
           B       ▓▓▓▓▓▓▓▓▓▓             B ▓▓▓▓▓▓▓▓▓▓
                                          (░ held as a load; so is who is timed and has no tuner)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from assay.launch.handle import gather
from assay.launch.loads import raise_load, release
from assay.worker import protocol as say

if TYPE_CHECKING:
    from assay.core.plan import Role
    from assay.launch.crew import Crew


def tune(crew: Crew, delay_ns: int) -> None:
    """Run every tuner of a crew; those that start together do so at a moment that lies so far ahead."""
    tuning = [role for role in crew.timed if role.tuner is not None]
    if crew.trial.schedule != "together" or len(crew.timed) == 1:
        for role in tuning:
            _run(crew, [role], delay_ns, hold=False)
        return
    if tuning:
        others = crew.of(role for role in crew.timed if role.tuner is None)
        raise_load(crew, others)
        _run(crew, tuning, delay_ns, hold=True)
        release(crew, [*crew.of(tuning), *others])


def _run(crew: Crew, roles: list[Role], delay_ns: int, *, hold: bool) -> None:
    """Have some roles tune at the same time; what the good ones found is kept even if another fails."""
    handles = crew.of(roles)
    start = time.perf_counter_ns() + delay_ns if all(handle.same_clock for handle in handles) else None
    crew.tell(handles, say.Tune(start_at_ns=start, hold=hold, seed=crew.trial.seed + 1000 * crew.restart))
    limit_s = crew.trial.method.timeout_s + max(role.tuner.budget_s for role in roles if role.tuner is not None)
    untuned = (role for role in crew.timed if role.tuner is None) if hold else ()
    background = crew.of([*crew.loads, *untuned])
    answers = gather(handles, say.Tuned, within_s=limit_s, doing="tuning", beside=background)
    crew.keep_tunings(answers)
    crew.fail_on(answers)
