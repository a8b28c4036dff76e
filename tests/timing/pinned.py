"""Times of functions on a machine that only keeps time, as they were when the estimators were last checked.

python -m tests.timing.pinned      write them down again, where an estimator was changed on purpose
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.timing.compare import compare
from assay.timing.do_bench import do_bench
from assay.timing.measure import measure
from assay.timing.pick import pick
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
    return found


def _plain(told: Any) -> Any:
    return {k: v for k, v in told.model_dump(mode="json").items() if k not in LEFT_OUT}


if __name__ == "__main__":
    keep(numbers(), KEPT)
