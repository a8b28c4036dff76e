"""Helion's auto-tuner, run in this process, and the log of every configuration it tried.

The length of its search is set by ``HELION_AUTOTUNE_EFFORT``: quick unless the environment says full. Its log is CSV,
with a line when a configuration is started and another when it has been timed:

    timestamp_s,config_index,generation,status,perf_ms,compile_time_s,config
    1.02,1,0,started,,0.83,"Config(block_sizes=[32], num_warps=4)"
    1.31,2,0,ok,0.015520,0.83,"Config(block_sizes=[32], num_warps=4)"

Later versions have other columns before these; columns are found by name.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import dataclasses
import io
import math
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.core.processes import temporary_variable
from assay.core.results import TriedConfig
from assay.tuners.base import TuningResult, describe_error
from assay.workloads import kernel_support, registry
from assay.workloads.command import SCRATCH_VARIABLE
from assay.workloads.kernel_support import config_to_params

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params
    from assay.tuners.base import TuningJob
    from assay.workloads.kernel_support import HelionOperator, HelionProblem


LOG_COLUMNS = ("status", "perf_ms", "config")
NOT_FINISHED = "it was begun and never had its time"


def parse_search_log(text: str) -> tuple[TriedConfig, ...]:
    """Return every configuration in the order it was first tried, each once, with its last time.

    A truncated last line of a log is skipped.

    Raises:
        TrialFailed: It is not a Helion log.
    """
    rows = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    missing = [name for name in LOG_COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        there = ", ".join(rows.fieldnames or ()) or "none"
        raise TrialFailed(f"Helion's log has no column {missing[0]!r}; those it has: {there}")
    configs: dict[str, TriedConfig] = {}
    for row in rows:
        configs[row["config"]] = _parse_row(row)
    return tuple(configs.values())


def _parse_row(row: dict[str, str]) -> TriedConfig:
    config = config_to_params(parse_config(row["config"]))
    if row["status"] == "started":
        return TriedConfig(config=config, reason=NOT_FINISHED)
    try:
        perf_ms = float(row["perf_ms"]) if row["perf_ms"] else math.inf
    except ValueError:
        raise TrialFailed(f"Helion's log has a time of {row['perf_ms']!r}") from None
    if not math.isfinite(perf_ms):
        return TriedConfig(config=config, reason=f"Helion says {row['status']}: it failed, was wrong, or took too long")
    return TriedConfig(config=config, time_us=1000 * perf_ms)


def parse_config(text: str) -> dict[str, Any]:
    """Return the settings of a configuration as written by Helion: ``Config(block_sizes=[32], num_warps=4)``."""
    unreadable = f"Helion's log has a configuration that cannot be read: {text[:80]!r}"
    try:
        call = ast.parse(text, mode="eval").body
        keywords = call.keywords if isinstance(call, ast.Call) else []
        settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (SyntaxError, ValueError):
        raise TrialFailed(unreadable) from None
    if not settings:
        raise TrialFailed(unreadable)
    return settings


EFFORT = "HELION_AUTOTUNE_EFFORT"
DEFAULT_EFFORT = "quick"
NO_CACHE = "HELION_SKIP_CACHE"
SEEDS = 2**32
NO_BUDGET_NOTE = "this Helion takes no budget: it searched for as long as its effort asks"
TAKES_BUDGET = (1, 1)
"""From this version on a search can be given a budget."""
SEARCH_S = {"quick": 35.0, "full": 600.0}
"""Duration of a search without a budget, by its effort: quick took 20 to 45 s for a softmax on H200s, full as
documented."""


def tune(job: TuningJob) -> TuningResult:
    """Let Helion search, without using its earlier results."""
    if job.subject.impl != "helion":
        raise BadInput(f"Helion tunes kernels in Helion, and {job.subject.label} is none")
    kernel_support.import_helion()
    if kernel_support.is_helion_interpreted() or not job.device.startswith("cuda"):
        raise MachineCannot(f"Helion tunes compiled kernels on a GPU, not {job.device} or its interpreter")
    workload = cast("HelionOperator[Any]", registry.find_workload(job.subject.workload, job.subject.impl))
    problem = workload.helion_problem(job.subject.params, device=job.device, seed=job.seed)
    return search_configs(problem, seed=job.seed, budget_s=job.tuner.budget_s)


def search_configs(problem: HelionProblem, *, seed: int, budget_s: float, **settings: Any) -> TuningResult:
    """Search for the best configuration of a kernel; a search that finds none still reports what it tried."""
    effort = search_effort()
    notes = [f"effort {effort}"]
    if _takes_budget():
        settings["autotune_budget_seconds"] = math.ceil(budget_s)
    else:
        notes.append(NO_BUDGET_NOTE)
    with (
        tempfile.TemporaryDirectory(prefix="helion-", dir=os.environ.get(SCRATCH_VARIABLE)) as folder,
        _isolated_cache(folder),
    ):
        log = Path(folder) / "search"
        bound = problem.bound(
            autotune_effort=effort,
            autotune_log=str(log),
            autotune_random_seed=seed % SEEDS,
            autotune_progress_bar=False,
            **settings,
        )
        with _search_metrics() as metrics:
            try:
                config, reason = config_to_params(dict(bound.autotune(problem.args, force=True))), None
            except Exception as error:  # noqa: BLE001 - Helion has many ways to report that it found nothing
                config, reason = None, f"{describe_error(error)} ({kernel_support.describe_versions()})"
        lines = log.with_suffix(".csv")
        tried = parse_search_log(lines.read_text(encoding="utf-8")) if lines.exists() else ()
    return TuningResult(
        config,
        chosen_time_us(config, tried, metrics.get("best_perf_ms")) if config is not None else None,
        tried,
        tuning_s=metrics.get("autotune_time"),
        version=version("helion"),
        reason=reason,
        notes=(*notes, *_failure_notes(metrics)),
    )


def search_effort() -> str:
    """Return the effort of a search: the environment's, or quick."""
    effort = os.environ.get(EFFORT, "").strip() or DEFAULT_EFFORT
    if effort == "none":
        raise BadInput(f"{EFFORT} is none, and so Helion would not tune; it may be quick or full")
    return effort


def shortest_search_s() -> float:
    """Return how long a search takes whatever its budget, in seconds; 0 where this Helion can be given one.

    Raises:
        MachineCannot: Helion is not installed, or too old.
    """
    if kernel_support.helion_version() >= TAKES_BUDGET:
        return 0.0
    return SEARCH_S.get(search_effort(), SEARCH_S["full"])


def chosen_time_us(config: Params, tried: tuple[TriedConfig, ...], best_ms: float | None) -> float | None:
    """Return the time of the chosen configuration in µs: from the log, or else the best that Helion measured.

    The chosen one may be missing in the log: settings with default values are removed at the end of a search.
    """
    logged_us = [entry.time_us for entry in tried if entry.config == config and entry.time_us is not None]
    if logged_us:
        return logged_us[-1]
    times = [entry.time_us for entry in tried if entry.time_us is not None]
    return 1000 * best_ms if best_ms else min(times, default=None)


def _takes_budget() -> bool:
    """Return whether this Helion's search can be given a budget, as from version 1.1 on."""
    fields = dataclasses.fields(kernel_support.import_helion().Settings)
    return any(field.name == "autotune_budget_seconds" for field in fields)


@contextlib.contextmanager
def _isolated_cache(folder: str) -> Iterator[None]:
    """Keep Helion from using caches of other searches, and have it write its own to a temporary folder."""
    previous, tempfile.tempdir = tempfile.tempdir, folder
    try:
        with temporary_variable(NO_CACHE, "1"):
            yield
    finally:
        tempfile.tempdir = previous


@contextlib.contextmanager
def _search_metrics() -> Iterator[dict[str, Any]]:
    """Collect what Helion reports about its search once it has ended: how long it took, and what failed."""
    from helion.autotuner import metrics

    collected: dict[str, Any] = {}

    def collect(reported: Any) -> None:
        collected.update(reported.to_dict())

    metrics.register_post_autotune_hook(collect)
    try:
        yield collected
    finally:
        metrics.remove_post_autotune_hook(collect)


def _failure_notes(search_metrics: dict[str, Any]) -> tuple[str, ...]:
    """Return how many configurations failed, as counted by Helion; its log omits some."""
    counted = {"did not compile or run": "num_compile_failures", "were wrong": "num_accuracy_failures"}
    total = search_metrics.get("num_configs_tested", 0)
    return tuple(
        f"{search_metrics[name]} of {total} configurations {failure}"
        for failure, name in counted.items()
        if search_metrics.get(name)
    )
