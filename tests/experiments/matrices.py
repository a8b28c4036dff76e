"""Matrix runs that were never measured: records of which the truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import Evidence, Record, SubjectFacts, Window
from assay.core.values import Subject
from assay.experiments.contention.options import Aggressor
from assay.experiments.matrix.plan import AGGRESSOR, VICTIM, MatrixOptions, build_block
from assay.launch.workers import RawSeries
from assay.runner import summaries
from assay.store.records import Records
from assay.store.run_folder import RunFolder, RunPlan
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.core.values import Trial

MACHINE = machine(cores=(4,))
SOFTMAX = Subject(workload="softmax", impl="numpy")
CPU = Aggressor(name="cpu", subject=Subject(workload="cpu_hog", impl="python"), location="host")
MEMORY = Aggressor(name="memory", subject=Subject(workload="memory_hog", impl="numpy"), location="host")
HBM = Aggressor(name="hbm", subject=Subject(workload="triad", impl="torch"), location="device")
TRIAL_S = 2


def options(**changes: Any) -> MatrixOptions:
    told = {"victims": (SOFTMAX,), "aggressors": (CPU, MEMORY), "devices": ("cpu:0",), "repeat": 6, **changes}
    return MatrixOptions.model_validate(told)


def folder_in(path: Path) -> RunFolder:
    plan = RunPlan(experiment="matrix", options={}, seed=0, versions={}, cwd="/", created_at="now")
    return RunFolder.create(path / "runs", plan, MACHINE)


def world(
    folder: RunFolder,
    wanted: MatrixOptions,
    slowdown: Callable[[str, str | None], float],
    *,
    noise: float = 0.01,
    jitter: float = 0.05,
    samples: int = 200,
    seed: int = 0,
    fails: Callable[[Trial], str | None] = lambda _: None,
) -> Records:
    """Return records of a whole run; ``slowdown`` is the truth for a phase and an aggressor."""
    chance = np.random.default_rng(seed)
    records: list[Record] = []
    for number in range(1, wanted.repeat + 1):
        for trial in build_block(wanted, number).trials:
            phase, aggressor = str(trial.settings["phase"]), trial.settings["aggressor"]
            level = 100.0 * slowdown(phase, None if aggressor is None else str(aggressor))
            level *= float(np.exp(chance.normal(0, noise)))
            taken = level * np.exp(chance.normal(0, jitter, samples))
            records.append(record_of(folder, trial, taken, fails(trial)))
    return Records(records, folder.path)


def record_of(folder: RunFolder, trial: Trial, samples: Any, reason: str | None = None) -> Record:
    """Return the record of a trial in which the victim's calls took so long."""
    on_gpu = trial.roles[0].devices[0].startswith("cuda")
    quantities = ("busy_us", "call_us") if on_gpu else ("call_us",)
    raw = [
        RawSeries(VICTIM, 0, subject, 0, quantity, 1, 0, 1, (np.asarray(samples) * 10**subject).tobytes())
        for subject in range(len(trial.roles[0].subjects))
        for quantity in quantities
        if reason is None
    ]
    return Record(
        trial=trial.id,
        block=trial.block,
        attempt=1,
        window=Window(host="h", boot_id="b", start_ns=0, end_ns=TRIAL_S * 10**9, started_at="now"),
        series=folder.keep_samples(trial.id, 1, raw),
        estimates=summaries(trial, raw),
        evidence=tuple(_evidence(trial, role.name) for role in trial.roles) if reason is None else (),
        status="ok" if reason is None else "failed",
        reason=reason,
    )


def _evidence(trial: Trial, name: str) -> Evidence:
    role = next(role for role in trial.roles if role.name == name)
    load = name == AGGRESSOR
    return Evidence(
        role=name, rank=0, restart=0, pid=1, device=role.devices[0], isolation_asked=role.isolation,
        isolation_held=role.isolation, allowed_cores=(0,), thread_limit=1, memory_nodes=None, setup_s=0.1,
        load_calls=1000 if load else None, load_s=2.0 if load else None, load_cpu_s=1.9 if load else None,
        subjects=(SubjectFacts(subject=0, flop=4e6, bytes_moved=8e6),),
    )  # fmt: skip
