"""Findings about made-up worlds, as they were when the experiments were last checked.

python -m tests.experiments.pinned      write them down again, where a finding was changed on purpose
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from assay.experiments.energy import EXPERIMENT as ENERGY
from assay.experiments.gate import EXPERIMENT as GATE
from assay.experiments.matrix import EXPERIMENT as MATRIX
from assay.experiments.power.characterize import EXPERIMENT as CHARACTERIZE
from assay.experiments.power.sweep import EXPERIMENT as SWEEP
from assay.experiments.threshold import EXPERIMENT as THRESHOLD
from tests.experiments import matrices
from tests.experiments.contention import worlds as contention
from tests.experiments.energy import metered_world as energy
from tests.experiments.gate import revisions as gates
from tests.experiments.power import characterized, sweeps
from tests.experiments.scaling import worlds as scaling
from tests.experiments.threshold import crossings
from tests.machines import machine
from tests.pinning import keep

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Findings

KEPT = Path(__file__).parent / "pinned.json"


def numbers() -> dict[str, Any]:
    """Return all that is pinned."""
    return {**_contention(), **_matrix(), **_scaling(), **_power(), **_threshold(), **_gate(), **_energy()}


def _plain(findings: Findings) -> Any:
    return findings.model_dump(mode="json")["findings"]


def _contention() -> dict[str, Any]:
    found = {}
    for name, world in {
        "slower together": contention.World(slower={"concurrent": 1.2}, picks_wrong={"concurrent": 0.7}),
        "wider together": contention.World(wider={"concurrent": 3.0}, callers_wait={"concurrent": 1.1}, starts=0.005),
        "nothing": contention.World(starts=0.004, drift=0.05, devices={"cpu:1": 1.3}),
    }.items():
        found[f"contention, {name}"] = _plain(contention.found_in(world, contention.options())[0])
    several = contention.options(subjects=(contention.SOFTMAX, contention.GEMM), tunable=(True, True), repeat=6)
    found["contention, two workloads"] = _plain(contention.found_in(contention.World(regret=1.05), several)[0])
    return found


def _matrix() -> dict[str, Any]:
    def slowdown(phase: str, aggressor: str | None) -> float:
        return {("naive", "cpu"): 2.0, ("naive", "memory"): 1.5, ("isolated", "memory"): 1.4}.get(
            (phase, aggressor or ""), 1.0
        )

    with TemporaryDirectory() as place:
        wanted, folder = matrices.options(), matrices.folder_in(Path(place))
        return {"matrix": _plain(MATRIX.analyse(matrices.MACHINE, wanted, matrices.world(folder, wanted, slowdown)))}


def _scaling() -> dict[str, Any]:
    asked = scaling.options(sequences=(64,), min_efficiency=0.7, repeat=3)
    worlds = {"well": scaling.World(within=0.005), "badly": scaling.World(contention=0.9, balance=0.6, within=0.005)}
    return {f"scaling {name}": _plain(scaling.found_in(world, asked)[0]) for name, world in worlds.items()}


def _power() -> dict[str, Any]:
    asked = characterized.options(characterized.ALONE, characterized.BESIDE, characterized.QUIET)
    means = {"cuda:0": 2270.0, "cuda:1": 2285.0, "cuda:2": 2320.0, "cuda:3": 2290.0}
    records = characterized.world(
        asked,
        lambda where, device: 1e3 * means[device] * (1.03 if where.case.name == "beside" else 1.0),
        power_w=lambda where, _: 50.0 if where.case.name == "idle" else 290.0,
    )
    found = {"characterize": _plain(CHARACTERIZE.analyse(characterized.FOUR, asked, records))}
    for exponent in (1.3, 3.0):
        card, wanted = sweeps.Card(exponent=exponent), sweeps.options()
        swept = sweeps.world(wanted, _on(card), noise=0.005, seed=1)
        found[f"sweep, {exponent}"] = _plain(SWEEP.analyse(sweeps.MACHINE, wanted, swept))
    return found


def _on(card: sweeps.Card) -> Callable[[Any, Any], sweeps.Truth]:
    return lambda _, setting: card.at(setting)


def _rising(steep: float) -> Callable[[dict[str, Any], str], float]:
    """Return a speed-up that is 1.2 at a size of 200."""
    return lambda params, _: float(1.2 * (params["n"] / 200) ** steep)


def _threshold() -> dict[str, Any]:
    sizes = [2.0**n for n in range(4, 12)]
    wanted = crossings.options(crossings.threshold(sizes))
    found = {}
    for name, steep, noise in (("steep", 1.0, 0.05), ("flat", 0.2, 0.1)):
        world = crossings.World(_rising(steep), noise=noise, between=0.02)
        found[f"threshold, {name}"] = _plain(THRESHOLD.analyse(machine(), wanted, world.measured(wanted)))
    return found


def _gate() -> dict[str, Any]:
    found = {}
    for change in (1.0, 1.02, 1.05):
        wanted = gates.options()
        records = gates.World({"call_us": change}).measured(wanted)
        found[f"gate, {change}"] = _plain(GATE.analyse(gates.MACHINE, wanted, records))
    return found


def _energy() -> dict[str, Any]:
    there = energy.gpus(2)
    wanted = energy.options(there, energy.config(metrics={"carbon_g_per_kwh": 400}, batch_sizes=[1, 8]))
    records = energy.World(there, between=0.01, host_w=50.0).measured(wanted)
    return {"energy": _plain(ENERGY.analyse(there, wanted, records))}


if __name__ == "__main__":
    keep(numbers(), KEPT)
