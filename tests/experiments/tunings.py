"""Runs of the contention experiment that were never measured: times and picks of which the truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import GpuWindowStats, Record, TriedConfig, Tuning, Window, WindowStats
from assay.core.values import Subject
from assay.experiments.contention.options import ContentionOptions
from assay.experiments.contention.plan import build_block
from assay.launch.workers import RawSeries
from assay.runner import summaries
from assay.store.run_folder import RunFolder, RunPlan
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.core.values import Role, Trial

MACHINE = machine(cores=(8,), gpus=(0, 0))
SOFTMAX = Subject(workload="softmax", impl="triton", config={"block": 64})
SLOWER = {"baseline": 1.0, "again": 1.0, "naive": 1.3, "isolated": 1.0, "warm-up": 1.0}
LEVELS = {64: 100.0, 128: 90.0, 256: 95.0}
"""The true time of each block size alone, in microseconds."""


def options(**changes: Any) -> ContentionOptions:
    told = {
        "subjects": (SOFTMAX,),
        "tunable": (True,),
        "devices": ("cuda:0", "cuda:1"),
        "budget_s": 60.0,
        "timing_s": 1.0,
        "tuning_s": 1.0,
        **changes,
    }
    return ContentionOptions.model_validate(told)


def folder_of(
    parent: Path,
    wanted: ContentionOptions,
    *,
    blocks: int = 4,
    slower: Callable[[str], float] = SLOWER.__getitem__,
    misled: float = 0.5,
    seed: int = 0,
) -> RunFolder:
    """Return a run folder with its records; beside others, the tuner picks wrongly with the chance ``misled``."""
    plan = RunPlan(experiment="contention", options=wanted.as_json(), seed=0, versions={}, cwd="/", created_at="now")
    folder = RunFolder.create(parent, plan, MACHINE)
    chance = np.random.default_rng(seed)
    for number in range(1, blocks + 1):
        block = build_block(MACHINE, wanted, number)
        folder.decide(block)
        for trial in block.trials:
            phase = str(trial.settings["phase"])
            folder.keep(_record(folder, trial, slower(phase), misled if phase == "naive" else 0.0, chance))
    return folder


def _record(folder: RunFolder, trial: Trial, factor: float, misled: float, chance: np.random.Generator) -> Record:
    timed = [role for role in trial.roles if role.duty == "timed"]
    raw = []
    for role in timed:
        level = LEVELS[64] * factor * float(np.exp(chance.normal(0, 0.01)))
        samples = level * np.exp(chance.normal(0, 0.02, 64))
        raw.append(RawSeries(role.name, 0, 0, 0, "busy_us", 1, 0, 1, samples.tobytes()))
    return Record(
        trial=trial.id,
        block=trial.block,
        attempt=1,
        window=Window(host="h", boot_id="b", start_ns=0, end_ns=10**9, started_at="2026-01-01"),
        series=folder.keep_samples(trial.id, 1, raw),
        estimates=summaries(trial, raw),
        tunings=tuple(_tuning(role, factor, misled, chance) for role in timed if role.tuner is not None),
        during=WindowStats(
            observed_s=1.0, samples=20, cpu_percent=40.0, gpus=(GpuWindowStats(gpu=0, uuid="GPU-0", power_w=300.0),)
        ),
        status="ok",
    )


def _tuning(role: Role, factor: float, misled: float, chance: np.random.Generator) -> Tuning:
    times = {size: us * factor * float(np.exp(chance.normal(0, 0.005))) for size, us in LEVELS.items()}
    best = 256 if chance.random() < misled else 128
    return Tuning(
        role=role.name,
        restart=0,
        tuner="pick",
        config={"block": best},
        time_us=times[best],
        tried=tuple(TriedConfig(config={"block": size}, time_us=us) for size, us in times.items()),
        tuning_s=1.0,
        start_ns=0,
        end_ns=1,
    )
