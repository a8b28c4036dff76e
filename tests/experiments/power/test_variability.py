"""What is said of GPUs of which the truth is known; the benchmark has the same with ten thousand."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.experiments.power.variability import findings
from assay.experiments.power.variability.analysis import FleetAnalysis, analyse_fleet
from assay.experiments.power.variability.findings import fleet_findings
from assay.experiments.power.variability.fleet import group_fleets
from assay.experiments.power.variability.report import build_page, gpus_table
from tests.experiments.power.simulated_fleets import SEED_TWO_MS, Setting, Simulated, four_gpus, simulate
from tests.stats.chances import at_least, at_most

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.power.rows import GpuRow

PLANTED = Setting(nodes=25, hot_racks=1, slow=4, slow_in_hot_racks=2, hot=3, hungry=3)


def looked_at(rows: Sequence[GpuRow]) -> FleetAnalysis:
    (fleet,) = group_fleets(rows).fleets
    return analyse_fleet(fleet, 0.02)


@cache
def planted() -> tuple[Simulated, FleetAnalysis]:
    simulated = simulate(PLANTED, 3)
    return simulated, looked_at(simulated.all_rows)


def called(looked: FleetAnalysis, word: str) -> set[str]:
    return {looked.fleet.gpus[one.gpu].uuid for one in looked.outliers if one.word == word and one.verdict == "yes"}


def without(rows: Sequence[GpuRow], **changes: Any) -> list[GpuRow]:
    return [row.model_copy(update=changes) for row in rows]


def test_every_planted_gpu_is_found_also_in_a_rack_that_runs_hot() -> None:
    simulated, looked = planted()
    assert called(looked, "slow") == simulated.slow
    assert called(looked, "hot") == simulated.hot
    assert called(looked, "hungry") == simulated.hungry
    slow = [one for one in looked.outliers if one.word == "slow"]
    assert all(np.log(1.4) < one.peers.low < one.peers.high < np.log(1.62) for one in slow)
    in_hot = [one for one in slow if looked.fleet.gpus[one.gpu].rack in simulated.hot_racks]
    assert len(in_hot) == 2
    assert all(one.fleet.value > one.peers.value + 0.015 for one in in_hot)


def test_a_rack_that_runs_hot_is_named_as_a_rack_and_its_gpus_are_not() -> None:
    simulated, looked = planted()
    racks = {effect.name for effect in looked.references["temperature"].of("rack") if effect.verdict == "yes"}
    assert racks == simulated.hot_racks
    assert called(looked, "hot") & (simulated.in_hot_racks - simulated.planted) == set()


@pytest.mark.parametrize(
    "setting", [Setting(nodes=25), Setting(nodes=6, gpus=4), Setting(nodes=1), Setting(nodes=25, runs=1)]
)
def test_where_nothing_is_planted_hardly_any_gpu_is_called(setting: Setting) -> None:
    fleets = [looked_at(simulate(setting, seed).all_rows) for seed in range(6)]
    gpus = sum(len(looked.fleet.gpus) for looked in fleets)
    by_time = [
        one for looked in fleets for one in looked.outliers if one.verdict == "yes" and one.measure.name == "time"
    ]
    every = {(place, one.gpu) for place, looked in enumerate(fleets) for one in looked.outliers if one.verdict == "yes"}
    assert len(by_time) <= at_most(0.06, len(fleets))
    assert len(every) <= at_most(0.01, gpus)
    assert not any(effect.verdict == "yes" for looked in fleets for effect in looked.location_effects)


def test_variances_of_gpus_runs_and_restarts_are_told_apart() -> None:
    _, looked = planted()
    assert looked.typical is not None
    typical = {one.level: one for one in looked.typical}
    for level, true in (("GPUs", 0.01), ("runs", 0.004), ("restarts", 0.001)):
        one = typical[level]
        assert one.variance is not None
        assert np.sqrt(one.variance) == pytest.approx(true, rel=0.2)
    assert typical["repeats"].variance is None
    assert typical["repeats"].within == "runs"
    everyone = {one.level: one for one in looked.components}
    assert (everyone["GPUs"].share or 0.0) > 0.6


def test_a_slot_that_is_faster_everywhere_is_what_to_ask_for() -> None:
    looked = looked_at(simulate(Setting(nodes=12, gpus=4, slot_effects={3: -0.04}), 1).all_rows)
    assert looked.advice.answer == "slot"
    assert findings.advice_sentence(looked).startswith("Ask for slot 3, the 4th GPU of a host: over 12 hosts")
    gain = looked.advice.gain
    assert gain is not None
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low < 0.03 < gain.high
    said = findings.fourth_gpu_sentence(looked)
    assert said is not None
    assert said.startswith("Can I save money by just asking for the 4th GPU always? Yes")
    slower = looked_at(simulate(Setting(nodes=12, gpus=4, slot_effects={3: 0.04}), 1).all_rows)
    assert (findings.fourth_gpu_sentence(slower) or "").startswith(
        "Can I save money by just asking for the 4th GPU always? No"
    )
    assert not looked.outliers


def test_four_gpus_as_an_older_tool_saw_them_are_ranked_and_their_spread_is_told() -> None:
    n, right, near, held, hotter = 20, 0, 0, 0, 0
    true = SEED_TWO_MS[-1] / SEED_TWO_MS[0]
    for seed in range(n):
        looked = looked_at(four_gpus(seed))
        order = [looked.fleet.gpus[place].uuid for place in np.argsort(looked.numbers["time"].value)]
        right += order == sorted(order)
        spread, equal = looked.spread, next(pair for pair in looked.pairs if pair.equal == "power")
        assert spread is not None
        assert equal.association is not None
        near += abs(spread.ratio - true) < 0.002
        held += (spread.low or 9.0) <= true <= (spread.high or 0.0)
        hotter += equal.association.rho > 0.5
        assert equal.association.low is None
    assert min(right, near, hotter) >= at_least(0.99, n)
    assert held >= at_least(0.95, n)


def test_the_fastest_of_few_is_named_with_how_sure_that_is() -> None:
    rows = [row.model_copy(update={"median_us": row.median_us * (1.05 if row.slot else 1.0)}) for row in four_gpus(1)]
    looked = looked_at([row.model_copy(update={"restart_medians_us": ()}) for row in rows])
    assert looked.advice.answer == "gpu"
    assert findings.advice_sentence(looked).startswith(
        "Ask for GPU 0: it is the fastest of 4 GPUs with over 99 % confidence"
    )
    plain = findings.advice_sentence(looked_at(four_gpus(1)))
    assert plain.startswith("It matters little which GPU you ask for: 4 GPUs are within 2.")


def test_few_runs_of_many_cases_are_not_called_measured_once() -> None:
    rows = simulate(Setting(nodes=1, gpus=2, runs=1), 1).all_rows
    cases = [row.model_copy(update={"case": f"case {n}"}) for n in range(4) for row in rows[: 2 if n < 3 else 1]]
    again = [row.model_copy(update={"run": "later"}) for row in cases if row.slot == 0]
    looked = looked_at([*cases, *again])
    assert looked.advice.unit is None
    assert "as too little was measured to tell GPUs from chance (2 runs of 4 cases): " in findings.advice_sentence(
        looked
    )


def test_one_run_and_one_gpu_say_what_cannot_be_separated() -> None:
    once = looked_at(simulate(Setting(nodes=1, gpus=4, runs=1), 1).all_rows)
    assert once.advice.answer == "unknown"
    assert "as nothing was measured twice" in findings.advice_sentence(once)
    fastest = int(np.argmin(times := once.numbers["time"].value))
    less = findings.difference_text(once.numbers["time"].measure, float(times[fastest] - times.mean()))
    assert f"took {less.lstrip('−')} less time than the mean" in findings.advice_sentence(once)
    assert less in str(gpus_table(once))
    levels = {one.level: one for one in once.components}
    assert levels["runs"].within == "GPUs"
    single = looked_at(simulate(Setting(nodes=1, gpus=1), 1).all_rows)
    assert single.advice.answer == "one"
    assert fleet_findings([single]).headline.startswith("One GPU in 3 runs: how GPUs differ cannot be told.")
    assert {one.level: one.variance for one in single.components}["GPUs"] is None
    shown = build_page([once, single], fleet_findings([once, single]))
    assert "runs cannot be told from gpus: there is one for each" in str(shown).lower()


def test_other_models_work_sizes_and_origins_are_never_mixed_and_it_is_said() -> None:
    rows = simulate(Setting(nodes=2, gpus=4), 1).all_rows
    half = len(rows) // 2
    mixed = [*rows[:half], *without(rows[half:], model="Other")]
    found = group_fleets(mixed)
    assert {fleet.kind.model for fleet in found.fleets} == {"Simulated H100", "Other"}
    assert "2 models, each looked at by itself" in found.notes[0]
    other_size = without(rows, params={"n": 512})
    assert len(group_fleets([*rows, *other_size]).fleets) == 2
    assert len(group_fleets([*rows, *without(rows, origin="fake")]).fleets) == 2
    assert len(group_fleets([*rows, *without(rows, config={"block": 64})]).fleets) == 2
    apart = group_fleets([*rows, *without(rows, isolation="full")])
    assert len(apart.fleets) == 2
    assert "Rows differ in isolation (not recorded, full); each is looked at by itself." in apart.notes
    idle = group_fleets([*rows, *without(rows, workload="idle@python")])
    assert len(idle.fleets) == 1
    assert "idle" in idle.notes[0]


def test_what_a_case_adds_to_all_is_not_taken_for_the_gpus_own() -> None:
    rows = four_gpus(2)
    beside = [
        row.model_copy(update={"case": "beside", "median_us": row.median_us * 1.2, "neighbours": ("cuda:1 resnet50",)})
        for row in rows
        if row.uuid.endswith(("rank0", "rank1"))
    ]
    looked, plain = looked_at([*rows, *beside]), looked_at(rows)
    assert looked.spread is not None
    assert plain.spread is not None
    assert looked.spread.ratio == pytest.approx(plain.spread.ratio, rel=1e-3)
    busy = next(pair for pair in looked.pairs if pair.x == "busy neighbours")
    assert busy.association is not None
    assert busy.association.rho > 0.5
    assert busy.verdict == "yes"


def test_a_case_on_gpus_that_no_other_case_has_is_left_out_and_named() -> None:
    rows = simulate(Setting(nodes=3, gpus=4), 1).all_rows
    alone = [row for row in rows if row.host == "node0002"]
    found = group_fleets([*(row for row in rows if row.host != "node0002"), *without(alone, case="elsewhere")])
    (fleet,) = found.fleets
    assert len(fleet.gpus) == 8
    assert "elsewhere share no GPU with the other cases" in found.notes[-1]


def test_a_gpu_that_was_slow_in_one_run_only_is_not_surely_slow() -> None:
    rows = list(simulate(Setting(nodes=5), 1).all_rows)
    slow = rows[3].model_copy(update={"median_us": 1.5 * rows[3].median_us, "restart_medians_us": ()})
    looked = looked_at([*rows[:3], slow, *rows[4:]])
    assert called(looked, "slow") == set()


def test_of_many_gpus_no_page_has_a_strip_or_row_for_each() -> None:
    _, looked = planted()
    shown = build_page([looked], fleet_findings([looked]))
    assert max(len(figure.strips) for figure in shown.figures if figure.kind == "strips") < 20
    assert len(str(shown)) < 120_000
