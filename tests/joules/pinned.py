"""Energies of a made-up recording, as they were when the estimators were last checked against real ones.

    python -m tests.joules.pinned      write them down again, where an estimator was changed on purpose

The recording: idle, calls that warm up, calls that count, a rest, calls again, idle; read every 10 ms.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.joules.devices import polling_interval_s
from assay.joules.measure import energy, plan_measurement
from assay.joules.per_call import estimate_call_energy
from assay.joules.readings import CallBoundary, MeterReading
from assay.joules.sensor_model import CounterModel, PowerModel, SensorModel, fit_sensor_model
from assay.joules.window_energy import estimate_window_energy
from tests.joules.trials import installed, model_of
from tests.joules.world import Kernel, VirtualRig, hopper_like, no_counter, opened, probed
from tests.pinning import keep

if TYPE_CHECKING:
    from tests.joules.world import Kind, Profile, World

KEPT = Path(__file__).parent / "pinned.json"
NS = 1_000_000_000
STEP_S, CALL_S, IDLE_W, CALL_W = 0.001, 0.037, 80.0, 400.0
WORK = ((2.0, 81), (5.6, 60))
"""When calls begin, and how many follow each other."""
OPEN_S = 3.0
MODEL = SensorModel(
    device="GPU-0",
    driver="1",
    counter=CounterModel(period_s=0.1, jitter_s=0.005, quantum_j=0.001, lag_s=0.03, lag_error_s=0.002, read_s=0.004),
    instant=PowerModel(period_s=0.1, window_s=0.025, lag_s=0.01, lag_error_s=0.003, with_counter=True, explained=0.98),
    average=PowerModel(period_s=0.1, window_s=1.0, lag_s=0.02, lag_error_s=0.003, with_counter=True, explained=0.97),
)
SENSORS = {
    "all": MODEL,
    "counter": MODEL.model_copy(update={"instant": None, "average": None}),
    "instant": MODEL.model_copy(update={"counter": None, "average": None}),
    "average": MODEL.model_copy(update={"counter": None, "instant": None}),
}
WINDOWS = ((2.5, 4.5), (1.0, 6.0), (4.03, 7.57), (8.2, 9.3), (0.0, 3.0), (3.0, 3.2))


def power_w() -> np.ndarray:
    """Return the power at each step: a call's first third draws half as much again, and power strays a little."""
    t = np.arange(0.0, 10.0, STEP_S)
    watts = np.full(len(t), IDLE_W)
    for start_s, calls in WORK:
        into = t - start_s
        busy = (into >= 0) & (into < calls * CALL_S)
        phase = np.mod(into, CALL_S) / CALL_S
        watts = np.where(busy, np.where(phase < 1 / 3, 1.5, 0.75) * CALL_W, watts)
    return watts * (1 + 0.01 * np.sin(2 * np.pi * t / 1.7))


def readings() -> list[MeterReading]:
    """Return what was read every 10 ms: the counter with its lag, instant and average power with theirs."""
    spent = np.concatenate([[0.0], np.cumsum(power_w()) * STEP_S])

    def until(t_s: float) -> float:
        return float(np.interp(t_s, np.arange(len(spent)) * STEP_S, spent))

    def mean_w(t_s: float, window_s: float) -> float:
        return (until(t_s) - until(t_s - window_s)) / window_s if t_s > window_s else IDLE_W

    found = []
    for number in range(998):
        t_s = 0.01 * number + 0.0007
        tick_s = 0.1 * np.floor((t_s + 0.043) / 0.1) - 0.043
        found.append(
            MeterReading(
                t_ns=round(t_s * NS),
                begin_ns=round((t_s + 0.0002) * NS),
                end_ns=round((t_s + 0.0042) * NS),
                energy_j=round(1000 + until(max(0.0, tick_s - 0.03)), 3),
                instant_w=round(mean_w(max(0.0, tick_s - 0.01), 0.025), 3),
                average_w=round(mean_w(max(0.0, tick_s - 0.02), 1.0), 3),
            )
        )
    return found


def knots() -> list[CallBoundary]:
    """Return the moments between calls."""
    found, done = [], 0
    for start_s, calls in WORK:
        found += [CallBoundary(round((start_s + n * CALL_S) * NS), done + n) for n in range(calls + 1)]
        done += calls
    return found


def numbers() -> dict[str, Any]:
    """Return all that is pinned."""
    seen = readings()
    found: dict[str, Any] = {}
    for name, model in SENSORS.items():
        judged = estimate_call_energy(seen, knots(), round(OPEN_S * NS), model)
        found[f"per call by {name}"] = {
            **vars(judged.per_call), "method": judged.method, "coverage": judged.coverage, "seen": judged.seen_share,
            "unseen": judged.unseen_share, "crosscheck": judged.crosscheck, "calls": judged.calls,
            "call_s": judged.call_s, "rests_s": judged.rests_s, "systematic_j": judged.systematic_j,
            "power_w": judged.power_w,
        }  # fmt: skip
        for start_s, end_s in WINDOWS:
            told = estimate_window_energy(seen, round(start_s * NS), round(end_s * NS), model, precision=0.2)
            found[f"{start_s} to {end_s} s by {name}"] = told.model_dump(mode="json", exclude={"reason"})
        chance = random.Random(1)
        found[f"plan for {name}"] = [
            vars(plan_measurement(model, s, 10.0, 0.01, chance)) for s in (0.0001, 0.02, 0.5, 4.0)
        ]
    found["energies of kernels"] = {name: _energy(**asked) for name, asked in KERNELS.items()}
    found["seconds between readings"] = [polling_interval_s(model) for model in (*SENSORS.values(), FAST, NO_SENSOR)]
    late = [replace(each, begin_ns=each.begin_ns + NS, end_ns=each.end_ns + NS, t_ns=each.t_ns + NS) for each in seen]
    shifted = [CallBoundary(knot.t_ns + NS, knot.calls) for knot in knots()]
    found["the sensors as they are found"] = fit_sensor_model(late, shifted, "GPU-0", "1").model_dump(mode="json")
    return found


FAST = SensorModel(
    device="GPU-0",
    driver="1",
    instant=PowerModel(period_s=0.05, window_s=0.025, lag_s=0.01, lag_error_s=0.003, with_counter=True, explained=0.98),
    average=MODEL.average,
)
NO_SENSOR = SensorModel(device="GPU-0", driver="1")
SHORT, LONG = ((0.0002, 400.0),), ((0.02, 500.0), (0.05, 200.0))
KERNELS: dict[str, dict[str, Any]] = {
    "short": {"profile": SHORT},
    "short, net": {"profile": SHORT, "net": True},
    "short, to a thousandth": {"profile": SHORT, "precision": 0.001},
    "long": {"profile": LONG},
    "long, net": {"profile": LONG, "net": True, "budget_s": 6.0},
    "long, without a counter": {"profile": LONG, "kind": no_counter()},
    "straying": {"profile": SHORT, "straying": 0.04},
}


def _energy(profile: Profile, kind: Kind | None = None, straying: float = 0.0, **asked: Any) -> Any:
    """Return what a kernel of a known profile costs on a fake GPU; its power may stray from one moment to the next."""
    model = model_of("Hopper") if kind is None else probed(kind)
    with opened(kind or hopper_like(53.0), seed=3) as (world, meter):
        kernel = _Straying(world, profile, straying)
        with installed(VirtualRig(world, meter, model)):
            told = energy(kernel, seed=3, name="kernel", **asked)
    return told.model_dump(mode="json", exclude={"readings", "knots", "notes", "sensor", "open_ns"})


class _Straying(Kernel):
    """A kernel whose power goes up and down by a share of it, twice a second."""

    def __init__(self, world: World, profile: Profile, share: float) -> None:
        super().__init__(world, profile)
        self._world_time, self._share, self._plain = world, share, list(self._steps)

    def __call__(self) -> None:
        factor = 1 + self._share * np.sin(4 * np.pi * self._world_time.now_ns() / NS)
        self._steps = [(duration, round(watts * factor, 1)) for duration, watts in self._plain]
        super().__call__()


if __name__ == "__main__":
    keep(numbers(), KEPT)
