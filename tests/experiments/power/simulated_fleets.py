"""Fleets of known truth, as the rows and run folders that real ones leave; all of it says that it is simulated.

For the tests in small, for the benchmark in full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.power.rows import GPUS_FILE, GpuRow

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

MODEL = "Simulated H100"
SLOW, HOT_C, HUNGRY = 1.5, 16.0, 1.15
"""What is planted: a GPU 1.5 times as slow, one 16 °C hotter, one that draws 15 % more."""
RACK_C, RACK_SLOW = 8.0, 0.03
"""What a rack that runs hot adds to each of its GPUs: °C, and to the logarithm of its time."""


@dataclass(frozen=True)
class Setting:
    """How large a fleet is, how its GPUs scatter (standard deviations, relative or in °C), and what is planted."""

    nodes: int
    runs: int = 3
    gpus: int = 8
    nodes_per_rack: int = 8
    of_rack: float = 0.003
    of_host: float = 0.003
    of_gpu: float = 0.01
    of_run: float = 0.004
    of_calls: float = 0.004
    tails: float = np.inf
    """Degrees of freedom of how GPUs scatter: few have heavy tails."""
    hot_racks: int = 0
    slow: int = 0
    slow_in_hot_racks: int = 0
    hot: int = 0
    hungry: int = 0
    slot_effects: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Simulated:
    """A fleet's rows, node by node and run by run, and the truth about it: UUIDs of what was planted."""

    rows: tuple[tuple[str, tuple[GpuRow, ...]], ...]
    slow: frozenset[str]
    hot: frozenset[str]
    hungry: frozenset[str]
    hot_racks: frozenset[str]
    in_hot_racks: frozenset[str]

    @property
    def planted(self) -> frozenset[str]:
        """Every GPU that was made to stand out."""
        return self.slow | self.hot | self.hungry

    @property
    def all_rows(self) -> tuple[GpuRow, ...]:
        """All rows."""
        return tuple(row for _, rows in self.rows for row in rows)


def simulate(setting: Setting, seed: int) -> Simulated:
    """Make up a fleet."""
    chance = np.random.default_rng(seed)
    n = setting.nodes * setting.gpus
    node = np.repeat(np.arange(setting.nodes), setting.gpus)
    slot = np.tile(np.arange(setting.gpus), setting.nodes)
    rack = node // setting.nodes_per_rack
    racks = int(rack.max()) + 1
    hot_racks = chance.choice(racks, setting.hot_racks, replace=False)
    in_hot = np.isin(rack, hot_racks)
    planted = _planted(setting, chance, in_hot)
    slow, hot, hungry = planted
    added = np.array([setting.slot_effects.get(int(one), 0.0) for one in slot])
    logs = np.log(20_000.0) + added + RACK_SLOW * in_hot + np.log(SLOW) * slow
    logs += chance.normal(0, setting.of_rack, racks)[rack] + chance.normal(0, setting.of_host, setting.nodes)[node]
    logs += setting.of_gpu * _scatter(chance, setting.tails, n)
    heat = 62.0 + RACK_C * in_hot + HOT_C * hot + chance.normal(0, 1.0, racks)[rack]
    heat += chance.normal(0, 1.0, setting.nodes)[node] + chance.normal(0, 1.5, n)
    power = 640.0 * np.where(hungry, HUNGRY, 1.0) * np.exp(chance.normal(0, 0.012, n))
    uuids = [f"GPU-{seed:04d}-{place:06d}" for place in range(n)]
    rows: list[tuple[str, tuple[GpuRow, ...]]] = []
    for run in range(setting.runs):
        measured = logs + chance.normal(0, setting.of_run, n)
        warm = heat + chance.normal(0, 0.7, n)
        drawn = power * np.exp(chance.normal(0, 0.004, n))
        restarts = measured[:, None] + chance.normal(0, 0.001, (n, 2))
        scatter = setting.of_calls * np.exp(chance.normal(0, 0.2, n))
        clock = np.exp(-(measured - np.log(20_000.0)) + chance.normal(0, 0.002, n))
        for one in range(setting.nodes):
            own = [
                _row(
                    (one, run),
                    _Seen(uuids[g], f"r{rack[g]:03d}", int(slot[g]), warm[g], drawn[g], clock[g], scatter[g]),
                    restarts[g],
                )
                for g in range(one * setting.gpus, (one + 1) * setting.gpus)
            ]
            rows.append((own[0].run, tuple(own)))
    names = [frozenset(uuids[g] for g in np.flatnonzero(which)) for which in (*planted, in_hot)]
    strays = frozenset(f"r{one:03d}" for one in hot_racks)
    return Simulated(tuple(rows), names[0], names[1], names[2], hot_racks=strays, in_hot_racks=names[3])


def write(simulated: Simulated, folder: Path) -> None:
    """Write a fleet as run folders, with a ``latest`` beside them as real runs have."""
    for name, rows in simulated.rows:
        path = folder / name / GPUS_FILE
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{row.model_dump_json()}\n" for row in rows), encoding="utf-8")
    (folder / "latest").symlink_to(simulated.rows[-1][0])


@dataclass(frozen=True)
class _Seen:
    uuid: str
    rack: str
    slot: int
    heat: float
    power: float
    clock: float
    cv: float


def _row(where: tuple[int, int], seen: _Seen, restarts: Samples) -> GpuRow:
    node, run = where
    time_us = float(np.exp(restarts.mean()))
    medians = tuple(float(each) for each in np.exp(restarts))
    return GpuRow(
        run=f"power-{run:02d}-node{node:04d}",
        started_at=f"2026-01-{run + 1:02d}T00:00:00+00:00",
        host=f"node{node:04d}",
        rack=seen.rack,
        uuid=seen.uuid,
        slot=seen.slot,
        device=f"cuda:{seen.slot}",
        model=MODEL,
        origin="simulated",
        n=400,
        median_us=time_us,
        low_us=0.999 * time_us,
        high_us=1.001 * time_us,
        quartiles_us=(0.998 * time_us, time_us, 1.002 * time_us),
        mean_us=time_us,
        cv=float(seen.cv),
        restart_medians_us=medians,
        energy_per_call_j=float(seen.power * time_us / 1e6),
        power_w=float(seen.power),
        sm_mhz=float(1_980.0 * seen.clock),
        temperature_c=float(np.round(seen.heat)),
        case="sgemm on all GPUs",
        workload="sgemm@torch",
        params={"n": 25536},
        idle_w=75.0,
    )


def _scatter(chance: np.random.Generator, tails: float, n: int) -> Samples:
    if np.isinf(tails):
        return chance.standard_normal(n)
    return np.asarray(chance.standard_t(tails, n) / np.sqrt(tails / (tails - 2)))


def _planted(setting: Setting, chance: np.random.Generator, in_hot: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Choose which GPUs are slow (some in racks that run hot), which hot and which hungry, no GPU twice."""
    n, taken = len(in_hot), np.zeros(len(in_hot), dtype=np.bool_)
    marks = []
    for wanted, of_hot in ((setting.slow, setting.slow_in_hot_racks), (setting.hot, 0), (setting.hungry, 0)):
        mark = np.zeros(n, dtype=np.bool_)
        for number, among in ((of_hot, in_hot & ~taken), (wanted - of_hot, ~in_hot & ~taken)):
            chosen = chance.choice(np.flatnonzero(among), number, replace=False)
            mark[chosen] = taken[chosen] = True
        marks.append(mark)
    return marks


SEED_TWO_MS = (2270.0, 2284.0, 2301.0, 2320.0)
"""Means of four V100 in one machine, sgemm n = 25536; CV 0.0016 to 0.0065; the hotter the slower at equal power."""
SEED_TWO_CV = (0.0016, 0.0028, 0.0045, 0.0065)
SEED_TWO_C = (58.0, 63.0, 68.0, 74.0)


def four_gpus(seed: int, runs: int = 5, calls: int = 100) -> tuple[GpuRow, ...]:
    """Make up what an older tool published: four GPUs in random slots, 2.2 % apart, hotter ones slower, equal power."""
    chance = np.random.default_rng(seed)
    slots = chance.permutation(4)
    rows = []
    for run in range(runs):
        day = chance.normal(0, 0.5)
        for rank in range(4):
            times = SEED_TWO_MS[rank] * 1e3 * (1 + chance.normal(0, SEED_TWO_CV[rank], calls) + chance.normal(0, 0.001))
            power = 297.0 + chance.normal(0, 0.6)
            rows.append(
                GpuRow(
                    run=f"power-2022-{run:02d}",
                    started_at=f"2022-04-{run + 1:02d}T00:00:00+00:00",
                    host="v100s",
                    uuid=f"GPU-v100-rank{rank}",
                    slot=int(slots[rank]),
                    device=f"cuda:{slots[rank]}",
                    model="Tesla V100-SXM2-16GB",
                    origin="simulated",
                    n=calls,
                    median_us=float(np.median(times)),
                    quartiles_us=tuple(float(each) for each in np.quantile(times, [0.25, 0.5, 0.75])),
                    mean_us=float(times.mean()),
                    cv=float(times.std(ddof=1) / times.mean()),
                    energy_per_call_j=float(power * times.mean() / 1e6),
                    power_w=float(power),
                    sm_mhz=float(1530 * SEED_TWO_MS[0] * 1e3 / times.mean()),
                    temperature_c=float(SEED_TWO_C[rank] + day + chance.normal(0, 0.7)),
                    case="sgemm",
                    workload="sgemm@cublas",
                    params={"n": 25536},
                )
            )
    return tuple(rows)
