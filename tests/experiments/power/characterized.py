"""Studies of power that were never measured: records of which the truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import Estimate, Evidence, GpuWindowStats, Record, Series, SubjectFacts, Window, WindowStats
from assay.core.values import Subject
from assay.experiments.power.characterize.options import CasePart, CharacterizeCase, CharacterizeOptions, NoisePart
from assay.experiments.power.characterize.plan import build_block, cases_by_trial
from assay.machine.model import GpuLink
from tests.experiments.remembered import Remembered
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.values import Trial
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.machine.model import LinkPath
    from assay.stats.intervals import Samples

PATHS: dict[tuple[int, int], LinkPath] = {(0, 1): "switch", (2, 3): "switch", (0, 2): "node", (1, 3): "node"}
FOUR = machine(
    cores=(8, 8),
    gpus=[0, 0, 1, 1],
    links=tuple(GpuLink(gpus=(a, b), path=PATHS.get((a, b), "system")) for a in range(4) for b in range(a + 1, 4)),
)
SGEMM = Subject(workload="sgemm", impl="torch", params={"n": "fill"})
RESNET = Subject(workload="resnet50", impl="torch")
IDLE = Subject(workload="idle", impl="python")
DEVICES = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
FLOP, N = 2e12, 10000
S = 10**9


def noise(count: int | None = 1, placement: Any = "any", subject: Subject = RESNET) -> NoisePart:
    return NoisePart(subject=subject, count=None if placement == "same" else count, placement=placement)


def case(
    name: str, count: int | None = 1, *beside: NoisePart, subject: Subject = SGEMM, **changes: Any
) -> CharacterizeCase:
    told = {"repeats": 4, "duration_s": 2.0, **changes}
    return CharacterizeCase(name=name, base=CasePart(subject=subject, count=count), noise=beside, **told)


ALONE, TWO, BESIDE = case("alone"), case("two", 2), case("beside", 1, noise(2))
NEAR, FAR = case("near", 1, noise(1, "near")), case("far", 1, noise(1, "far"))
QUIET = case("idle", None, subject=IDLE)


def options(*cases: CharacterizeCase, **changes: Any) -> CharacterizeOptions:
    return CharacterizeOptions.model_validate({"cases": cases or (ALONE,), "devices": DEVICES, **changes})


def world(
    wanted: CharacterizeOptions,
    time_us: Callable[[PlacedCase, str], float],
    *,
    power_w: Callable[[PlacedCase, str], float] = lambda where, device: 300.0,
    noise_of: float = 0.001,
    samples: int = 50,
    seed: int = 0,
    fails: Callable[[PlacedCase], str | None] = lambda _: None,
    there: Any = FOUR,
) -> Remembered:
    """Return records of a whole study, twenty seconds apart; ``time_us`` and ``power_w`` are the truth in a case."""
    chance = np.random.default_rng(seed)
    known = cases_by_trial(there, wanted, wanted.repeats)
    records: list[Record] = []
    kept: dict[str, Samples] = {}
    for repeat in range(1, wanted.repeats + 1):
        block = build_block(there, wanted, repeat)
        for trial in block.trials if block else ():
            where = known[trial.id]
            taken = {
                device: time_us(where, device)
                * np.exp(chance.normal(0, noise_of) + chance.normal(0, noise_of, samples))
                for device in where.base
            }
            watts = {device: power_w(where, device) for device in trial.devices}
            reason = fails(where)
            start_ns = len(records) * 20 * S
            series = [s for d, each in taken.items() for s in series_of(kept, trial.id, d, each, start_ns)]
            records.append(record_of(trial, start_ns, () if reason else tuple(series), watts, reason))
    return Remembered(records, kept)


def series_of(kept: dict[str, Samples], trial: str, role: str, samples: Samples, start_ns: int) -> list[Series]:
    """Return calls that follow one another as series of a record, their samples remembered."""
    begin_us = np.concatenate([[0.0], np.cumsum(samples)[:-1]])
    end_ns = start_ns + round(float(samples.sum()) * 1e3)
    found = []
    for quantity, data in (("span_us", samples), ("start_us", begin_us)):
        name = f"{trial} {role} {quantity}"
        kept[name] = np.asarray(data, dtype=np.float64)
        found.append(
            Series(
                role=role, rank=0, subject=0, restart=0, quantity=quantity, unit="µs", file=name, n=len(data),
                start_ns=start_ns, end_ns=end_ns,
            )
        )  # fmt: skip
    return found


def record_of(
    trial: Trial, start_ns: int, series: tuple[Series, ...], watts: dict[str, float], reason: str | None = None
) -> Record:
    """Return the record of a trial."""
    seen_s = max((part.end_ns - part.start_ns for part in series), default=0) / 1e9
    timed = dict.fromkeys(part.role for part in series)
    return Record(
        trial=trial.id,
        block=trial.block,
        attempt=1,
        window=Window(host="h", boot_id="b", start_ns=start_ns, end_ns=start_ns + 10 * S, started_at="2026-01-01"),
        series=series,
        evidence=tuple(map(_evidence, timed)),
        during=WindowStats(
            observed_s=seen_s, samples=9, gpus=tuple(seen(device, power, seen_s) for device, power in watts.items())
        )
        if reason is None
        else None,
        status="ok" if reason is None else "failed",
        reason=reason,
    )


def seen(device: str, power_w: float, seen_s: float) -> GpuWindowStats:
    number, joules = int(device.partition(":")[2]), power_w * seen_s
    return GpuWindowStats(
        gpu=number, uuid=f"GPU-{number}", power_w=power_w, sm_mhz_mean=1500.0, temperature_mean_c=60.0 + number,
        throttle_share={"power cap": 0.5, "idle": 0.1},
        energy=Estimate(
            value=joules, low=0.98 * joules, high=1.02 * joules, unit="J", scope="process", method="counter", n=9
        ),
    )  # fmt: skip


def _evidence(device: str) -> Evidence:
    return Evidence(
        role=device, rank=0, restart=0, pid=1, device=device, isolation_asked="full", isolation_held="full",
        allowed_cores=(0,), thread_limit=1, memory_nodes=None, setup_s=0.1,
        subjects=(SubjectFacts(subject=0, flop=FLOP, measured={"n": float(N)}),),
    )  # fmt: skip
