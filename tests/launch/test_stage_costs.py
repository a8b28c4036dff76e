"""What a token of each stage cost, where it is known what was spent."""

from __future__ import annotations

import numpy as np
import pytest

from assay.core.results import Estimate, Stage
from assay.launch.monitoring import token_costs
from assay.launch.workers import RawSeries


def stage(subject: int, restart: int, joules: float | None) -> Stage:
    energy = (
        None
        if joules is None
        else Estimate(
            value=joules, low=0.99 * joules, high=1.01 * joules, unit="J", scope="process", method="counter", n=9
        )
    )
    return Stage(role="model", subject=subject, restart=restart, start_ns=0, end_ns=10, calls=2, energy=energy)


def counted(subject: int, restart: int, quantity: str, *values: float, rank: int = 0) -> RawSeries:
    data = np.array(values, dtype=np.float64).tobytes()
    return RawSeries(
        role="model", rank=rank, subject=subject, restart=restart, quantity=quantity, data=data,
        calls_per_sample=1, start_ns=0, end_ns=10,
    )  # fmt: skip


def test_energy_is_told_per_token_made_else_per_token_read_over_processes() -> None:
    series = [
        counted(1, 0, "output_tokens", 10, 10), counted(1, 1, "output_tokens", 20), counted(1, 2, "output_tokens", 20),
        counted(1, 0, "input_tokens", 5),
        counted(1, 0, "output_tokens", 10, 10, rank=1),
        counted(2, 0, "input_tokens", 100),
        counted(3, 0, "output_tokens", 100),
    ]  # fmt: skip
    stages = [
        stage(0, 0, 50.0), stage(1, 0, 40.0), stage(1, 1, 40.0), stage(1, 2, 40.0),
        stage(2, 0, 25.0), stage(3, 0, None),
    ]  # fmt: skip
    made, read = token_costs(stages, series)
    assert (made.subject, made.quantity, made.n, made.estimate.scope) == (1, "output_token_j", 3, "run")
    assert made.estimate.value == pytest.approx(2.0)
    assert made.estimate.low is not None
    assert made.estimate.low == pytest.approx(1.98, rel=1e-3)
    assert (read.subject, read.quantity, read.estimate.scope) == (2, "input_token_j", "process")
    assert read.estimate.value == pytest.approx(0.25)


def test_two_processes_are_not_a_run() -> None:
    series = [counted(1, restart, "output_tokens", 10, 10) for restart in range(2)]
    (made,) = token_costs([stage(1, 0, 40.0), stage(1, 1, 42.0)], series)
    assert (made.n, made.estimate.scope) == (2, "process")
    assert "fewer than the 3" in made.estimate.method


def test_one_process_has_the_spread_of_its_calls_beside_the_sensors_interval() -> None:
    times = [90.0, 110.0] * 10
    series = [counted(1, 0, "output_tokens", *([10.0] * 20)), counted(1, 0, "call_us", *times)]
    (made,) = token_costs([stage(1, 0, 400.0)], series)
    half = made.estimate.relative_half_width
    assert half is not None
    assert half > 0.011, "the sensor alone is sure to 1 %"
    assert "spread of its calls" in made.estimate.method
    (unseen,) = token_costs([stage(1, 0, 400.0)], series[:1])
    assert unseen.estimate.low is None
