"""A role's tuner, run in its worker: what it found, or why it found nothing, as the parent is told."""

from __future__ import annotations

import gc
import sys
import time
import traceback

from assay.core.errors import AssayError
from assay.timing.deadline import limited
from assay.tuners import registry
from assay.tuners.base import Found, Job, why
from assay.worker import protocol as say

GRACE = 0.9
"""Of the time-out, on top of a tuner's budget: it is interrupted before the parent would end the process."""


def tuned(told: say.Prepare, *, device: str, seed: int) -> say.Tuned:
    """Run the tuner of a role that was prepared; what it raises is why there is no configuration."""
    tuner = told.role.tuner
    if tuner is None:
        raise say.Garbled("a role without a tuner was told to tune")
    job = Job(told.role.subjects[0], tuner, device, seed, told.cache)
    start = time.perf_counter_ns()
    result = _found(job, tuner.budget_s + GRACE * told.timeout_s)
    end = time.perf_counter_ns()
    result = registry.judged(job, result)
    _give_memory_back()
    return say.Tuned(
        tuner=tuner.name,
        version=result.version,
        config=result.config,
        time_us=result.time_us,
        tried=result.tried,
        tuning_s=(end - start) / 1e9 if result.tuning_s is None else result.tuning_s,
        start_ns=start,
        end_ns=end,
        reason=result.reason,
        notes=result.notes,
    )


def _found(job: Job, limit_s: float) -> Found:
    try:
        with limited(limit_s, "the tuner's command" if job.tuner.command else f"the tuner {job.tuner.name}"):
            return registry.find(job.tuner.name)(job)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tuner raises is why it chose nothing
        if not isinstance(error, AssayError):
            traceback.print_exc()
        return Found(config=None, reason=why(error))


def _give_memory_back() -> None:
    """Give the memory of a GPU that the tuner's candidates held back to the driver, for whoever runs beside us."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
