"""Sweeps of power limits of which the truth is known, as the rows that real ones leave."""

from __future__ import annotations

import numpy as np

from assay.experiments.power.rows import SweepRow

CAPS = tuple(float(cap) for cap in range(200, 701, 100))


def rate_at(watts: float, speed: float, knee: float) -> float:
    """Return calls a second of a GPU at so many watts: ever less for each further watt."""
    return speed * (1 - float(np.exp(-watts / knee)))


def sweep_rows(
    slot: int,
    *,
    speed: float = 100.0,
    knee: float = 250.0,
    most: float = 560.0,
    noise: float = 0.0,
    repeats: int = 3,
    host: str = "n1",
    caps: tuple[float, ...] = CAPS,
    model: str = "Simulated H100",
) -> list[SweepRow]:
    """Make up the sweep of one GPU that never draws more than ``most``, as it was found and at each cap."""
    chance = np.random.default_rng([slot, repeats])
    rows = []
    for cap in (None, *caps):
        draw = most if cap is None else min(cap, most)
        rate = rate_at(draw, speed, knee)
        medians = tuple(float(t) for t in 1e6 / rate * np.exp(chance.normal(0, noise, repeats)))
        middle = float(np.exp(np.mean(np.log(medians))))
        rows.append(
            SweepRow(
                run=f"power-sweep-{host}",
                started_at="2026-01-01T00:00:00+00:00",
                host=host,
                uuid=f"GPU-{host}-{slot}",
                slot=slot,
                device=f"cuda:{slot}",
                model=model,
                origin="simulated",
                n=100,
                median_us=middle,
                quartiles_us=(middle, middle, middle),
                mean_us=middle,
                restart_medians_us=medians,
                power_w=draw,
                workload="sgemm@torch",
                params={"n": 8192},
                knob="power_limit_w",
                setting=cap,
                calls_per_s=1e6 / middle,
            )
        )
    return rows
