"""Helion's own auto-tuner, run for real in this process, and what its log says of every configuration it tried.

How long it searches is Helion's ``HELION_AUTOTUNE_EFFORT``: quick unless the environment says full.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from assay.core.environment import variable
from assay.core.errors import BadInput, MachineCannot
from assay.tuners.base import Found, why
from assay.tuners.helion_log import read_log
from assay.workloads import helion_common, registry
from assay.workloads.command import SCRATCH
from assay.workloads.helion_common import as_params

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.results import Tried
    from assay.core.values import Params
    from assay.tuners.base import Job
    from assay.workloads.helion_common import HelionWorkload, Problem

EFFORT = "HELION_AUTOTUNE_EFFORT"
USUAL_EFFORT = "quick"
NO_CACHE = "HELION_SKIP_CACHE"
SEEDS = 2**32
NOT_TOLD = "this Helion cannot be told a budget: it searched for as long as its effort asks"
TAKES_BUDGET = (1, 1)
"""From this version on a search can be given a budget."""
SEARCH_S = {"quick": 35.0, "full": 600.0}
"""How long a search without a budget takes, by its effort: quick took 20 to 45 s for a softmax on H200s, full as its
documentation says."""


def tune(job: Job) -> Found:
    """Have Helion search, with what it found another time left alone."""
    if job.subject.impl != "helion":
        raise BadInput(f"Helion tunes kernels in Helion, and {job.subject.label} is none")
    helion_common.installed()
    if helion_common.interpreted() or not job.device.startswith("cuda"):
        raise MachineCannot(f"Helion tunes compiled kernels on a GPU, not {job.device} or its interpreter")
    workload = cast("HelionWorkload", registry.find(job.subject.workload, job.subject.impl))
    problem = workload.problem(job.subject.params, device=job.device, seed=job.seed)
    return searched(problem, seed=job.seed, budget_s=job.tuner.budget_s)


def searched(problem: Problem, *, seed: int, budget_s: float, **settings: Any) -> Found:
    """Search for the best configuration of a kernel; a search that finds none still tells what it tried."""
    effort = search_effort()
    notes = [f"effort {effort}"]
    if _can_be_told():
        settings["autotune_budget_seconds"] = math.ceil(budget_s)
    else:
        notes.append(NOT_TOLD)
    with tempfile.TemporaryDirectory(prefix="helion-", dir=os.environ.get(SCRATCH)) as folder, _on_its_own(folder):
        log = Path(folder) / "search"
        bound = problem.bound(
            autotune_effort=effort,
            autotune_log=str(log),
            autotune_random_seed=seed % SEEDS,
            autotune_progress_bar=False,
            **settings,
        )
        with _told() as metrics:
            try:
                config, reason = as_params(dict(bound.autotune(problem.args, force=True))), None
            except Exception as error:  # noqa: BLE001 - Helion has many ways to say that it found nothing
                config, reason = None, f"{why(error)} ({helion_common.pair()})"
        lines = log.with_suffix(".csv")
        tried = read_log(lines.read_text(encoding="utf-8")) if lines.exists() else ()
    return Found(
        config,
        time_of(config, tried, metrics.get("best_perf_ms")) if config is not None else None,
        tried,
        tuning_s=metrics.get("autotune_time"),
        version=version("helion"),
        reason=reason,
        notes=(*notes, *_failures(metrics)),
    )


def search_effort() -> str:
    """Return the effort of a search: the environment's, or quick."""
    effort = os.environ.get(EFFORT, "").strip() or USUAL_EFFORT
    if effort == "none":
        raise BadInput(f"{EFFORT} is none, and so Helion would not tune; it may be quick or full")
    return effort


def shortest_search_s() -> float:
    """Return how long a search takes whatever its budget, in seconds; 0 where this Helion can be given one.

    Raises:
        MachineCannot: There is no Helion here, or it is too old.
    """
    if helion_common.release() >= TAKES_BUDGET:
        return 0.0
    return SEARCH_S.get(search_effort(), SEARCH_S["full"])


def time_of(config: Params, tried: tuple[Tried, ...], best_ms: float | None) -> float | None:
    """Return the microseconds of the chosen configuration: as the log has it, or else the best that Helion saw.

    What it chose may be missing in the log: settings that are the default are left out at the end of a search.
    """
    logged_us = [entry.time_us for entry in tried if entry.config == config and entry.time_us is not None]
    if logged_us:
        return logged_us[-1]
    times = [entry.time_us for entry in tried if entry.time_us is not None]
    return 1000 * best_ms if best_ms else min(times, default=None)


def _can_be_told() -> bool:
    """Return whether this Helion's search can be given a budget, as those from 1.1 on can."""
    fields = dataclasses.fields(helion_common.installed().Settings)
    return any(field.name == "autotune_budget_seconds" for field in fields)


@contextlib.contextmanager
def _on_its_own(folder: str) -> Iterator[None]:
    """Keep Helion from what it has kept of other searches, and what it leaves behind in a folder that will go."""
    previous, tempfile.tempdir = tempfile.tempdir, folder
    try:
        with variable(NO_CACHE, "1"):
            yield
    finally:
        tempfile.tempdir = previous


@contextlib.contextmanager
def _told() -> Iterator[dict[str, Any]]:
    """Hear what Helion says of its search once it has ended: how long it took, and what failed."""
    from helion.autotuner import metrics

    collected: dict[str, Any] = {}

    def hear(said: Any) -> None:
        collected.update(said.to_dict())

    metrics.register_post_autotune_hook(hear)
    try:
        yield collected
    finally:
        metrics.remove_post_autotune_hook(hear)


def _failures(told: dict[str, Any]) -> tuple[str, ...]:
    """Return in words how many configurations failed, as Helion counts them; its log leaves some out."""
    counted = {"did not compile or run": "num_compile_failures", "were wrong": "num_accuracy_failures"}
    of = told.get("num_configs_tested", 0)
    return tuple(f"{told[name]} of {of} configurations {words}" for words, name in counted.items() if told.get(name))
