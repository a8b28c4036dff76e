"""Times of functions on a machine that only keeps time, as they were when the estimators were last checked.

python -m tests.timing.pinned      write them down again, where an estimator was changed on purpose
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.timing import calibration, interleaved
from assay.timing.compare import compare
from assay.timing.do_bench import do_bench
from assay.timing.measure import measure
from assay.timing.pick import pick
from assay.timing.sampling import SampleBatch
from assay.timing.setup import BoundCall, TimedCall
from assay.timing.wall import WallTimer
from tests.pinning import keep
from tests.timing.machine_clock import VirtualMachine

KEPT = Path(__file__).parent / "pinned.json"
LEFT_OUT = {"series", "samples_us", "name", "names"}


def numbers() -> dict[str, Any]:
    """Return all that is pinned."""
    found: dict[str, Any] = {}
    for title, neighbour_ns in (("alone", 0.0), ("beside a neighbour", 200_000.0)):
        with pytest.MonkeyPatch.context() as patch:
            every = 5_000_000.0 if neighbour_ns else float("inf")
            machine = VirtualMachine(neighbour_every_ns=every, neighbour_ns=neighbour_ns, seed=4)
            machine.install(patch)

            def calls(*ns: float, noise: float = 0.05, on: VirtualMachine = machine) -> dict[str, Any]:
                return {f"f{n}": on.call(each, noise=noise, seed=n) for n, each in enumerate(ns)}

            for ns in (300.0, 40_000.0, 3_000_000.0):
                for precision in (0.01, 0.001):
                    (call,) = calls(ns).values()
                    told = measure(call, device="cpu", precision=precision, budget_s=0.5)
                    found[f"{title}: a call of {ns:g} ns to {precision}"] = _plain(told)
            found[f"{title}: two"] = _plain(compare(calls(40_000, 41_000), device="cpu", budget_s=0.5, seed=1))
            three, four = calls(40_000, 40_100, 60_000), calls(40_000, 40_300, 44_000, 90_000)
            found[f"{title}: three"] = _plain(compare(three, device="cpu", budget_s=0.5, seed=2))
            found[f"{title}: four"] = _plain(pick(four, device="cpu", budget_s=0.5, seed=3))
            for mode in ("mean", "median", "min", "max"):
                (call,) = calls(40_000).values()
                found[f"{title}: do_bench {mode}"] = do_bench(call, rep=20, return_mode=mode)
            (call,) = calls(40_000).values()
            found[f"{title}: do_bench quantiles"] = do_bench(call, rep=20, quantiles=[0.2, 0.5, 0.8])
            for asked in (None, 0.001, 0.02):
                found[f"{title}: a stretch to {asked}"] = _stretch(machine, calls(300, 40_000), asked)
            found[f"{title}: a stretch whose first round is slow"] = _slow_at_first(machine)
            found[f"{title}: the clock itself"] = _checked(calibration.calibrate_host_clock())
    found["clocks that are off"] = [_checked(clock) for clock in CLOCKS]
    return found


def _stretch(machine: VirtualMachine, calls: dict[str, Any], precision: float | None) -> Any:
    """Return what is sampled in turns within a tenth of a second."""
    rigged = [TimedCall(BoundCall(name, call), WallTimer(call), "call_us", "cpu", "") for name, call in calls.items()]
    taken = interleaved.sample_interleaved(rigged, until_ns=machine.now_ns + 100_000_000, precision=precision, seed=5)
    return [
        taken.end_ns - taken.start_ns,
        [[s.subject, len(s.samples), sum(s.samples), s.calls_per_sample] for s in taken.series],
    ]


class _Slow:
    """An instrument whose first batch takes 20 ms, the second 5 ms, and the others one."""

    method = primary = "call_us"
    calls_per_sample = 1

    def __init__(self, machine: VirtualMachine) -> None:
        self._machine = machine
        self._lengths_ns = iter((20_000_000, 5_000_000))

    def take(self) -> SampleBatch:
        self._machine.passes(next(self._lengths_ns, 1_000_000))
        return SampleBatch({"call_us": np.full(8, 1000.0)})

    def replan(self) -> bool:
        return False

    def close(self) -> None:
        pass


def _slow_at_first(machine: VirtualMachine) -> Any:
    """Return how far a stretch of a tenth of a second goes, and with how many samples."""
    rigged = TimedCall(BoundCall("slow", lambda: None), _Slow(machine), "call_us", "cpu", "")
    taken = interleaved.sample_interleaved([rigged], until_ns=machine.now_ns + 100_000_000, precision=None, seed=5)
    return [taken.end_ns - taken.start_ns, len(taken.series[0].samples)]


def _spun(true_us: float, read_us: float, disturbed: float) -> calibration.SpinTiming:
    return calibration.SpinTiming(
        true_us=true_us, read_us=read_us, low_us=read_us, high_us=read_us, disturbed_share=disturbed
    )


CLOCKS = [
    calibration.ClockCalibration(
        clock=clock, step_ns=32.0, floor_us=1.0, spins=(_spun(5.0, *first), _spun(500.0, *second))
    )
    for clock in ("host", "cuda:0")
    for first, second in (
        ((5.1, 0.0), (504.0, 0.05)),
        ((5.3, 0.05), (504.0, 0.051)),
        ((5.0, 0.0), (506.0, 0.0)),
        ((6.1, 0.2), (500.0, 0.0)),
        ((4.9, 0.0), (495.1, 0.0)),
    )
]


def _checked(clock: calibration.ClockCalibration) -> Any:
    return [clock.model_dump(mode="json"), [each.model_dump(mode="json") for each in calibration.check_clocks([clock])]]


def _plain(told: Any) -> Any:
    return {k: v for k, v in told.model_dump(mode="json").items() if k not in LEFT_OUT}


if __name__ == "__main__":
    keep(numbers(), KEPT)
