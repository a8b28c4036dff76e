"""Runs that were never measured, of which the truth is known, to be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import Finding, Findings, Record, Window
from assay.core.values import Adaptive, Block, Role, Subject, Trial
from assay.launch.workers import RawSeries
from assay.machine.model import Gpu
from assay.runner import summaries
from assay.store.identity import with_identity
from assay.store.run_folder import RunFolder, RunPlan
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from assay.machine.model import Machine

SOFTMAX, GEMM = (Subject(workload=name, impl="torch", params={"n": 512}) for name in ("softmax", "gemm"))


def with_gpus(*names: str, first: int = 0, **changes: Any) -> Machine:
    """A machine with GPUs of these models; ``first`` numbers their UUIDs."""
    gpus = tuple(Gpu(index=n, uuid=f"GPU-{first + n}", name=name, node=0) for n, name in enumerate(names))
    return machine(cores=(4,)).model_copy(update={"gpus": gpus, "driver": "580.1", **changes})


def a_run(
    path: Path,
    times_us: Mapping[str, float | None],
    *,
    on: Machine | None = None,
    devices: tuple[str, ...] = ("cuda:0",),
    restarts: int = 5,
    spread: float = 0.003,
    quantities: tuple[str, ...] = ("busy_us",),
    seed: int = 0,
    **versions: str,
) -> Path:
    """Write a run in which workloads take so long, null: failed; processes differ by ``spread``. Return its folder."""
    where = on or with_gpus("NVIDIA L4", "NVIDIA L4")
    plan = RunPlan(
        experiment="run", options={}, seed=0, versions={"assay": "0.1.0", **versions}, cwd="/", created_at="2026-01-01"
    )
    folder = RunFolder.create(path.parent, plan, where)
    chance = np.random.default_rng(seed)
    trials = {name: _trial(name, devices, restarts) for name in times_us}
    folder.decide(Block(name="all", why="to compare", trials=tuple(trials.values())))
    for name, time_us in times_us.items():
        folder.keep(_record(folder, trials[name], time_us, chance, spread, quantities))
    findings = tuple(
        Finding(claim=f"{name} is fast", estimate=said.estimate, verdict="yes", records=())
        for name, record in zip(times_us, folder.records(), strict=True)
        for said in record.estimates[:1]
    )
    folder.keep_findings(Findings(headline="all", findings=findings))
    return folder.path.rename(path)


def run_of(path: Path, trial: Trial, time_us: float, *, on: Machine | None = None, method: str | None = None) -> Path:
    """Write a run of one trial, whose call takes so long in each of its processes; return its folder.

    ``method``: said of every estimate instead of its own.
    """
    plan = RunPlan(experiment="run", options={}, seed=0, versions={}, cwd="/", created_at="2026-01-01")
    folder = RunFolder.create(path.parent, plan, on or with_gpus("NVIDIA L4", "NVIDIA L4"))
    folder.decide(Block(name=trial.block, why="to compare", trials=(trial,)))
    record = _record(folder, trial, time_us, np.random.default_rng(0), 0.001, ("call_us",))
    if method is not None:
        told = tuple(
            said.model_copy(update={"estimate": said.estimate.model_copy(update={"method": method})})
            for said in record.estimates
        )
        record = record.model_copy(update={"estimates": told})
    folder.keep(record)
    finding = Finding(claim="it is fast", estimate=record.estimates[0].estimate, verdict="yes", records=(trial.id,))
    found = Findings(headline="all", findings=(finding,))
    folder.keep_findings(with_identity(found, (trial,), folder.machine))
    return folder.path.rename(path)


def _trial(name: str, devices: tuple[str, ...], restarts: int) -> Trial:
    subject = Subject(workload=name, impl="torch", params={"n": 512})
    roles = tuple(Role(name=device, subjects=(subject,), devices=(device,)) for device in devices)
    return Trial(block="all", roles=roles, mode=Adaptive(duration_s=1.0), restarts=restarts)


def _record(
    folder: RunFolder,
    trial: Trial,
    time_us: float | None,
    chance: np.random.Generator,
    spread: float,
    quantities: tuple[str, ...],
) -> Record:
    raw = []
    for role in trial.roles if time_us is not None else ():
        for restart in range(trial.restarts):
            level = (time_us or 0.0) * float(np.exp(chance.normal(0, spread)))
            for quantity in quantities:
                samples = level * np.exp(chance.normal(0, 0.01, 40))
                raw.append(RawSeries(role.name, 0, 0, restart, quantity, 1, 0, 1, samples.tobytes()))
    return Record(
        trial=trial.id,
        block=trial.block,
        attempt=1,
        window=Window(host="h", boot_id="b", start_ns=0, end_ns=10**9, started_at="2026-01-01"),
        series=folder.keep_samples(trial.id, 1, raw),
        estimates=summaries(trial, raw),
        status="failed" if time_us is None else "ok",
        reason="out of memory" if time_us is None else None,
    )
