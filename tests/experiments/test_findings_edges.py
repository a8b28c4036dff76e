"""Findings at the edges of what decides them: revisions, company, thresholds, predictions and older results."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.results import Estimate, Parity
from assay.core.values import Subject
from assay.experiments.compare.variance import (
    RepeatSpread,
    analyse_kernels,
    headline,
    mismatch_reason,
    mismatch_verdict,
    ratio_verdict,
    repeat_spread,
    spread_ratio,
    stratified_ratio,
    time_text,
)
from assay.experiments.contention import findings
from assay.experiments.contention.effects import (
    ContentionEffect,
    NoiseBudget,
    PhaseComparison,
    baseline_differences,
    compare_phase,
    judge_effect,
)
from assay.experiments.contention.findings import (
    build_findings,
    effect_reason,
    machine_remarks,
    regret_findings,
    supporting_trials,
    time_findings,
    variation_findings,
)
from assay.experiments.contention.layout import ContentionLayout, LayoutCell, WorkerSlot
from assay.experiments.gate import EXPERIMENT as GATE
from assay.experiments.scaling.timings import judge_at_least
from assay.experiments.threshold import answers as threshold_answers
from assay.experiments.threshold.report import answers_table, build_study
from assay.experiments.threshold.report import build_findings as threshold_findings
from assay.stats.blocks import BlockRatio
from assay.stats.ratios import Proportion
from tests.experiments.contention import worlds as contention
from tests.experiments.gate import revisions
from tests.experiments.remembered import Remembered
from tests.experiments.threshold import crossings
from tests.machines import machine

if TYPE_CHECKING:
    from assay.core.results import Findings
    from assay.experiments.contention.layout import LevelTable
    from assay.experiments.contention.options import Phase
    from assay.experiments.threshold.spec import ThresholdOptions
    from assay.store.records import Records

HERE, THERE = WorkerSlot(0, "cpu:0"), WorkerSlot(1, "cpu:1")
TRITON = Subject(workload="plain", impl="triton")


def of_threshold(wanted: ThresholdOptions, records: Records) -> Findings:
    return threshold_findings(wanted, build_study(wanted, records).answers, records)


def between(low: float | None, high: float | None, value: float = 1.0) -> Estimate:
    return Estimate(value=value, low=low, high=high, unit="×", scope="run", method="made", n=3)


def cell(phase: Phase, place: WorkerSlot, *samples: float) -> LayoutCell:
    return LayoutCell(place, 1, phase, "call_us", np.array(samples), 0.0, f"{phase} {place.device} {place.worker}")


def laid(*cells: LayoutCell) -> ContentionLayout:
    seen: Any = (Made(block=1, record=Made(trial="seen")),)
    return ContentionLayout(cells=cells, choices=(), phase_trials=seen, missing=(), quantity="call_us")


def analysis(*cells: LayoutCell, **changes: Any) -> Any:
    told = {
        "layout": laid(*cells), "times": {}, "spreads": {}, "picks": {}, "mismatches": {}, "losses": {},
        "agreements": [], "budgets": [], "correlations": [], "incomparable": None, "overrun": None,
    }  # fmt: skip
    return Made(**{**told, **changes})


def test_findings_of_a_gate_are_as_real_as_its_records_and_give_the_reason_or_the_change() -> None:
    wanted = revisions.options(lower_is_better=("peak_mib",))
    records = revisions.World({"call_us": 1.5}).measured(revisions.options())
    real = GATE.report(revisions.MACHINE, wanted, records).findings.findings
    assert {finding.origin for finding in real} == {"real"}
    by_quantity = {finding.facts.get("quantity"): finding.reason for finding in real}
    assert "%" in str(by_quantity["call_us"])
    assert "peak_mib" in str(by_quantity["peak_mib"])
    made = [record.model_copy(update={"origin": "fake"}) for record in list(records)[:1]]
    mixed = Remembered([*list(records)[1:], *made], records._kept)  # type: ignore[attr-defined]
    assert {finding.origin for finding in GATE.report(revisions.MACHINE, wanted, mixed).findings.findings} == {"fake"}


def test_remarks_are_made_only_of_what_is_short_different_or_fixed() -> None:
    two, three = contention.options(), contention.options(devices=("cpu:0", "cpu:1", "cpu:2"))
    assert machine_remarks(contention.TWO_CORES, two) == ()
    assert "3 processes share 2 cores" in machine_remarks(contention.TWO_CORES, three)[0]
    fixed = contention.options(subjects=(contention.SOFTMAX, contention.GEMM), tunable=(True, False))
    (said,) = machine_remarks(contention.TWO_CORES, fixed)
    assert said.startswith("gemm")
    assert "softmax" not in said
    untuned = contention.options(tunable=(False,), tuner=None)
    assert machine_remarks(contention.TWO_CORES, untuned) == ()
    pair = machine(cores=(2,), gpus=[0, 0])
    on_gpus = contention.options(devices=("cuda:0", "cuda:1"))
    assert machine_remarks(pair, on_gpus) == ()
    other = pair.model_copy(update={"gpus": (pair.gpus[0], pair.gpus[1].model_copy(update={"name": "Other"}))})
    assert "Example, Other" in machine_remarks(other, on_gpus)[0]


def test_a_pick_is_held_against_the_next_device_only_where_there_is_one_that_compares() -> None:
    picked: Any = {("baseline", WorkerSlot(0, f"cpu:{n}")): {1: f"c{n}"} for n in range(2)}

    def changes(devices: tuple[str, ...], **told: Any) -> int:
        found = build_findings(contention.options(devices=devices), analysis(picks=picked, **told))
        return sum(finding.kind == "mismatch_over_devices" for finding in found)

    assert changes(("cpu:0", "cpu:1")) == 1
    assert changes(("cpu:0", "cpu:1"), incomparable="they are of different models") == 0
    assert changes(("cpu:0",)) == 0


def test_more_than_half_of_the_noise_is_more_than_half() -> None:
    cells = (cell("baseline", HERE, 1.0), cell("again", HERE, 1.0), cell("naive", HERE, 1.0))
    budgets = [
        NoiseBudget("alone", {"within": 0.5, "starts": 0.25}, 1.0),
        NoiseBudget("naive", {"within": 0.5625, "starts": 0.25}, 1.0),
        NoiseBudget("isolated", {"within": 0.4, "starts": 0.25}, 1.0),
    ]
    found = build_findings(contention.options(), analysis(*cells, budgets=budgets))
    alone, naive, isolated = (f for f in found if f.kind == "noise")
    assert [alone.verdict, naive.verdict, isolated.verdict] == ["no", "yes", "no"]
    assert alone.records == ("baseline cpu:0 0", "again cpu:0 0")
    assert naive.records == ("naive cpu:0 0",)
    assert naive.facts["within_percent"] == pytest.approx(111.7)  # e^0.75 is 2.1170
    assert naive.facts["starts_percent"] == pytest.approx(64.872, abs=1e-3)


def test_times_go_with_a_sensor_up_to_a_chance_of_one_in_twenty() -> None:
    sensed = [Made(metric="heat", correlation=Made(rho=0.5, n=9, p=p)) for p in (0.05, 0.0501)]
    found = build_findings(contention.options(), analysis(correlations=sensed))
    assert [f.verdict for f in found if f.kind == "sensors"] == ["yes", "unsure"]


def test_a_claim_rests_on_the_trials_of_its_phases_and_of_its_place_alone() -> None:
    second = WorkerSlot(0, "cpu:0", 1)
    cells = (
        cell("baseline", HERE, 1.0),
        cell("naive", HERE, 1.0),
        cell("naive", second, 1.0),
        cell("naive", THERE, 1.0),
    )
    found = analysis(*cells)
    assert supporting_trials(found, "naive") == ("naive cpu:0 0", "naive cpu:0 1", "naive cpu:1 0")
    assert supporting_trials(found, "naive", slot=second) == ("naive cpu:0 0", "naive cpu:0 1")
    assert supporting_trials(found, "baseline", slot=THERE) == ()


def test_every_verdict_on_company_says_what_it_rests_on() -> None:
    ends = BlockRatio(1.2, 1.1, 1.3, 4)
    assert "not measured" in effect_reason(ContentionEffect(None, 0.1, "unsure"), 0.01)
    assert "no A/A" in effect_reason(ContentionEffect(ends, None, "unsure"), 0.01)
    assert "one block" in effect_reason(ContentionEffect(BlockRatio(1.2, None, None, 1), 0.1, "unsure"), 0.01)
    assert effect_reason(ContentionEffect(ends, 0.1, "yes"), 0.01).startswith("the interval excludes 1")
    assert effect_reason(ContentionEffect(ends, 0.1, "no"), 0.01).startswith("all of the interval")
    assert effect_reason(ContentionEffect(ends, 0.1, "unsure"), 0.01).startswith("not decided")


def test_places_are_told_of_one_by_one_where_there_are_two() -> None:
    effect = ContentionEffect(BlockRatio(1.2, 1.1, 1.3, 4), 0.0625, "yes")
    wanted = contention.options(subjects=(contention.SOFTMAX, contention.GEMM), tunable=(True, True))

    def found(*places: WorkerSlot) -> list[Any]:
        whole: Any = {
            phase: PhaseComparison(phase, effect, dict.fromkeys(places, effect)) for phase in ("naive", "again")
        }
        return list(time_findings(wanted, analysis(times={"call_us": whole})))

    assert len(found(HERE)) == 2
    assert len(found(HERE, THERE)) == 4
    together, again = found(HERE)
    assert together.claim.startswith("Side by side, ")
    assert again.claim.startswith("Alone, measured twice, ")
    assert together.facts["floor"] == 0.0625


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.04, 0.05, "unsure"), (0.05, 0.06, "unsure"), (0.04, 0.0499, "yes"), (0.0501, 0.06, "no"),
        (0.04, 0.06, "unsure"), (None, None, "unsure"),
    ],
)  # fmt: skip
def test_repeats_vary_by_little_only_where_all_of_the_interval_does(
    low: float | None, high: float | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "ratio_over_blocks", lambda _: BlockRatio(0.05, low, high, 3))
    found: Any = Made(phases=("baseline",))
    (finding,) = variation_findings(found, analysis())
    assert finding.verdict == said
    assert finding.estimate is not None
    assert finding.estimate.value == pytest.approx(5.0)
    if low is not None and high is not None:
        assert (finding.estimate.low, finding.estimate.high) == pytest.approx((100 * low, 100 * high))


def test_repeats_of_a_phase_vary_by_what_its_own_cells_say() -> None:
    found = analysis(cell("baseline", HERE, 9.0, 11.0), cell("naive", HERE, 1.0, 3.0))
    wanted: Any = Made(phases=("baseline", "naive", "isolated"))
    quiet, crowded = variation_findings(wanted, found)
    assert quiet.estimate is not None
    assert crowded.estimate is not None
    assert (quiet.estimate.value, crowded.estimate.value) == pytest.approx(
        (14.1421, 70.7107), abs=1e-3
    )  # √2 / 10, √2 / 2


def test_only_picks_that_never_differed_leave_a_loss_open() -> None:
    def loss(ratio: BlockRatio | None) -> Any:
        losses = {"naive": PhaseComparison("naive", ContentionEffect(ratio, 0.0, "no"), {})}
        (finding,) = regret_findings(contention.options(), analysis(losses=losses))
        return finding

    alike = loss(BlockRatio(1.0, 1.0, 1.0, 3))
    assert (alike.verdict, alike.estimate.low) == ("unsure", None)
    assert loss(BlockRatio(1.0, 0.99, 1.01, 3)).verdict == "no"
    assert (loss(BlockRatio(1.0, None, None, 1)).verdict, loss(None).verdict) == ("no", "no")


def test_a_phase_is_held_against_the_mean_of_quiet_and_again_against_the_first() -> None:
    table: LevelTable = {
        ("baseline", HERE): {1: 0.25, 2: 0.5},
        ("again", HERE): {1: 0.75, 3: 4.0},
        ("naive", WorkerSlot(0, "cpu:0", 1)): {1: 2.0, 2: 2.0, 4: 2.0},
    }
    assert baseline_differences(table, "again", HERE) == {1: 0.5}
    assert baseline_differences(table, "naive", WorkerSlot(0, "cpu:0", 1)) == {1: 1.5, 2: 1.5}


def test_a_place_by_itself_must_differ_surely_enough_for_all_of_them() -> None:
    """Student's t of two blocks is 12.7 at 95 % and 25.5 at 97.5 %: of half a difference of 0.01, 0.127 and 0.255."""
    table: LevelTable = {
        ("naive", HERE): {1: 0.19, 2: 0.21},
        ("naive", THERE): {1: -0.205, 2: -0.195},
        ("baseline", HERE): {1: -0.0005, 2: 0.0005},
        ("again", HERE): {1: 0.0005, 2: -0.0005},
        ("baseline", THERE): {1: -0.001, 2: 0.001},
        ("again", THERE): {1: 0.001, 2: -0.001},
        ("isolated", WorkerSlot(0, "cpu:9")): {1: 3.0, 2: 3.0},
    }
    found = compare_phase(table, "naive", 0.01)
    assert found.overall.verdict != "yes"
    assert list(found.slots) == [HERE, THERE]
    assert [each.verdict for each in found.slots.values()] == ["unsure", "yes"]
    # Two A/A ratios of 0.001 and of 0.002: t of 4.3027 over √2.
    assert [each.floor for each in found.slots.values()] == pytest.approx([0.003047, 0.006104], abs=1e-6)
    both = {**table, ("naive", THERE): {1: 0.195, 2: 0.205}}
    together = compare_phase(both, "naive", 0.01)
    assert [together.overall.verdict, together.slots[HERE].verdict] == ["yes", "yes"]


def test_what_surely_is_no_difference_stays_none() -> None:
    assert judge_effect([0.001, -0.001, 0.0], [0.001, -0.001], 0.05).verdict == "no"
    assert judge_effect([0.001, -0.001, 0.0], [0.001, -0.001], 0.05, 0.99).verdict == "no"
    assert judge_effect([0.5, 0.51, 0.49], [0.001, -0.001], 0.05).verdict == "yes"


def test_a_threshold_tells_its_parity_its_sizes_and_how_real_it_is() -> None:
    wanted = crossings.options(crossings.threshold([16, 64, 256, 1024]))
    records = crossings.World(lambda params, _: 1.2 * params["n"] / 200).measured(wanted)
    found = of_threshold(wanted, records).findings
    by = {finding.kind: finding for finding in found}
    assert by["parity"].verdict == "yes"
    assert by["parity"].reason is None
    assert by["threshold"].facts["value"] == 256
    assert by["time"].facts["value"] == 256
    assert by["threshold"].reason
    assert by["time"].reason is None
    assert by["threshold"].estimate is not None
    assert by["threshold"].estimate.confidence == pytest.approx(0.98)
    pairs = sum(taken.subject % 2 for record in records for taken in record.series)
    assert by["threshold"].estimate.n == pairs > 1
    assert {finding.origin for finding in found} == {"real"}
    faked = [record.model_copy(update={"origin": "simulated"}) for record in records]
    made = of_threshold(wanted, Remembered(faked, records._kept)).findings  # type: ignore[attr-defined]
    assert {finding.origin for finding in made} == {"simulated"}


def test_a_threshold_of_one_size_says_why_parity_did_not_pass() -> None:
    wanted = crossings.options(crossings.threshold([64]))
    for parity, said in ((Parity(passed=False, measure="close", reason="far off"), "no"), (None, "unsure")):
        world = crossings.World(lambda params, _: 3.0, parity=lambda _, told=parity: told)  # type: ignore[misc]
        found = of_threshold(wanted, world.measured(wanted)).findings
        last = next(finding for finding in found if finding.kind == "parity")
        first = next(finding for finding in found if finding.kind == "threshold")
        assert last.verdict == said
        assert last.reason
        assert str(first.reason).startswith(last.reason)
        assert first.facts["value"] is None
        size = next(finding for finding in found if finding.kind == "time").facts["value"]
        assert size == (64 if said == "unsure" else None)


def test_a_threshold_from_numbers_without_samples_rests_on_one() -> None:
    only = crossings.threshold([16, 64])
    wanted = crossings.options(only)
    place = threshold_answers.ThresholdLocation("threshold", 64, 16, 64)
    judged_so: Any = Made(threshold=only, points=(), measurements=())
    told = threshold_answers.ThresholdAnswer(judged_so, place, 64, {}, (), "passed", ())
    first = threshold_findings(wanted, [told], Remembered([], {})).findings[0]
    assert first.estimate is not None
    assert first.estimate.n == 1
    assert first.reason is None


def test_thresholds_are_told_by_each_time_only_where_there_are_two() -> None:
    place = threshold_answers.ThresholdLocation("threshold", 64, 64, 64)
    later = threshold_answers.ThresholdLocation("threshold", 256, 64, 256)
    never = threshold_answers.ThresholdLocation("disable")
    unknown = threshold_answers.ThresholdLocation("unsure")

    def told(
        by: dict[Any, Any], parity: Any = "passed", where: Any = place, name: str = "sorting", margin: float = 1.25
    ) -> threshold_answers.ThresholdAnswer:
        only: Any = Made(threshold=crossings.threshold([64], name=name, margin=margin))
        value = where.size if parity == "passed" else None
        return threshold_answers.ThresholdAnswer(only, where, value, by, (), parity, ())

    both = answers_table([told({"call": place}, margin=2.0), told({"call": place, "span": later}, name="scan")])
    titles = ["threshold", "from", "by call", "by span", "parity", "to write"]
    assert [column.title for column in both.columns] == titles
    assert both.rows == (
        ("sorting", "64", "64", None, "passed", "runtime.sorting_min: 64"),
        ("scan", "64", "64", "256 (64–256)", "passed", "runtime.scan_min: 64"),
    )
    assert both.title == "From which size on the fast path is faster by 1.25× or 2×"
    assert str(both.note).startswith("Call: what a caller waits")
    for by in ({"call": place}, {}):
        single = answers_table([told(by), told(by, parity="failed")])
        assert [column.title for column in single.columns] == [*titles[:2], *titles[4:]]
        assert single.note == "By what a caller waits."
        assert [row[3] for row in single.rows] == ["runtime.sorting_min: 64", "nothing"]
    toned = [told({}), told({}, where=never), told({}, where=unknown), told({}, "failed"), told({}, "skipped")]
    assert answers_table(toned).tones == ("good", "plain", "unsure", "bad", "bad")


def test_a_threshold_is_claimed_of_its_paths_with_the_first_of_its_reasons() -> None:
    sizes = (crossings.point(16), crossings.point(64).model_copy(update={"reference": TRITON, "fast": TRITON}))
    grid = crossings.threshold([16, 64]).model_copy(update={"points": sizes})
    place = threshold_answers.ThresholdLocation("threshold", 64, 16, 64)
    judged_so: Any = Made(threshold=grid, points=(), measurements=())
    failed = threshold_answers.ThresholdAnswer(
        judged_so, place, None, {"call": place}, (), "failed", ("It is off.", "It is late.")
    )
    first, by_call, parity = threshold_findings(crossings.options(grid), [failed], Remembered([], {})).findings
    assert first.claim == "from 64 on plain@new is at least 1.2× as fast as plain@old (sorting, cautious)"
    assert by_call.claim == "from 64 on plain@new is at least 1.2× as fast as plain@old (sorting, call)"
    assert (first.reason, by_call.reason, parity.reason) == ("It is off. It is late", None, "It is off")
    assert (first.facts["value"], by_call.facts["value"], parity.verdict) == (None, 64, "no")


def test_a_share_is_enough_from_the_edge_on() -> None:
    assert judge_at_least(None, 0.5) == "unsure"
    assert judge_at_least(between(None, None), 0.5) == "unsure"
    assert judge_at_least(between(0.5, 0.75), 0.5) == "yes"
    assert judge_at_least(between(0.25, 0.5), 0.5) == "unsure"
    assert judge_at_least(between(0.25, 0.49), 0.5) == "no"
    us = between(0.25, 0.75, 0.5).scaled("µs", times=1e6)
    assert (us.value, us.low, us.high, us.unit) == (500000.0, 250000.0, 750000.0, "µs")
    assert between(None, None).scaled("µs", times=1e6).low is None


def test_a_ratio_is_longer_beyond_the_minimum_effect_only() -> None:
    told = {(1.5, 2.0): "unsure", (1.6, 2.0): "yes", (1.2, 2.0): "unsure", (1.0, 1.5): "no", (1.0, 1.4): "no"}
    assert {ends: ratio_verdict(between(*ends), 0.5) for ends in told} == told
    assert ratio_verdict(None, 0.5) == ratio_verdict(between(None, None), 0.5) == "unsure"
    words = {
        (1.5, 2.0): "no sure", (1.6, 2.0): "longer", (1.2, 2.0): "no sure", (0.5, 1 / 1.5): "no sure",
        (0.5, 0.6): "less time", (0.5, 0.8): "no sure", (None, None): "too few",
    }  # fmt: skip
    assert all(said in time_text(between(*ends), 0.5) for ends, said in words.items())
    assert "no times" in time_text(None, 0.5)


class Known(Proportion):
    """A share whose interval is given."""

    ends = (0.0, 0.0)

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        return self.ends


def known(count: int, low: float, high: float) -> Proportion:
    share = Known(count, 10)
    object.__setattr__(share, "ends", (low, high))
    return share


def test_picks_differ_more_often_only_where_the_intervals_lie_apart() -> None:
    chance = known(3, 0.3, 0.5)
    assert mismatch_verdict(known(6, 0.5, 0.9), chance) == "unsure"
    assert mismatch_verdict(known(6, 0.6, 0.9), chance) == "yes"
    assert mismatch_verdict(known(6, 0.4, 0.9), chance) == "unsure"
    assert mismatch_verdict(known(1, 0.1, 0.3), chance) == "no"
    assert mismatch_verdict(known(1, 0.1, 0.4), chance) == "unsure"
    assert mismatch_verdict(known(0, 0.0, 0.4), chance) == "no"
    assert (
        mismatch_verdict(Proportion(0, 0), Proportion(1, 9))
        == mismatch_verdict(Proportion(8, 9), Proportion(0, 0))
        == "unsure"
    )
    assert "not known" in mismatch_reason(Proportion(1, 2), Proportion(0, 0))
    assert "1 of 4 of the baseline" in mismatch_reason(Proportion(1, 2), Proportion(1, 4))


def kernel(name: str, *differ: str) -> Any:
    share, chance = Proportion(1, 2), Proportion(0, 3)
    picks = Made(
        mismatch=share, baseline_mismatch=chance, shares=(share, chance), devices=(Made(differing=differ),) * 2
    )
    return Made(name=name, times=Made(ratio=None), spreads=Made(ratio=None, samples_ratio=None), picks=picks)


def test_three_kernels_are_named_and_the_rest_are_counted() -> None:
    names = [kernel(name) for name in ("first", "second", "third", "fourth")]
    assert "more" not in headline(tuple(names[:3]), 0.1)
    assert "third" in headline(tuple(names[:3]), 0.1)
    assert "; and 1 more" in headline(tuple(names), 0.1)
    assert "fourth" not in headline(tuple(names), 0.1)
    found = analyse_kernels((kernel("first", "block", "warps"), kernel("second")), 0.1).findings
    assert [finding.facts["settings"] for finding in found] == ["block, warps", None]


def test_the_scatter_of_repeats_is_pooled_over_what_was_timed_twice() -> None:
    """Squares about the means: 0.16 + 0.01 + 0.25, 0.02 and 0.08, with 2, 1 and 1 degrees of freedom."""
    things = {"a": [[0.0, 0.3, 0.9], [0.0, 0.2], [2.0]], "b": [[1.0, 1.4]], "c": [[1.0]]}
    found = repeat_spread({device: [list(map(math.exp, logs)) for logs in each] for device, each in things.items()})
    assert found is not None
    assert found.cv == pytest.approx(0.37260, abs=1e-5)  # √(e^0.13 − 1)
    assert found.freedom == 3
    assert repeat_spread({"a": [[1.0], [2.0]], "b": []}) is None


def test_a_ratio_of_scatters_has_the_interval_of_f() -> None:
    found = spread_ratio(RepeatSpread(0.1, 10), RepeatSpread(0.2, 2))
    assert found is not None
    assert found.n == 14
    # F of 2 and 10 degrees of freedom is below 5.456 in 97.5 %, and below 1 / 39.398 in 2.5 %.
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 0.85624, 12.5536), rel=1e-4)
    still, one = RepeatSpread(0.0, 3), RepeatSpread(1.0, 3)
    assert [spread_ratio(*pair) for pair in ((None, one), (one, None), (still, one), (one, still))] == [None] * 4
    assert spread_ratio(one, one) is not None


def test_a_ratio_holds_each_device_against_itself() -> None:
    found = stratified_ratio({"a": [1.0, 1.1], "b": [], "c": [9.0]}, {"a": [2.0, 2.2, 2.1], "b": [50.0]})
    assert found is not None
    assert found.n == 5
    assert found.low is not None
    assert found.high is not None
    assert found.low < 2.0 < found.high
    assert "1 device," in found.method
