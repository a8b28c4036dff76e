"""Findings about made-up worlds, as they were when the experiments were last checked.

python -m tests.experiments.pinned      write them down again, where a finding was changed on purpose
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.experiments.compare.pairing import align_results, cells_ratio, judge_pairs
from assay.experiments.compare.sources import read_source
from assay.experiments.compare.variance import repeat_spread, spread_ratio, stratified_ratio
from assay.experiments.energy import EXPERIMENT as ENERGY
from assay.experiments.energy.study import build_study
from assay.experiments.gate import EXPERIMENT as GATE
from assay.experiments.matrix import EXPERIMENT as MATRIX
from assay.experiments.power.budget import budget_findings, fit_curves, plan_budget, select_work
from assay.experiments.power.characterize import EXPERIMENT as CHARACTERIZE
from assay.experiments.power.sweep import EXPERIMENT as SWEEP
from assay.experiments.power.variability.analysis import analyse_fleet as look_at_fleet
from assay.experiments.power.variability.findings import fleet_findings
from assay.experiments.power.variability.fleet import group_fleets
from assay.experiments.regressions import detect_regressions as look_at_history
from assay.experiments.scaling_prediction import EXPERIMENT as PREDICTION
from assay.experiments.scaling_prediction import forecast_cells
from assay.experiments.threshold import EXPERIMENT as THRESHOLD
from assay.store.history.database import file_location
from assay.store.history.queries import PointFilter, load_series
from tests.experiments import comparisons, matrices
from tests.experiments import simulated_histories as histories
from tests.experiments.contention import worlds as contention
from tests.experiments.energy import metered_world as energy
from tests.experiments.gate import revisions as gates
from tests.experiments.power import characterized, sweeps
from tests.experiments.power.simulated_fleets import Setting, four_gpus, simulate
from tests.experiments.power.simulated_sweeps import sweep_rows
from tests.experiments.scaling import test_scaling_prediction as prediction
from tests.experiments.scaling import worlds as scaling
from tests.experiments.threshold import crossings
from tests.machines import machine
from tests.pinning import keep, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Findings

KEPT = Path(__file__).parent / "pinned.json"


def numbers() -> dict[str, Any]:
    """Return all that is pinned."""
    parts = (
        _contention, _matrix, _variance, _scaling, _prediction, _power, _fleets, _budgets, _threshold, _gate, _energy,
        _compared, _regressions,
    )  # fmt: skip
    return {name: value for part in parts for name, value in part().items()}


def _plain(findings: Findings) -> Any:
    return [{"headline": findings.headline}, findings.model_dump(mode="json")["findings"]]


def _contention() -> dict[str, Any]:
    world = contention.World
    worlds = {
        "slower together": world(slower={"concurrent": 1.2, "naive": 1.2}, picks_wrong={"naive": 0.7}),
        "wider together": world(wider={"naive": 3.0}, callers_wait={"naive": 1.1}, starts=0.005),
        "nothing": world(starts=0.004, drift=0.05, devices={"cpu:1": 1.3}),
        "mended": world(slower={"naive": 1.8, "isolated": 1.05}, starts=0.01),
        "not mended": world(slower={"naive": 1.8, "isolated": 1.7}, starts=0.01),
        "perhaps mended": world(slower={"naive": 1.3, "isolated": 1.1}, starts=0.06, within=0.06),
        "not known to be mended": world(slower={"naive": 1.25, "isolated": 1.02}, starts=0.08, seed=3),
        "nearly steady": world(within=0.048, starts=0.001),
        "of callers": world(
            slower={"naive": 1.0}, callers_wait={"naive": 1.5}, starts=0.003, quantities=("busy_us", "call_us")
        ),
        "picks nothing": world(nothing_found={"naive", "alone", "again", "isolated"}),
        "partly refused": world(
            refused={(1, "naive"), (2, "naive", "cpu:1"), (3, "again")}, picks_wrong={"naive": 0.3}
        ),
    }
    found = {}
    for name, each in worlds.items():
        found[f"contention, {name}"] = _plain(contention.found_in(each, contention.options())[0])
    several = contention.options(subjects=(contention.SOFTMAX, contention.GEMM), tunable=(True, True), repeat=6)
    found["contention, two workloads"] = _plain(contention.found_in(contention.World(regret=1.05), several)[0])
    three = contention.options(devices=("cpu:0", "cpu:1", "cpu:2"), workers=2, repeat=3)
    four = contention.options(devices=tuple(f"cpu:{n}" for n in range(4)), repeat=4)
    apart = world(devices={"cpu:1": 1.01, "cpu:2": 1.02, "cpu:3": 1.035}, starts=0.012)
    found["contention, four devices"] = _plain(contention.found_in(apart, four, machine(cores=(8,)))[0])
    strange = world(devices={"cpu:1": 1.02, "cpu:2": 1.06}, starts=0.01, slower={"naive": 1.4})
    found["contention, three devices"] = _plain(contention.found_in(strange, three, machine(cores=(4,)))[0])
    return found


def _matrix() -> dict[str, Any]:
    def slowdown(phase: str, aggressor: str | None) -> float:
        return {("naive", "cpu"): 2.0, ("naive", "memory"): 1.5, ("isolated", "memory"): 1.4}.get(
            (phase, aggressor or ""), 1.0
        )

    with TemporaryDirectory() as place:
        wanted, folder = matrices.options(), matrices.folder_in(Path(place))
        return {
            "matrix": _plain(MATRIX.report(matrices.MACHINE, wanted, matrices.world(folder, wanted, slowdown)).findings)
        }


def _variance() -> dict[str, Any]:
    strata = [{"a": [1.0, 1.1, 1.05], "b": [2.0, 2.2]}, {"a": [1.2, 1.25], "b": [2.1]}, {"c": [3.0, 3.3, 3.1, 3.4]}]
    spreads = [
        repeat_spread({"a": [[1.0, 1.02, 0.99], [2.0, 2.1]]}),
        repeat_spread({"a": [[1.0, 1.1]], "b": [[5.0, 5.2, 4.9, 5.5]]}),
    ]
    pairs = [(0, 1), (1, 0), (0, 2), (2, 2)]
    return {
        "variance": [told(stratified_ratio(strata[one], strata[other])) for one, other in pairs],
        "spreads": [told(spread_ratio(spreads[one], spreads[other])) for one, other in ((0, 1), (1, 0), (1, 1))],
    }


def _scaling() -> dict[str, Any]:
    asked = scaling.options(sequences=(64,), min_efficiency=0.7, repeat=3)
    worlds = {
        "well": scaling.World(within=0.005, starts=0.002),
        "badly": scaling.World(contention=0.9, balance=0.6, within=0.005),
        "perhaps": scaling.World(within=0.03, starts=0.04, contention=0.85),
        "wrongly": scaling.World(error=1e-2, extra_bytes=512.0, within=0.01),
    }
    return {f"scaling {name}": _plain(scaling.found_in(world, asked)[0]) for name, world in worlds.items()}


def _prediction() -> dict[str, Any]:
    found = {}
    with TemporaryDirectory() as place:
        for name, wanted, samples in (
            ("strong", prediction.options(counts=(2, 4, 8, 16, 64)), 20),
            ("weak", prediction.options(mode="weak", counts=(1, 4)), 20),
            ("on few samples", prediction.options(counts=(8,)), 3),
            ("just so", prediction.options(counts=(32, 64, 128, 256)), 12),
        ):
            records = prediction.measured(wanted, Path(place), samples=samples)
            found[f"prediction, {name}"] = _plain(PREDICTION.report(prediction.MACHINE, wanted, records).findings)
            found[f"forecast, {name}"] = [
                [told(each.time), told(each.efficiency), each.peak_mib] for each in forecast_cells(wanted, records)
            ]
    return found


def _fleets() -> dict[str, Any]:
    small = Setting(nodes=8, gpus=4, nodes_per_rack=4, hot_racks=1, slow=2, slow_in_hot_racks=1, hot=1, hungry=1)
    found = {}
    for name, rows, effect in (
        ("planted", simulate(small, 3).all_rows, 0.02),
        ("plain", simulate(Setting(nodes=3, gpus=4, slot_effects={3: 0.03}), 4).all_rows, 0.02),
        ("alike", simulate(Setting(nodes=2, of_gpu=0.001), 5).all_rows, 0.02),
        ("alike, to 0.2 %", simulate(Setting(nodes=2, of_gpu=0.001), 5).all_rows, 0.002),
        ("once", simulate(Setting(nodes=2, runs=1), 6).all_rows, 0.01),
        ("four", four_gpus(1), 0.02),
        ("two", [row for row in four_gpus(2) if row.uuid.endswith(("0", "3"))], 0.02),
    ):
        looked = [look_at_fleet(fleet, effect) for fleet in group_fleets(rows).fleets]
        found[f"fleet, {name}"] = _plain(fleet_findings(looked))
        found[f"advice, {name}"] = [told(each.advice) for each in looked]
        found[f"spread, {name}"] = [told(each.spread) for each in looked]
        found[f"together, {name}"] = [
            [{"verdict": pair.verdict}, told(pair.association)] for each in looked for pair in each.pairs
        ]
    return found


def _budgets() -> dict[str, Any]:
    gpus = ((100.0, 180.0), (95.0, 260.0), (90.0, 400.0))
    rows = [r for slot, (speed, knee) in enumerate(gpus) for r in sweep_rows(slot, speed=speed, knee=knee, noise=0.003)]
    work, kept = select_work(rows, None)
    curves, _ = fit_curves(kept, ())
    found = {}
    for watts, overhead, least in (
        (700.0, 0.0, None),
        (1050.0, 200.0, None),
        (1500.0, 0.0, 0.7),
        (1900.0, 300.0, None),
    ):
        plan = plan_budget(curves, watts, overhead, least)
        found[f"budget of {watts:g} W less {overhead:g}"] = [
            _plain(budget_findings(plan, work)),
            [[share.watts, share.cap_w] for share in plan.shares],
            [plan.binds, told(plan.loss), told(plan.against_equal)],
        ]
    return found


def _power() -> dict[str, Any]:
    asked = characterized.options(characterized.ALONE, characterized.BESIDE, characterized.QUIET)
    means = {"cuda:0": 2270.0, "cuda:1": 2285.0, "cuda:2": 2320.0, "cuda:3": 2290.0}
    records = characterized.world(
        asked,
        lambda where, device: 1e3 * means[device] * (1.03 if where.case.name == "beside" else 1.0),
        power_w=lambda where, _: 50.0 if where.case.name == "idle" else 290.0,
    )
    found = {"characterize": _plain(CHARACTERIZE.report(characterized.FOUR, asked, records).findings)}
    for exponent, noise in ((1.3, 0.005), (3.0, 0.005), (1.1, 0.02), (2.0, 0.05)):
        card, wanted = sweeps.Card(exponent=exponent), sweeps.options()
        records = sweeps.world(wanted, _on(card), noise=noise, seed=1)
        found[f"sweep, {exponent}"] = _plain(SWEEP.report(sweeps.MACHINE, wanted, records).findings)
    clocks = sweeps.options(knob="sm_mhz", points=sweeps.points(None, 600, 1200, 1500, 1900))
    for name, most_mhz in (("held", 1980.0), ("not reached", 1400.0)):
        records = sweeps.world(clocks, _locked(most_mhz), noise=0.004, seed=2)
        found[f"sweep of clocks, {name}"] = _plain(SWEEP.report(sweeps.MACHINE, clocks, records).findings)
    return found


def _on(card: sweeps.Card) -> Callable[[Any, Any], sweeps.Truth]:
    return lambda _, setting: card.at(setting)


def _locked(most_mhz: float) -> Callable[[Any, Any], sweeps.Truth]:
    """Return what a GPU does whose clock never goes beyond so much."""

    def truth(_: Any, setting: Any) -> sweeps.Truth:
        mhz = most_mhz if setting is None else min(most_mhz, float(setting))
        return sweeps.Truth(0.02 * most_mhz / mhz, 100 + 400 * (mhz / most_mhz) ** 2, sm_mhz=mhz)

    return truth


def _rising(steep: float) -> Callable[[dict[str, Any], str], float]:
    """Return a speed-up that is 1.2 at a size of 200."""
    return lambda params, _: float(1.2 * (params["n"] / 200) ** steep)


def _threshold() -> dict[str, Any]:
    sizes = [2.0**n for n in range(4, 12)]
    wanted = crossings.options(crossings.threshold(sizes))
    found = {}
    for name, steep, noise in (("steep", 1.0, 0.05), ("flat", 0.2, 0.1)):
        world = crossings.World(_rising(steep), noise=noise, between=0.02)
        found[f"threshold, {name}"] = _plain(THRESHOLD.report(machine(), wanted, world.measured(wanted)).findings)
    return found


def _gate() -> dict[str, Any]:
    found = {}
    for change in (1.0, 1.02, 1.05):
        wanted = gates.options()
        records = gates.World({"call_us": change}).measured(wanted)
        found[f"gate, {change}"] = _plain(GATE.report(gates.MACHINE, wanted, records).findings)
    return found


def _energy() -> dict[str, Any]:
    there = energy.gpus(2)
    wanted = energy.options(there, energy.config(metrics={"carbon_g_per_kwh": 400}, batch_sizes=[1, 8]))
    worlds = {
        "plain": energy.World(there, between=0.01, host_w=50.0),
        "waiting": energy.World(there, busy=0.3, sway=0.2),
        "profiled": energy.World(there, busy=0.97, after=1.3, sensor=lambda _: 0.03),
        "lost": energy.World(there, lost=4, silent=frozenset({1})),
    }
    found = {
        f"energy, {name}": _plain(ENERGY.report(there, wanted, w.measured(wanted)).findings)
        for name, w in worlds.items()
    }
    server = {"type": "openai", "model": "some/model", "endpoint": "http://127.0.0.1:8000/v1"}
    asked = energy.options(there, energy.config(backend=server))
    for short in (0.0, 0.04, 0.05, 0.06, 0.5):
        world = energy.World(there, answers={"short_requests": short, "requests": 1.0})
        rows = build_study(there, asked, world.measured(asked)).result.rows
        found[f"energy of a server, {short} of its answers short"] = [
            [{"code": note.code, "verdict": note.severity} for row in rows for note in row.notes],
            _plain(ENERGY.report(there, asked, world.measured(asked)).findings),
        ]
    return found


def _compared() -> dict[str, Any]:
    found = {}
    with TemporaryDirectory() as place:
        times = {"softmax": 100.0, "gemm": 900.0}
        base = comparisons.a_run(Path(place) / "base", times, seed=1)
        for name, change in (("same", 1.0), ("slower", 1.2), ("a little", 1.012), ("hardly", 1.022)):
            others = {workload: us * change for workload, us in times.items()}
            other = comparisons.a_run(Path(place) / name, others, seed=2)
            table = align_results([read_source(base), read_source(other)])
            found[f"compared, {name}"] = [
                {"verdict": judged.verdict, "ratio": told(cells_ratio(pair.baseline, pair.other))}
                for pair, judged in zip(table.pairs, judge_pairs(table.pairs, 0.02), strict=True)
            ]
    return found


def _regressions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with TemporaryDirectory() as place:
        for number, (first, last, size) in enumerate(((60, 80, 1.2), (30, 97, 1.1))):
            logs = histories.noise(5, 100, seed=number)
            logs[0, first:last] += np.log(size)
            logs[1, 50:] += np.log(1.2)
            logs[1, 92:] -= np.log(1.15)
            database = histories.filled(histories.Made(logs), file_location(Path(place) / f"{number}.sqlite"))
            with database.reading() as connection:
                seen = look_at_history(load_series(connection, PointFilter()), since_s=None)
            found[f"history {first} to {last} by {size}"] = seen.model_dump(mode="json", exclude={"change_points"})
            found[f"steps {first} to {last} by {size}"] = [
                {"code": step.status, "verdict": step.verdict, "ratio": step.ratio.model_dump(mode="json")}
                for step in seen.change_points
            ]
    return found


if __name__ == "__main__":
    keep(numbers(), KEPT)
