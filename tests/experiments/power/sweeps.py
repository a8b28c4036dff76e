"""Sweeps that were never measured: records of which the truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import (
    Estimate,
    Evidence,
    GpuWindowStats,
    Missing,
    Record,
    Series,
    SubjectFacts,
    Window,
    WindowStats,
)
from assay.core.values import Subject
from assay.experiments.power.sweep.options import SweepOptions, SweepPoint
from assay.experiments.power.sweep.plan import build_block
from assay.machine.model import Gpu
from tests.experiments.remembered import Remembered
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.values import Scalar, Trial

GEMM = Subject(workload="sgemm", impl="torch", params={"n": 8192})
LIMITS = tuple(float(watts) for watts in range(200, 701, 50))
FLOP = 2.0 * 8192**3
SECONDS = 10.0
CALLS = 400


def gpu(index: int, **changes: Any) -> Gpu:
    told = {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "Example H",
        "persistence": True,
        "power_limit_w": 700.0,
        "power_limit_min_w": 200.0,
        "power_limit_max_w": 700.0,
        "power_limit_default_w": 700.0,
        "sm_max_mhz": 1980,
    }
    return Gpu.model_validate({**told, **changes})


MACHINE = machine(cores=(4,), gpus=(0, 0)).model_copy(update={"gpus": (gpu(0), gpu(1))})


def options(**changes: Any) -> SweepOptions:
    told = {
        "knob": "power_limit_w",
        "points": tuple(SweepPoint(setting=setting, subject=GEMM) for setting in (None, *LIMITS)),
        "workload": GEMM.label,
        "devices": ("cuda:0",),
        **changes,
    }
    return SweepOptions.model_validate(told)


def points(*settings: Scalar, subject: Subject = GEMM) -> tuple[SweepPoint, ...]:
    return tuple(SweepPoint(setting=setting, subject=subject) for setting in settings)


class Swept(Remembered):
    """Records of a sweep."""

    @property
    def run(self) -> str:
        return "power_sweep-1"


@dataclass(frozen=True)
class Truth:
    """What a device does at a setting: the time of a call in seconds, its power, how long the cap holds it back."""

    call_s: float
    power_w: float | None
    held: float = 0.0
    sm_mhz: float | None = None
    flop: float | None = FLOP
    bytes_moved: float | None = None


@dataclass(frozen=True)
class Card:
    """A GPU whose load power grows with a power of its clock, as the fake's does: its optimum is known."""

    idle_w: float = 78.0
    load_w: float = 560.0
    exponent: float = 1.3
    full_s: float = 0.02

    def at(self, setting: Scalar) -> Truth:
        """Return the truth under a limit in W."""
        cap_w = 700.0 if setting is None else float(str(setting))
        full_w = self.idle_w + self.load_w
        share = min(1.0, ((cap_w - self.idle_w) / self.load_w) ** (1 / self.exponent))
        power_w = min(cap_w, full_w)
        return Truth(self.full_s / share, power_w, held=1.0 if cap_w < full_w else 0.0, sm_mhz=1980 * share)

    @property
    def best_w(self) -> float:
        """Where energy per call is least, were every limit allowed."""
        return self.exponent * self.idle_w / (self.exponent - 1)


def world(
    wanted: SweepOptions,
    truth: Callable[[str, Scalar], Truth],
    *,
    noise: float = 0.003,
    common: float = 0.01,
    seed: int = 0,
    fails: Callable[[Trial], str | None] = lambda _: None,
    calls: int = CALLS,
) -> Swept:
    """Return records of a whole run: every number scatters, and what is common to a repeat shifts with it."""
    chance = np.random.default_rng(seed)
    records: list[Record] = []
    kept: dict[str, Any] = {}
    for number in range(1, wanted.repeat + 1):
        shift = float(np.exp(chance.normal(0, common)))
        block = build_block(wanted, number, records)
        for trial in block.trials if block is not None else ():
            place = next(n for n, p in enumerate(wanted.points) if _phase(wanted, p.setting) == trial.settings["phase"])
            made = {role.name: truth(role.name, wanted.points[place].setting) for role in trial.roles}
            records.append(_record(trial, made, kept, chance, noise, shift, fails(trial), calls))
    return Swept(records, kept)


def _phase(wanted: SweepOptions, setting: Scalar) -> str:
    from assay.experiments.power.sweep.options import step_text

    return step_text(wanted, setting)


def _record(
    trial: Trial,
    made: dict[str, Truth],
    kept: dict[str, Any],
    chance: np.random.Generator,
    noise: float,
    shift: float,
    reason: str | None,
    calls: int,
) -> Record:
    window = Window(host="h", boot_id="b", start_ns=0, end_ns=int(SECONDS * 1e9), started_at="2026-11-15T10:00:00Z")
    if reason is not None:
        status = "refused" if reason.startswith("refused") else "failed"
        return Record(trial=trial.id, block=trial.block, attempt=1, window=window, status=status, reason=reason)
    series, gpus, evidence = [], [], []
    for role, truth in made.items():
        call_s = truth.call_s * shift * float(np.exp(chance.normal(0, noise)))
        samples = 1e6 * call_s * np.exp(chance.normal(0, 0.01, calls))
        on_gpu = role.startswith("cuda")
        name = f"{trial.id}-{role}"
        kept[name] = samples
        series.append(
            Series(
                role=role,
                rank=0,
                subject=0,
                restart=0,
                quantity="span_us" if on_gpu else "call_us",
                unit="µs",
                file=name,
                n=calls,
                start_ns=0,
                end_ns=int(samples.sum() * 1e3),
            )
        )
        power_w = None if truth.power_w is None else truth.power_w * float(np.exp(chance.normal(0, noise)))
        if on_gpu:
            gpus.append(_seen(int(role[5:]), truth, power_w, samples.sum() / 1e6))
        evidence.append(
            Evidence(
                role=role,
                rank=0,
                restart=0,
                pid=1,
                device=role,
                isolation_asked="full",
                isolation_held="full",
                allowed_cores=(0,),
                thread_limit=1,
                memory_nodes=None,
                setup_s=0.1,
                subjects=(SubjectFacts(subject=0, flop=truth.flop, bytes_moved=truth.bytes_moved),),
            )
        )
    seen_s = max((s.end_ns for s in series), default=0) / 1e9
    return Record(
        trial=trial.id,
        block=trial.block,
        attempt=1,
        window=window,
        series=tuple(series),
        evidence=tuple(evidence),
        during=WindowStats(observed_s=seen_s, samples=100, gpus=tuple(gpus)),
        status="ok",
        origin="simulated",
    )


def _seen(number: int, truth: Truth, power_w: float | None, timed_s: float) -> GpuWindowStats:
    energy_j = None if power_w is None else power_w * timed_s
    return GpuWindowStats(
        gpu=number,
        uuid=f"GPU-{number}",
        power_w=power_w,
        sm_mhz_mean=truth.sm_mhz,
        temperature_mean_c=60.0,
        throttle_share={"power cap": truth.held},
        energy=None
        if energy_j is None
        else Estimate(
            value=energy_j,
            low=0.98 * energy_j,
            high=1.02 * energy_j,
            unit="J",
            scope="process",
            method="counter",
            n=100,
        ),
        energy_missing=None if energy_j is not None else Missing(code="no_sensor", detail="no counter"),
    )
