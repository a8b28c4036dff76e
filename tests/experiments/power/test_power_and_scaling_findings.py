"""Findings at the edges of what decides them: power, fleets and scaling."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import Any

import numpy as np
import pytest

from assay.core.results import Check, Estimate, Missing
from assay.experiments.power.characterize.findings import (
    NOTHING_MEASURED,
    gpu_case_facts,
    judge_precision,
    study_headline,
    unsure_reason,
)
from assay.experiments.power.characterize.findings import build_findings as of_power
from assay.experiments.power.characterize.options import CasePart, CharacterizeCase, SkippedCase
from assay.experiments.power.characterize.plan import cases_by_trial
from assay.experiments.power.characterize.study import (
    GpuCase,
    analyse_records,
    compare_cases,
    energy_estimate,
    far_over_near_effects,
    gpu_cases_of,
    gpu_name,
    least_contended_case,
    model_spread,
    time_estimate,
    typical_us,
    uncontended_case,
    values_by_repeat,
)
from assay.experiments.power.rows import GpuRow
from assay.experiments.power.variability import analysis as fleets
from assay.experiments.power.variability.analysis import FleetAnalysis, GpuOutlier, PeerDifference
from assay.experiments.power.variability.fleet import MEASURES, TIME_MEASURE, group_fleets
from assay.experiments.scaling.analysis import (
    AnalysedShape,
    RankMemory,
    ScalingAnalysis,
    ShapeFacts,
    measure_matmul_flop_per_s,
)
from assay.experiments.scaling.analysis import analyse_scaling as of_scaling
from assay.experiments.scaling.findings import build_findings
from assay.experiments.scaling.plan import ScalingShape, minimum_flop
from assay.experiments.scaling.timings import QUANTITIES
from tests.experiments.power import characterized as power
from tests.experiments.power.simulated_fleets import four_gpus
from tests.experiments.remembered import Remembered
from tests.experiments.scaling import worlds as scaling

NOT_KNOWN = Missing(code="not_measured", detail="it was not measured")


def between(low: float | None, high: float | None, value: float = 1.0) -> Estimate:
    return Estimate(value=value, low=low, high=high, unit="×", scope="run", method="made", n=3)


def row(case: str, gpu: str, repeat: int, us: float, model: str = "M", **changes: Any) -> GpuRow:
    told = {
        "run": "r", "started_at": "now", "host": "h", "uuid": gpu, "slot": 0, "device": f"cuda:{gpu}", "model": model,
        "n": 9, "median_us": us, "quartiles_us": (1.0, 2.0, 4.0), "mean_us": us, "case": case, "repeat": repeat,
        "workload": "sgemm@torch",
    }  # fmt: skip
    return GpuRow.model_validate({**told, **changes})


def outlier(name: str, gpu: int, value: float, said: Any = "yes") -> GpuOutlier:
    measure = next(each for each in MEASURES if each.name == name)
    apart = PeerDifference(value, value, value)
    return GpuOutlier(gpu, measure, apart, apart, "its peers", 0.01, said)


def test_a_gpu_stands_out_by_energy_only_where_nothing_else_explains_it() -> None:
    told = (
        outlier("time", 1, 0.5), outlier("energy", 1, 0.5), outlier("energy", 2, 0.5), outlier("power", 3, 0.5),
        outlier("time", 4, -0.5), outlier("time", 5, 0.5, "unsure"), outlier("time", 6, 0.0),
    )  # fmt: skip
    nothing: Any = None
    found = FleetAnalysis(nothing, 0.01, {}, {}, told, (), None, None, (), nothing)
    assert [(each.measure.name, each.gpu) for each in found.reported_outliers] == [
        ("time", 1), ("energy", 2), ("power", 3), ("time", 4), ("time", 5), ("time", 6),
    ]  # fmt: skip
    assert [each.gpu for each in found.surely(TIME_MEASURE)] == [1]
    assert [each.gpu for each in found.surely(TIME_MEASURE, high=False)] == [4, 6]


def test_only_gpus_that_are_surely_slow_are_advised_on(monkeypatch: pytest.MonkeyPatch) -> None:
    time = (
        outlier("time", 1, 0.5),
        outlier("time", 2, -0.5),
        outlier("time", 3, 0.5, "unsure"),
        outlier("time", 4, 0.0),
    )
    asked: dict[str, Any] = {}

    def levels(_: Any, without: frozenset[int] = frozenset()) -> tuple[()]:
        asked["without"] = without
        return ()

    def outliers(found: Any, *_: Any) -> tuple[GpuOutlier, ...]:
        return time if found.measure == TIME_MEASURE else (outlier(found.measure.name, 9, 0.5),)

    monkeypatch.setattr(fleets, "find_outliers", outliers)
    monkeypatch.setattr(fleets, "variance_components", levels)
    monkeypatch.setattr(fleets, "recommend_gpu", lambda *told: asked.update(slow=told[3]))
    fleets.analyse_fleet(group_fleets(four_gpus(1)).fleets[0], 0.02)
    assert asked == {"without": frozenset({1, 2, 3, 4}), "slow": [1]}


def test_one_case_over_another_takes_what_both_have() -> None:
    """Times 1.1 and 1.3 as long; GPUs by 14, 5 and 2 degrees hotter in the mean of their repeats."""
    rows = [
        row("over", "0", repeat, 110.0, temperature_c=c, energy_per_call_j=2.0, power_w=300.0, sm_mhz=1500.0)
        for repeat, c in ((1, 60.0), (2, 62.0), (3, 70.0))
    ]
    rows += [
        row("under", "0", repeat, 100.0, temperature_c=50.0, energy_per_call_j=1.0, power_w=100.0, sm_mhz=1000.0)
        for repeat in (1, 2, 3)
    ]
    rows += [row("over", "1", 1, 130.0, temperature_c=55.0), row("under", "1", 1, 100.0, temperature_c=50.0)]
    rows += [row("over", "1", 2, 130.0), row("over", "2", 1, 999.0), row("under", "3", 1, 1.0, temperature_c=9.0)]
    rows += [row("over", "4", 7, 1.0, temperature_c=52.0), row("under", "4", 8, 1.0, temperature_c=50.0)]
    found = compare_cases(power.options(), rows, "over", "under")
    assert found is not None
    assert found.energy
    assert found.power
    assert found.clock
    assert found.time.value == pytest.approx(1.195826)  # the root of 1.43
    assert (found.energy.value, found.power.value, found.clock.value) == pytest.approx((2.0, 3.0, 1.5))
    assert (found.gpus, found.hotter_c) == (2, 7.0)
    assert compare_cases(power.options(), rows, "over", "never") is None


def test_the_slowest_gpu_of_a_model_is_found_by_the_mean_of_its_logarithms() -> None:
    """Means of the logarithms: 0.3, 0.2 and 0.1 beyond that of 100 µs."""
    logs = {"0": (0.0, 0.0, 0.9), "1": (0.2, 0.2, 0.2), "2": (0.1, 0.1, 0.1)}
    rows = [row("c", gpu, n, 100 * math.exp(log)) for gpu, each in logs.items() for n, log in enumerate(each, 1)]
    rows += [row("c", "1", 4, 1e6), row("c", "3", 1, 1.0, "other"), row("d", "4", 1, 1.0)]
    found = model_spread("c", "M", rows, 0.01)
    assert found is not None
    assert (found.slowest, found.fastest, found.gpus) == ("GPU 0", "GPU 2", 3)
    assert found.ratio.value == pytest.approx(1.221403)  # e^0.2
    assert found.ratio.confidence == pytest.approx(1 - 0.05 / 3)
    assert found.cv == pytest.approx(0.099876, abs=1e-5)
    assert model_spread("c", "other", rows, 0.01) is None
    two = model_spread("c", "M", [each for each in rows if each.uuid != "0"], 0.01)
    assert two is not None
    assert two.gpus == 2
    assert two.ratio.confidence == pytest.approx(0.95)


def test_a_case_is_held_against_the_same_one_without_its_company() -> None:
    noisy, other = power.case("noisy", 1, power.noise()), power.case("other", subject=power.RESNET)
    named = CharacterizeCase(name="named", base=CasePart(subject=power.SGEMM, count=1, devices=("cuda:1",)))
    everything = (other, power.BESIDE, named, power.TWO, noisy, power.ALONE)
    assert uncontended_case(noisy, everything) == power.ALONE
    assert uncontended_case(noisy, (power.TWO, named, noisy)) == named
    assert uncontended_case(noisy, (noisy, power.TWO, other)) is None
    assert uncontended_case(power.TWO, everything) == named
    assert uncontended_case(power.ALONE, everything) is None


def test_far_neighbours_are_held_against_the_same_ones_near() -> None:
    both = [power.case(f"{p} and same", 1, power.noise(1, p), power.noise(1, "same")) for p in ("near", "far")]
    cases = (power.ALONE, power.NEAR, power.FAR, *both)
    rows = [row(case.name, "0", repeat, 100.0) for case in cases for repeat in (1, 2)]
    found = far_over_near_effects(power.options(*cases), rows)
    assert [(each.case, each.against) for each in found] == [("far", "near"), ("far and same", "near and same")]


def test_findings_rest_on_trials_that_came_off_and_tell_the_last_reason() -> None:
    asked = power.options(power.ALONE, power.TWO)

    names: list[str] = []

    def fails(where: Any) -> str | None:
        names.append(where.case.name)
        return "at first" if where.case.name == "two" or (where.repeat, where.base) == (1, ("cuda:0",)) else None

    kept = power.world(asked, lambda where, device: 1000.0, fails=fails)
    records = list(kept)
    last = max(place for place, name in enumerate(names) if name == "two")
    records[last] = records[last].model_copy(update={"reason": "at last", "status": "refused", "origin": "fake"})
    found = of_power(asked, analyse_records(power.FOUR, asked, Remembered(records, kept._kept))).findings
    gpus = {str(f.facts["device"]): f for f in found if f.kind == "gpu"}
    assert {device: len(f.records) for device, f in gpus.items()} == {
        "cuda:0": 3, "cuda:1": 4, "cuda:2": 4, "cuda:3": 4,
    }  # fmt: skip
    assert {f.origin for f in gpus.values()} == {"real"}
    (without,) = (f for f in found if f.kind == "case")
    assert (without.reason, without.facts["status"], without.origin) == ("at last", "refused", "fake")
    made = [record.model_copy(update={"origin": "simulated"}) for record in records]
    simulated = analyse_records(power.FOUR, asked, Remembered(made, kept._kept))
    assert {f.origin for f in of_power(asked, simulated).findings} == {"simulated"}


def test_what_is_told_of_a_gpu_is_what_its_rows_say() -> None:
    rows = tuple(row("c", "0", n, 100.0, power_w=w, held_back={"heat": 0.5}) for n, w in ((1, 1.0), (2, 2.0), (3, 6.0)))
    found = gpu_case_facts(GpuCase("c", rows, between(0.9, 1.1), None))
    quartiles = [found[name] for name in ("first_quartile_us", "third_quartile_us", "iqr_us")]
    assert (quartiles, found["power_w"], found["held_back"]) == ([1.0, 4.0, 3.0], 3.0, "heat 0.5")
    assert gpu_case_facts(GpuCase("c", (row("c", "0", 1, 100.0),), between(0.9, 1.1), None))["held_back"] is None
    assert judge_precision(between(0.75, 1.25), 0.25) == ("yes", None)
    narrower = "it is known to ±12.3 %; more --repeat or a longer --duration narrows it"
    assert judge_precision(between(0.8766, 1.1234), 0.12) == ("no", narrower)
    assert judge_precision(between(None, None), 0.25)[0] == "unsure"
    assert unsure_reason(between(0.75, 1.25), "yes", 0.1) is None
    assert "one repeat" in str(unsure_reason(between(None, None), "unsure", 0.1))
    open_one = "+0.0 % (−25.0 to +25.0) holds both none and more than 10 %; more --repeat decides"
    assert str(unsure_reason(between(0.75, 1.25), "unsure", 0.1)).endswith(open_one.partition(") ")[2])


def gpu(case: str, us: float, joules: float | None, watts: float | None, model: str = "M") -> Any:
    one = Made(workload="sgemm@torch", params={"n": int(us)}, model=model)
    energy = None if joules is None else between(None, None, joules)
    return Made(
        case=case, name="GPU 0", time=between(None, None, us), energy=energy, cv=None, one=one, mean=lambda _: watts
    )


def study(*gpus: Any, **changes: Any) -> Any:
    return Made(
        **{"gpus": gpus, "spreads": (), "contention": (), "distance": (), "pairs": (), "skipped": {}, **changes}
    )


def company(name: str, value: float, said: str) -> Any:
    return Made(case=name, time=between(None, None, value), verdict=said)


def unequal(case: str, value: float, said: str) -> Any:
    return Made(case=case, ratio=between(None, None, value), verdict=said, slowest="GPU 1", fastest="GPU 0")


def test_a_headline_of_power_goes_from_the_fastest_to_the_slowest() -> None:
    asked = power.options(power.ALONE, power.TWO)
    gpus = (gpu("alone", 2000.0, 5.0, 150.0), gpu("alone", 1000.0, 4.0, 100.0), gpu("alone", 3000.0, 6.0, 200.0))
    said = study_headline(asked, study(gpu("two", 9.0, None, None, "X"), *gpus))
    assert said == "sgemm@torch (n = 2000) takes 1.000–3.000 ms, 4.00–6.00 J, at 100–200 W on 3 × M."
    assert study_headline(asked, study(gpus[0])) == "sgemm@torch (n = 2000) takes 2.000 ms, 5.00 J, at 150 W on M."
    assert "on 2 × M" in study_headline(asked, study(*gpus[:2]))
    for place, cv in enumerate((0.25, None, 0.5)):
        gpus[place].cv = cv
    assert study_headline(asked, study(*gpus)).endswith("at 100–200 W on 3 × M, CV 50 %.")
    assert study_headline(asked, study()) == NOTHING_MEASURED
    idle = power.options(power.QUIET)
    assert study_headline(idle, study(gpu("idle", 1.0, None, 40.0))) == "Only idle power was measured: GPU 0 40 W."


def test_a_headline_of_power_tells_the_largest_change() -> None:
    asked, one = power.options(power.ALONE, power.TWO), gpu("alone", 2000.0, None, None)

    def told(**changes: Any) -> str:
        return study_headline(asked, study(one, **changes)).partition("on M.")[2].strip()

    assert told() == ""
    worst = (unequal("alone", 1.5, "yes"), unequal("alone", 1.2, "no"), unequal("two", 3.0, "no"))
    assert told(spreads=worst).startswith("GPU 1 is the slowest: 50.0 %")
    assert told(spreads=(unequal("alone", 1.5, "no"),)).startswith("None is slower")
    assert told(spreads=(unequal("alone", 1.5, "unsure"),)).startswith("How unequal")
    changed = (company("a", 1.3, "yes"), company("b", 0.5, "yes"), company("c", 9.0, "unsure"))
    assert told(contention=changed) == "Company counts: b: −50.0 %, and 1 more cases change it."
    assert told(contention=(changed[1], company("d", 1.8, "yes"))).startswith("Company counts: d: +80.0 %")
    assert told(contention=changed[:1]) == "Company counts: a: +30.0 %."
    assert told(contention=(company("a", 1.0, "no"),)).startswith("No company")
    assert "in 1 of 2 cases" in told(contention=(company("a", 1.0, "no"), company("b", 1.0, "unsure")))
    assert (
        told(distance=(company("x", 2.0, "no"), company("y", 1.5, "yes"))) == "Far instead of near neighbours: +50.0 %."
    )
    pairs = tuple(
        (Made(case=Made(name=name)), Made(status=status))
        for name, status in (("alone", "failed"), ("two", "failed"), ("fine", "ok"))
    )
    more = power.options(power.ALONE, power.TWO, skipped=(SkippedCase(case="far", reason="no"),))
    said = study_headline(more, study(one, pairs=pairs, skipped={"far": "no"}))
    assert "1 of 3 cases does not fit here and 1 of 3 went wrong." in said
    both = power.options(power.ALONE, power.TWO, skipped=tuple(SkippedCase(case=c, reason="no") for c in ("a", "b")))
    assert study_headline(both, study(one, skipped={"a": "no", "b": "no"})).endswith("2 of 4 cases do not fit here.")
    assert study_headline(both, study(one, pairs=pairs[:2])).endswith("on M. 1 of 4 went wrong.")


def facts(**changes: Any) -> ShapeFacts:
    told: dict[str, Any] = {
        "checks": {}, "received_bytes": None, "expected_bytes": None, "flop_inflation": None,
        "memory": (), "energy_per_token": NOT_KNOWN, "traces": (),
    }  # fmt: skip
    return ShapeFacts(**{**told, **changes})


def scaled(
    shape: ScalingShape, found: ShapeFacts | None = None, status: str = "ok", **numbers: Estimate | Missing
) -> AnalysedShape:
    return AnalysedShape(shape, {**dict.fromkeys(QUANTITIES, NOT_KNOWN), **numbers}, found, status)


def claims(*each: AnalysedShape, scores: Any = (), **changes: Any) -> list[Any]:
    laid = Made(trials=lambda *shapes: tuple(sorted({shape.name for shape in shapes})))
    many = tuple(one for one in each if one.shape.world > 1)
    return list(build_findings(scaling.options(**changes), Made(timings=laid, scaled=many, all=each, scores=scores)))  # type: ignore[arg-type]


def number(low: float, high: float) -> Estimate:
    return between(low, high)


def test_ranks_are_judged_by_where_their_intervals_lie() -> None:
    def verdicts(speedup: Estimate, efficiency: Estimate, exposed: Estimate, **changes: Any) -> list[str]:
        one = scaled(ScalingShape(64, 4, 2), speedup=speedup, efficiency=efficiency, exposed_share=exposed)
        return [found.verdict for found in claims(one, **changes)[:3]]

    assert verdicts(number(1.0, 2.0), number(0.7, 0.8), number(0.05, 0.1)) == ["unsure", "yes", "unsure"]
    assert verdicts(number(1.1, 2.0), number(0.5, 0.69), number(0.12, 0.14)) == ["yes", "no", "no"]
    assert verdicts(number(0.5, 1.0), number(0.6, 0.7), number(0.1, 0.2)) == ["unsure", "unsure", "unsure"]
    assert verdicts(number(0.5, 0.9), number(0.6, 0.7), number(0.01, 0.09)) == ["no", "unsure", "yes"]
    several = claims(scaled(ScalingShape(64, 4, 2)), scaled(ScalingShape(0, 2, 1)))
    assert [(f.records, f.facts["sequence"]) for f in several[:6:3]] == [
        (("n64-p1-r1", "n64-p2-r2", "n64-p4-r2"), 64), (("p1-r1", "p2-r1"), None),
    ]  # fmt: skip
    gated = claims(scaled(ScalingShape(64, 2, 1), efficiency=number(0.55, 0.6)), min_efficiency=0.5)
    assert gated[0].records == ("n64-p2-r1",)
    assert [found.verdict for found in gated if found.kind in {"gate", "efficiency"}] == ["yes", "yes"]


def test_what_shapes_found_out_is_told_of_each() -> None:
    shape = ScalingShape(64, 2, 2)
    assert [claims(scaled(shape, None, status))[3].verdict for status in ("failed", "ok")] == ["no", "unsure"]
    checks = {name: Check(error=1.0, tolerance=1.0, measure="m") for name in ("forward", "output", "total")}
    one = scaled(ScalingShape(64, 1, 1), facts(checks=checks), time=number(1.0, 2.0), speedup=number(1.0, 2.0))
    said = [found.claim.partition(": ")[2] for found in claims(one)]
    assert said[:3] == ["forward is correct", "the result is correct", "forward and gradients are correct"]
    assert len([words for words in said if words.endswith("has an interval")]) == 1
    assert claims(one)[0].estimate.n == 1
    two = [found for found in claims(scaled(shape, facts())) if found.claim.endswith("has an interval")]
    assert len(two) == len(QUANTITIES) - 3
    told = [claims(scaled(shape, facts(received_bytes=got, expected_bytes=8.0)))[3] for got in (8.0, 9.0, None)]
    assert [found.verdict for found in told[:2]] == ["yes", "no"]
    assert told[2].kind != "received_bytes"
    memory = facts(memory=(RankMemory(0, "cpu:0", None, None, 3.0, None),))
    assert next(f for f in claims(scaled(shape, memory)) if f.kind == "memory").verdict == "unsure"
    scores = [Made(shape=shape, predicted=Made(time_s=None), outcome=o, error=0.1) for o in ("within", "faster")]
    assert [f.reason for f in claims(scores=scores) if f.kind == "prediction"] == [None, "measured: faster"]


def test_one_rank_comes_before_several_at_each_sequence() -> None:
    alone = tuple(scaled(ScalingShape(length, 1, 1)) for length in (64, 128))
    several = tuple(scaled(ScalingShape(length, 2, 2)) for length in (64, 128))
    nothing: Any = None
    found = ScalingAnalysis(nothing, alone, several, ())
    assert found.all == (alone[0], several[0], alone[1], several[1])


def test_the_numbers_of_shapes_follow_from_the_times_of_their_slowest_ranks() -> None:
    wanted = scaling.options(sequences=(64,), repeat=1, matmul=scaling.GEMM)
    records = scaling.World().run(wanted)
    found = of_scaling(scaling.FOUR_CORES, wanted, records)
    assert [each.shape for each in found.all] == [
        ScalingShape(64, 1, 1),
        ScalingShape(64, 2, 1),
        ScalingShape(64, 2, 2),
    ]
    one, apart, ring = found.all
    # A token of a batch of two takes 100 µs, two fifths of it forward.
    assert [scaling.estimate_of(one, name).value for name in ("time", "forward", "backward")] == pytest.approx(
        [12800.0, 5120.0, 7680.0]
    )
    rate = minimum_flop(wanted, one.shape) / 0.0128
    assert scaling.estimate_of(one, "tflops").value == pytest.approx(rate / 1e12)
    matmul = measure_matmul_flop_per_s(wanted, records)
    assert isinstance(matmul, Estimate)
    assert scaling.estimate_of(ring, "mfu_matmul").value == pytest.approx(
        50 * scaling.estimate_of(ring, "tflops").value * 1e12 / matmul.value
    )
    assert scaling.estimate_of(ring, "communication").value == pytest.approx(1000.0)
    assert scaling.missing_of(apart, "compute").code == "nothing_sent"


def test_a_gpu_in_a_case_is_told_by_the_rows_of_its_repeats() -> None:
    rows = (
        row("c", "0", 1, 100.0, cv=0.3, restart_medians_us=(1.0, 2.0), held_back={"heat": 0.5, "idle": 0.5}),
        row("c", "0", 2, 100.0, cv=0.4, quartiles_us=(3.0, 4.0, 6.0), held_back={"heat": 0.25, "power": 0.0}),
        row("c", "0", 3, 100.0, quartiles_us=(9.0, 9.0, 9.0), power_w=50.0, restart_medians_us=(3.0,)),
    )
    one = GpuCase("c", rows, between(0.9, 1.1), None)
    assert (one.n, one.processes, one.quartiles_us) == (27, 3, (3.0, 4.0, 6.0))
    assert one.cv == pytest.approx(math.sqrt((0.09 + 0.16) / 2))
    assert one.held_back() == {"heat": 0.25}
    assert (one.mean("power_w"), one.mean("sm_mhz")) == (50.0, None)
    assert GpuCase("c", rows[2:], between(0.9, 1.1), None).cv is None
    three = tuple(row("c", "0", n, 100.0, cv=cv) for n, cv in ((1, 0.1), (2, 0.2), (3, 1.0)))
    assert GpuCase("c", three, between(0.9, 1.1), None).cv == pytest.approx(math.sqrt(0.35))
    assert [gpu_name(device) for device in ("cuda:0", "cpu:0-3", "cuda:1/2")] == ["GPU 0", "cpu:0-3", "GPU 1/2"]


def test_a_repeat_has_the_geometric_mean_of_what_is_positive_in_it() -> None:
    rows = [row("c", "0", *told) for told in ((1, 1.0), (1, 8.0), (1, 27.0), (2, 5.0), (3, 0.5))]
    watts = [row("c", "0", n, 1.0, power_w=w) for n, w in ((1, 0.0), (1, 7.0), (2, None), (3, 0.25), (4, 0.0))]
    assert values_by_repeat(rows, lambda one: one.median_us) == pytest.approx({1: 6.0, 2: 5.0, 3: 0.5})
    assert values_by_repeat(watts, lambda one: one.power_w) == pytest.approx({1: 7.0, 3: 0.25})
    assert typical_us(row("c", "0", 1, 7.0, restart_medians_us=(1.0, 8.0, 27.0))) == pytest.approx(6.0)
    assert typical_us(row("c", "0", 1, 7.0)) == 7.0


def test_a_time_has_its_interval_over_repeats_else_over_processes_else_within_the_one() -> None:
    told: dict[str, Any] = {"low_us": 90.0, "high_us": 120.0}
    repeats = time_estimate([row("c", "0", n, us, **told) for n, us in ((1, 100.0), (2, 400.0))])
    # The logarithms lie ln 2 from their mean; Student's t of one degree is 12.706.
    off = math.exp(12.7062 * math.log(2))
    assert ends(repeats) == pytest.approx((200.0, 200.0 / off, 200.0 * off), rel=1e-4)
    assert (repeats.n, repeats.scope, repeats.unit) == (18, "run", "µs")
    assert repeats.method == "geometric mean of the medians of 2 repeats, Student's t on their logarithms"
    processes = time_estimate([row("c", "0", 1, 300.0, restart_medians_us=(100.0, 400.0), **told)])
    assert ends(processes) == pytest.approx((200.0, 200.0 / off, 200.0 * off), rel=1e-4)
    assert (processes.n, processes.scope) == (9, "run")
    assert processes.method == "geometric mean of the medians of 2 processes, Student's t on their logarithms"
    alone = time_estimate([row("c", "0", 1, 100.0, restart_medians_us=(99.0,), **told)])
    assert (ends(alone), alone.scope, alone.n) == ((100.0, 90.0, 120.0), "process", 9)
    twice = time_estimate([row("c", "0", 1, 100.0, **told), row("c", "0", 1, 400.0)])
    assert (ends(twice), twice.n) == ((100.0, 90.0, 120.0), 18)


def ends(estimate: Estimate) -> tuple[float | None, ...]:
    return estimate.value, estimate.low, estimate.high


def test_energy_leaves_open_what_the_sensor_and_the_times_do() -> None:
    def joules(*told: tuple[int, float, float | None, float | None], **changes: Any) -> Estimate | None:
        return energy_estimate([
            row("c", "0", n, 100.0, energy_per_call_j=value, energy_low_j=low, energy_high_j=high, **changes)
            for n, value, low, high in told
        ])  # fmt: skip

    assert energy_estimate([row("c", "0", 1, 100.0)]) is None
    times: dict[str, Any] = {"low_us": 97.0, "high_us": 103.0}
    # Of one repeat: 3 % of its time, and of three windows of the sensor 5, 5 and 20 %.
    one = joules((1, 2.0, 1.9, 2.1), (1, 2.0, 1.9, 2.1), (1, 2.0, 1.6, 2.4), **times)
    assert one is not None
    half = math.hypot(0.03, 0.1)
    assert ends(one) == pytest.approx((2.0, 2.0 * (1 - half), 2.0 * (1 + half)), rel=0.005)
    assert (one.n, one.scope, one.unit) == (3, "process", "J")
    assert one.method.startswith("the card's energy over the calls made meanwhile; ")
    # A window whose bounds are not known leaves the sensor out.
    for bounds in ((None, None), (1.8, None), (None, 2.2)):
        bare = joules((1, 2.0, 1.9, 2.1), (1, 2.0, *bounds), **times)
        assert bare is not None
        assert ends(bare) == pytest.approx((2.0, 1.94, 2.06), rel=0.005)
    two = joules((1, 1.0, None, None), (2, 4.0, None, None), **times)
    assert two is not None
    off = math.exp(12.7062 * math.log(2))
    assert ends(two) == pytest.approx((2.0, 2.0 / off, 2.0 * off), rel=1e-4)
    assert [joules(*((n, 1.0, None, None) for n in range(1, count + 1))).scope for count in (2, 3)] == [  # type: ignore[union-attr]
        "process", "run",
    ]  # fmt: skip


def test_gpus_are_in_the_order_of_cases_and_slots() -> None:
    rows = [row(case, gpu, n, 1.0, slot=int(gpu)) for n in (1, 2) for case in ("b", "a") for gpu in ("1", "0")]
    assert [(one.case, one.one.uuid, len(one.rows)) for one in gpu_cases_of(rows)] == [
        ("b", "0", 2), ("a", "0", 2), ("b", "1", 2), ("a", "1", 2),
    ]  # fmt: skip


def test_what_a_gpu_draws_when_idle_is_that_of_its_repeat_or_the_mean_of_the_others() -> None:
    asked = power.options(power.ALONE, power.QUIET)
    watts = {1: 40.0, 3: 60.0, 4: 110.0}

    def fails(where: Any) -> str | None:
        return "no" if where.case.name == "idle" and where.repeat == 2 else None

    def drawn(where: Any, device: str) -> float:
        own = 1000.0 if device == "cuda:1" else 0.0
        return own + watts[where.repeat] if where.case.name == "idle" and where.repeat in watts else 300.0

    kept = power.world(asked, lambda where, device: 1000.0, power_w=drawn, fails=fails)
    rows = [one for one in analyse_records(power.FOUR, asked, kept).rows if one.case == "alone"]
    idle = {one.repeat: one.idle_w for one in rows if one.device == "cuda:0"}
    assert idle == pytest.approx({1: 40.0, 2: 70.0, 3: 60.0, 4: 110.0})
    first = rows[0]
    assert first.power_w == pytest.approx(300.0)
    assert first.energy_per_call_j == pytest.approx(0.3, rel=0.01)
    assert first.energy_low_j == pytest.approx(0.98 * (first.energy_per_call_j or 0.0))
    assert first.gflop_per_j == pytest.approx(power.FLOP / 1e9 / (first.energy_per_call_j or 1.0))
    assert (first.n, len(first.restart_medians_us), first.params["n"]) == (50, 1, power.N)
    assert [one.energy_per_call_j for one in rows] == pytest.approx([0.3] * len(rows), rel=0.01)
    assert (first.isolation, isinstance(first.params["n"], int)) == ("full", True)
    assert first.median_us == pytest.approx(1000.0, rel=0.01)
    # Without energy, or a time to divide it by, it is the mean of the readings.
    known = cases_by_trial(power.FOUR, asked, asked.repeats)
    for changes, observed_s in (({"energy": None}, 1.0), ({}, 0.0)):

        def changed(record: Any, changes: Any = changes, observed_s: float = observed_s) -> Any:
            if record.during is None or known[record.trial].case.name != "idle":
                return record
            gpus = tuple(one.model_copy(update={"power_w": 111.0, **changes}) for one in record.during.gpus)
            during = record.during.model_copy(update={"gpus": gpus, "observed_s": observed_s})
            return record.model_copy(update={"during": during})

        found = analyse_records(power.FOUR, asked, Remembered([changed(record) for record in kept], kept._kept))
        assert {one.idle_w for one in found.rows} == {111.0}


def test_a_row_is_of_its_own_device_and_counts_every_call_of_a_sample() -> None:
    asked = power.options(power.ALONE)
    kept = power.world(asked, lambda where, device: 1000.0)

    def changed(record: Any) -> Any:
        """Four calls in a sample; half a second was watched; a process beside it, a size that is no whole number."""
        (own,) = record.evidence
        beside = own.model_copy(update={"role": "noise", "isolation_asked": "none", "subjects": ()})
        facts = own.subjects[0].model_copy(update={"measured": {"n": 2.5, "other": 3.0}})
        series = tuple(one.model_copy(update={"calls_per_sample": 4}) for one in record.series)
        during = record.during.model_copy(update={"observed_s": 0.5})
        evidence = (beside, own.model_copy(update={"subjects": (facts,)}))
        return record.model_copy(update={"series": series, "evidence": evidence, "during": during})

    found = analyse_records(power.FOUR, asked, Remembered([changed(record) for record in kept], kept._kept)).rows
    assert {(one.n, one.isolation, one.params["n"], "other" in one.params) for one in found} == {
        (200, "full", 2.5, False)
    }
    # 50 ms at 300 W are 15 J, in half a second 30 W; a call is a 200th of 50 ms, a tenth of what was watched.
    assert [one.power_w for one in found] == pytest.approx([30.0] * len(found), rel=0.01)
    assert [one.energy_per_call_j for one in found] == pytest.approx([15.0 * 0.1 / 200] * len(found), rel=0.02)


def test_calls_scatter_by_their_standard_deviation_over_their_mean() -> None:
    asked = power.options(power.case("alone", 1, repeats=1, duration_s=2.0))
    kept = power.world(asked, lambda where, device: 1000.0)

    def seen(*samples: float) -> GpuRow:
        told = {name: np.array(samples) if name.endswith("span_us") else old for name, old in kept._kept.items()}
        return analyse_records(power.FOUR, asked, Remembered(list(kept), told)).rows[0]

    three = seen(1.0, 2.0, 6.0)
    assert (three.median_us, three.mean_us, three.restart_medians_us) == (2.0, 3.0, (2.0,))
    assert three.cv == pytest.approx(math.sqrt(7) / 3)
    assert seen(1.0, 3.0).cv == pytest.approx(math.sqrt(2) / 2)
    assert seen(0.25, 0.75).cv == pytest.approx(math.sqrt(2) / 2)
    assert seen(4.0).cv is None
    assert seen(-2.0, 1.0, 1.0).cv is None


def test_the_least_contended_case_has_the_least_noise_and_then_the_fewest_gpus() -> None:
    everyone = power.case("all", None)
    cases = (power.QUIET, power.BESIDE, everyone, power.TWO, power.case("five", 5), power.ALONE)
    asked = power.options(*cases)

    def least(*names: str) -> str | None:
        found = least_contended_case(asked, study(*(gpu(name, 1.0, None, None) for name in names)))
        return None if found is None else found.name

    assert least(*(case.name for case in cases)) == "alone"
    assert least("beside", "all", "two") == "two"
    assert least("beside", "five") == "five"
    assert least("all", "five") == "all"
    assert least("beside") == "beside"
    assert least("idle") is None
    assert least() is None
