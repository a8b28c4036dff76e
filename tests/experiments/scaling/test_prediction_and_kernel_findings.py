"""Findings at the edges of what decides them: predictions of rings, groups of older results, company and shapes."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from assay.core.results import Estimate, Missing, Record, Window
from assay.core.values import Subject
from assay.experiments import scaling_prediction as predictions
from assay.experiments.compare.variance import (
    ComparedKernel,
    KernelSpreads,
    KernelTimes,
    ratio_verdict,
    spread_ratio,
    stratified_ratio,
    time_text,
)
from assay.experiments.compare.variance import analyse_kernels as of_groups
from assay.experiments.compare.variance import headline as headline_of_groups
from assay.experiments.compare.variance import repeat_spread as scatter
from assay.experiments.power.characterize.study import (
    compare_cases,
    contention_effects,
    far_over_near_effects,
    model_spread,
    model_spreads,
)
from assay.experiments.power.rows import GpuRow
from assay.experiments.scaling.analysis import COMMUNICATION_NUMBERS
from assay.experiments.scaling.analysis import analyse_scaling as of_shapes
from assay.experiments.scaling.prediction import PredictedTime, RankTraffic, parse_link
from assay.experiments.scaling.timings import judge_at_least
from assay.experiments.scaling_prediction import (
    CellForecast,
    ImpossibleCell,
    PredictionCell,
    PredictionOptions,
    cell_subject,
    name_cell,
    write_headline,
)
from assay.stats.ratios import Proportion
from tests.experiments.power import characterized as power
from tests.experiments.scaling import worlds as scaling

if TYPE_CHECKING:
    from assay.core.results import Finding, Origin

ATTENTION = Subject(workload="dilated_attention", impl="torch", params={})


def about(value: float, low: float | None = None, high: float | None = None, unit: str = "×") -> Estimate:
    return Estimate(value=value, low=low, high=high, unit=unit, scope="run", method="made", n=3)


def half(value: float, low: float | None, high: float | None) -> Estimate:
    """Return an estimate of which one end may be missing."""
    return about(value).model_copy(update={"low": low, "high": high})


def asked(**changes: Any) -> PredictionOptions:
    told = {
        "subject": ATTENTION, "sequences": (4096,), "counts": (8,), "link": parse_link("nvlink4"), "device": "cuda:0",
        "required_efficiency": 0.5, **changes,
    }  # fmt: skip
    return PredictionOptions.model_validate(told)


def forecast(tokens: int, gpus: int, **changes: Any) -> CellForecast:
    seconds = about(0.25, 0.125, 0.5, "s")
    told: dict[str, Any] = {
        "shard": tokens // gpus, "traffic": RankTraffic(3, 1024), "time": PredictedTime(seconds, 0.125, 0.0625, ()),
        "speedup": about(4.0, 3.0, 5.0), "efficiency": about(0.625, 0.5, 0.75), "missing": None, "records": ("a", "b"),
        "memory_mib": about(512.0, 256.0, 1024.0, "MiB"), "peak_mib": 100.0,
    }  # fmt: skip
    return CellForecast(cell=PredictionCell(tokens, gpus), **{**told, **changes})


def missing(detail: str) -> Missing:
    return Missing(code="not_measured", detail=detail)


@pytest.mark.parametrize(("low", "high"), [(None, 0.75), (0.75, None)])
def test_a_share_of_which_one_end_is_missing_is_unsure(low: float | None, high: float | None) -> None:
    assert judge_at_least(half(0.75, low, high), 0.5) == "unsure"


def test_a_prediction_is_told_of_the_most_tokens_over_the_most_gpus() -> None:
    several = [
        forecast(4096, 16),
        forecast(8192, 4),
        forecast(8192, 8),
        forecast(8192, 2),
        forecast(9216, 9, time=None),
    ]
    own = "Predicted, not measured: 8,192 tokens on 8 GPUs over nvlink4 take 250.0 ms (125.0–500.0)"
    speed, used = ", speedup 4.00× (3.00–5.00)", ", efficiency 62 % (50–75)."
    assert write_headline(asked(), several) == f"{own}{speed}{used}"
    one = [forecast(8192, 8, speedup=None)]
    assert write_headline(asked(), one) == f"{own}{used}"
    bare = [forecast(8192, 8, efficiency=about(0.625), speedup=None)]
    assert write_headline(asked(), bare) == f"{own}, efficiency 62 % (no intervals)."
    untold = [forecast(8192, 8, efficiency=None, missing=missing("one GPU alone is not measured yet"))]
    told = "; the efficiency is unknown: one GPU alone is not measured yet."
    assert write_headline(asked(), untold) == f"{own}{told}"
    nothing = "Nothing can be predicted: no shard of a ring could be measured."
    assert write_headline(asked(), several[-1:]) == write_headline(asked(), []) == nothing


def test_cells_are_named_by_what_they_count() -> None:
    assert name_cell(asked(), PredictionCell(65536, 2)) == "65,536 tokens on 2 GPUs"
    assert name_cell(asked(), PredictionCell(65536, 1)) == "65,536 tokens on 1 GPU"
    assert name_cell(asked(mode="weak", device="cpu:0"), PredictionCell(64, 1)) == "64 tokens per rank on 1 rank"
    assert name_cell(asked(mode="weak", device="cpu:0"), PredictionCell(64, 3)) == "64 tokens per rank on 3 ranks"


def test_what_is_asked_for_of_a_ring_has_bounds_and_usual_values() -> None:
    wanted = asked()
    assert (wanted.warmup_runs, wanted.benchmark_runs, wanted.retakes, wanted.timeout_s, wanted.seed) == (
        3, 10, 0, 600.0, 0,
    )  # fmt: skip
    told = wanted.model_dump(exclude={"required_efficiency"})
    assert PredictionOptions.model_validate(told).required_efficiency == 0.7
    least = {"warmup_runs": 0, "benchmark_runs": 1, "retakes": 0, "timeout_s": 0.5, "cpu_groups": 1}
    assert asked(**least).model_dump(include=set(least)) == least
    refused = {"warmup_runs": -1, "benchmark_runs": 0, "retakes": -1, "timeout_s": 0, "cpu_groups": 0}
    for name, value in {**refused, "sequences": (), "counts": ()}.items():
        with pytest.raises(ValidationError, match=name):
            asked(**{name: value})
    for share in (0.0, 1.0):
        with pytest.raises(ValidationError, match="required_efficiency"):
            asked(required_efficiency=share)


def test_one_gpu_computes_the_whole_and_each_of_several_its_share() -> None:
    def params(gpus: int, **changes: Any) -> list[Any]:
        found = cell_subject(asked(**changes), PredictionCell(512, gpus)).params
        return [found[name] for name in ("sequence", "ring", "passes", "only")]

    assert params(1) == params(1, mode="weak") == [512, 1, "total", "all"]
    assert params(2, passes="forward") == [512, 2, "forward", "compute"]
    assert params(4) == [512, 4, "total", "compute"]
    assert params(2, mode="weak") == [1024, 2, "total", "compute"]
    assert params(4, mode="weak") == [2048, 4, "total", "compute"]


def record(trial: str, origin: Origin = "real") -> Record:
    window = Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at="2026-11-15T10:00:00Z")
    return Record(trial=trial, block="b", attempt=1, window=window, status="ok", origin=origin)


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(
        *found: CellForecast, refused: tuple[ImpossibleCell, ...] = (), records: tuple[Record, ...] = ()
    ) -> list[Finding]:
        monkeypatch.setattr(predictions, "list_impossible_cells", lambda _: refused)
        return list(predictions.build_findings(asked(), found, records).findings)

    return of


def test_predictions_are_as_real_as_what_was_measured(predicted: Any) -> None:
    real, fake = record("a"), record("b", "fake")
    assert predicted(forecast(64, 2))[0].origin == predicted(forecast(64, 2), records=(real,))[0].origin == "real"
    assert predicted(forecast(64, 2), records=(real, fake))[0].origin == "fake"
    assert predicted(forecast(64, 2), records=(fake, real))[0].origin == "fake"


def test_a_prediction_carries_all_that_it_was_made_of(predicted: Any) -> None:
    (found,) = predicted(forecast(64, 2))
    assert found.claim == "Predicted: 64 tokens on 2 GPUs over nvlink4 have an efficiency of at least 50 %"
    assert (found.verdict, found.reason, found.records) == ("yes", None, ("a", "b"))
    facts = {
        "sequence": 64, "world": 2, "mode": "strong", "passes": "total", "link": "nvlink4", "shard": 32,
        "time_s": 0.25, "time_low_s": 0.125, "time_high_s": 0.5, "compute_s": 0.125, "communication_s": 0.0625,
        "messages": 3, "received_bytes": 1024, "speedup": 4.0, "memory_mib": 512.0, "memory_low_mib": 256.0,
        "memory_high_mib": 1024.0, "peak_allocated_mib": 100.0,
    }  # fmt: skip
    assert found.facts == facts
    (bare,) = predicted(forecast(64, 2, time=None, speedup=None, efficiency=None, peak_mib=None))
    absent = ("time_s", "time_low_s", "time_high_s", "compute_s", "communication_s", "speedup", "peak_allocated_mib")
    assert bare.facts == {**facts, **dict.fromkeys(absent)}
    assert bare.kind == "missing"
    assert (bare.verdict, bare.reason, bare.estimate) == ("unsure", None, None)


def test_a_prediction_without_an_interval_says_why(predicted: Any) -> None:
    few = "too few calls were measured for an interval"
    exact = predictions._cell_claim(asked(required_efficiency=0.62545), PredictionCell(64, 2))
    assert exact.endswith("at least 62.5 %")
    assert predicted(forecast(64, 2, efficiency=about(0.5)))[0].reason == few
    assert predicted(forecast(64, 2, efficiency=about(0.5), missing=missing("it failed")))[0].reason == "it failed"
    assert predicted(forecast(64, 2, missing=missing("it failed")))[0].reason == "it failed"
    refused = ImpossibleCell(PredictionCell(64, 3), "64 is not divisible among 3 ranks.")
    found, left = predicted(forecast(64, 2), refused=(refused,))
    assert found.kind == "prediction"
    assert left.claim == "Predicted: 64 tokens on 3 GPUs over nvlink4 have an efficiency of at least 50 %"
    assert (left.verdict, left.reason) == ("no", "Not possible: 64 is not divisible among 3 ranks.")
    assert (left.kind, left.records, left.facts) == ("skipped", (), {"sequence": 64, "world": 3})


@pytest.mark.parametrize(("low", "high"), [(None, 1.25), (2.0, None)])
def test_a_ratio_of_which_one_end_is_missing_is_unsure(low: float | None, high: float | None) -> None:
    assert ratio_verdict(half(1.75, low, high), 0.5) == "unsure"
    said = "takes 1.75× as long as the baseline, of which too few results say how sure that is"
    assert time_text(half(1.75, low, high), 0.5) == said


def test_times_are_compared_in_a_sentence() -> None:
    same = "shows no sure difference in time beyond 25 %, 1.25× (1.00–1.50)"
    assert time_text(about(1.25, 1.0, 1.5), 0.25) == same
    assert time_text(about(1.5, 1.375, 1.625), 0.25) == "takes longer than the baseline, 1.50× (1.38–1.62)"
    assert time_text(about(0.5, 0.25, 0.75), 0.25) == "takes less time than the baseline, 0.50× (0.25–0.75)"
    wide = "takes 1.25× (inconclusive) as long as the baseline: there are too few results to say"
    assert time_text(about(1.25, 0.01, 50.0), 0.25) == wide
    # 1 / 1.25 is 0.8 to the last digit.
    assert time_text(about(0.5, 0.25, 0.8), 0.25).startswith("shows no sure")
    assert time_text(about(1.5, 1.25, 1.75), 0.25).startswith("shows no sure")


def group(name: str, picks: Proportion, chance: Proportion, *ratios: Estimate | None) -> ComparedKernel:
    times, repeats, samples = ratios
    nothing: Any = None
    picked: Any = Made(mismatch=picks, baseline_mismatch=chance, shares=(picks, chance), devices=())
    return ComparedKernel(
        name,
        KernelTimes(1.0, 2.0, (3, 3), times),
        KernelSpreads(None, None, repeats, nothing, samples),
        picked,
        nothing,
    )


def test_all_that_changed_between_groups_is_claimed() -> None:
    longer, same, open_one = about(2.0, 1.75, 2.25), about(1.0, 0.75, 1.5), about(2.0, 1.5, 2.5)
    one = group("gemm", Proportion(2, 4), Proportion(1, 3), longer, same, open_one)
    found = of_groups((one, group("softmax", Proportion(0, 0), Proportion(0, 0), None, None, None)), 0.5)
    assert [(each.claim, each.verdict) for each in found.findings] == [
        ("gemm: the best time is longer than the baseline's", "yes"),
        ("gemm: repeats scatter more than the baseline's", "no"),
        ("gemm: samples scatter more than the baseline's", "unsure"),
        ("gemm: another configuration is picked than in the baseline", "unsure"),
    ]
    assert [each.facts["what"] for each in found.findings] == ["time", "repeats", "samples", "picks"]
    assert [each.estimate for each in found.findings[:3]] == [longer, same, open_one]
    picks = found.findings[3]
    assert picks.estimate is not None
    assert picks.estimate.value == 50.0
    assert picks.reason == "2 of 4 differ from the baseline; among themselves 1 of 3 of the baseline do"
    assert picks.facts == {
        "kernel": "gemm", "what": "picks", "differ": 2, "of": 4, "baseline_differs": 1, "baseline_of": 3,
        "settings": None,
    }  # fmt: skip
    longer_text = "gemm takes longer than the baseline, 2.00× (1.75–2.25), and 2 of 4 picks differ"
    assert found.headline == f"{longer_text}; softmax has no times to compare."


def test_kernels_beyond_the_third_are_counted() -> None:
    several = [group(f"k{number}", Proportion(0, 0), Proportion(0, 0), None, None, None) for number in range(5)]
    told = [f"k{number} has no times to compare" for number in range(3)]
    assert headline_of_groups(tuple(several[:3]), 0.1) == f"{'; '.join(told)}."
    assert headline_of_groups(tuple(several[:4]), 0.1) == f"{'; '.join(told)}; and 1 more kernel."
    assert headline_of_groups(tuple(several), 0.1) == f"{'; '.join(told)}; and 2 more kernels."


def test_a_ratio_says_over_how_many_devices_it_is() -> None:
    both = stratified_ratio(
        {"a": [1.0, 1.5], "b": [2.0, 2.5], "c": [3.0]}, {"a": [2.0, 3.0], "b": [4.0, 5.0], "d": [1.0]}
    )
    assert both is not None
    assert both.value == pytest.approx(2.0)
    assert (both.n, both.scope, both.unit) == (8, "run", "×")
    assert both.method == "log-ratio over 8 results on 2 devices, least squares"
    assert both.low is not None
    assert both.high is not None
    assert both.low * both.high == pytest.approx(4.0)
    assert both.low < 2.0 < both.high
    apart = stratified_ratio({"a": [1.0], "b": [4.0]}, {"c": [4.0, 8.0], "d": [16.0]})
    assert apart is not None
    assert apart.value == pytest.approx(4.0)
    assert (apart.n, apart.method) == (5, "log-ratio over 5 results on devices that differ, least squares")
    single = stratified_ratio({"a": [1.0]}, {"a": [3.0]})
    assert single is not None
    assert (single.low, single.high, single.scope, single.n) == (None, None, "process", 2)
    assert single.method == "log-ratio over 2 results on 1 device, too few to tell"
    assert stratified_ratio({"a": [1.0]}, {"b": []}) is None
    assert stratified_ratio({}, {}) is None


def test_what_was_timed_twice_scatters_by_its_squares() -> None:
    """Logarithms 0 and 0.5: squares of 0.125 with one degree of freedom, and e^0.125 is 1.133148."""
    found = scatter({"a": [[1.0, math.exp(0.5)], [3.0]], "b": [[7.0]]})
    assert found is not None
    assert found.cv == pytest.approx(math.sqrt(0.133148), abs=1e-5)
    assert found.freedom == 1
    assert scatter({}) is None
    twice = scatter({"a": [[1.0, math.exp(0.5)], [1.0, math.exp(0.5)]], "b": [[2.0, 2 * math.exp(0.5)]]})
    assert twice is not None
    assert twice.cv == pytest.approx(found.cv)
    assert twice.freedom == 2
    against = spread_ratio(found, twice)
    assert against is not None
    assert against.method == "ratio of variances of logarithms, F with 2 and 1 degrees of freedom"
    assert against.value == pytest.approx(1.0)
    assert against.n == 5
    # F of 2 and 1 is below 799.5 in 97.5 %, and below 1 / 38.506 in 2.5 %.
    assert (against.low, against.high) == pytest.approx((0.035367, 6.20534), rel=1e-4)


def row(case: str, gpu: str, repeat: int, us: float, model: str = "M", **changes: Any) -> GpuRow:
    told = {
        "run": "r", "started_at": "now", "host": "h", "uuid": gpu, "slot": 0, "device": f"cuda:{gpu}", "model": model,
        "n": 9, "median_us": us, "quartiles_us": (1.0, 2.0, 4.0), "mean_us": us, "case": case, "repeat": repeat,
        "workload": "sgemm@torch",
    }  # fmt: skip
    return GpuRow.model_validate({**told, **changes})


def rows_of(case: str, gpu: str, *us: float, model: str = "M", **changes: Any) -> list[GpuRow]:
    return [row(case, gpu, repeat, each, model, **changes) for repeat, each in enumerate(us, 1)]


def test_company_is_held_against_the_same_case_without_it() -> None:
    noisy = power.case("noisy", 1, power.noise())
    wanted = power.options(power.ALONE, power.TWO, noisy)
    rows = [*rows_of("alone", "0", 100.0, 100.0), *rows_of("noisy", "0", 150.0, 150.0), *rows_of("two", "9", 1.0)]
    (found,) = contention_effects(wanted, rows)
    assert (found.case, found.against, found.verdict, found.gpus, found.hotter_c) == ("noisy", "alone", "yes", 1, None)
    assert (found.time.value, found.time.low) == pytest.approx((1.5, 1.5))
    assert found.time.n == 2
    assert found.time.confidence == pytest.approx(0.95)
    assert (found.energy, found.power, found.clock) == (None, None, None)
    assert contention_effects(power.options(power.ALONE, power.TWO), rows) == []


def test_what_both_cases_have_of_each_quantity_is_told() -> None:
    """The first GPU has energy in both cases, the second in one; heat is known of the second alone."""
    rows = [
        *rows_of("over", "0", 120.0, 120.0, energy_per_call_j=3.0),
        *rows_of("under", "0", 100.0, 100.0, energy_per_call_j=2.0, temperature_c=40.0),
        *rows_of("over", "1", 120.0, 120.0, energy_per_call_j=9.0, temperature_c=55.0),
        *rows_of("under", "1", 100.0, 100.0, temperature_c=50.0),
    ]
    found = compare_cases(power.options(), rows, "over", "under")
    assert found is not None
    assert found.energy is not None
    assert found.energy.value == pytest.approx(1.5)
    assert found.energy.method == "geometric mean of the ratios in 2 repeats, Student's t on their logarithms"
    assert (found.gpus, found.hotter_c, found.power) == (2, 5.0, None)
    once = compare_cases(
        power.options(), [*rows_of("over", "0", 120.0), *rows_of("under", "0", 100.0)], "over", "under"
    )
    assert once is not None
    assert (once.time.low, once.time.high, once.time.n, once.verdict) == (None, None, 1, "unsure")


def test_far_neighbours_are_held_against_near_ones_only() -> None:
    others = power.case("others", 1, power.noise(2, "far"))
    wanted = power.options(power.ALONE, power.NEAR, power.FAR, others)
    rows = [each for case in wanted.cases for each in rows_of(case.name, "0", 100.0, 110.0)]
    found = far_over_near_effects(wanted, rows)
    assert [(each.case, each.against) for each in found] == [(power.FAR.name, power.NEAR.name)]


def test_gpus_of_each_model_are_unequal_by_themselves() -> None:
    """Times of 100 and 200: their mean is 150 and their standard deviation 70.7107."""
    wanted = power.options(power.ALONE, power.TWO)
    rows = [
        *rows_of("alone", "0", 100.0, 100.0), *rows_of("alone", "1", 200.0, 200.0),
        *rows_of("alone", "2", 7.0, 7.0, model="N"), *rows_of("alone", "3", 7.0, 7.0, model="N"),
        *rows_of("two", "0", 100.0),
    ]  # fmt: skip
    unlike, like = model_spreads(wanted, rows)
    assert (unlike.case, unlike.model, unlike.slowest, unlike.fastest) == ("alone", "M", "GPU 1", "GPU 0")
    assert unlike.cv == pytest.approx(0.471405, abs=1e-6)
    assert unlike.ratio.value == pytest.approx(2.0)
    assert (unlike.verdict, unlike.gpus) == ("yes", 2)
    assert (like.model, like.verdict, like.cv) == ("N", "no", 0.0)
    assert model_spread("alone", "M", [row("alone", "0", 1, 1.0), row("alone", "1", 2, 1.0)], 0.01) is None
    four = [each for gpu in range(4) for each in rows_of("c", str(gpu), 100.0 + gpu, 100.0 + gpu)]
    several = model_spread("c", "M", four, 0.01)
    assert several is not None
    assert several.ratio.confidence == pytest.approx(1 - 0.05 / 6)


def attention(**params: Any) -> Subject:
    return scaling.ATTENTION.model_copy(update={"params": {**scaling.ATTENTION.params, **params}})


def test_nothing_is_sent_for_one_of_two_reasons() -> None:
    short = scaling.options(
        subject=attention(segments="16,32", rates="1,2"), sequences=(64,), worlds=(2,), rings=(1, 2), repeat=1
    )
    found = of_shapes(scaling.FOUR_CORES, short, scaling.World().run(short))
    apart, ring = found.scaled
    assert (apart.shape.ring, ring.shape.ring) == (1, 2)
    for shape, why in ((apart, "each rank has whole sequences"), (ring, "every segment lies within a shard")):
        missing = {scaling.missing_of(shape, name) for name in COMMUNICATION_NUMBERS}
        assert missing == {Missing(code="nothing_sent", detail=f"nothing is sent: {why}")}
    assert scaling.missing_of(ring, "mfu_datasheet").code == "no_datasheet"
    assert scaling.missing_of(ring, "mfu_matmul").code == "not_requested"


def test_a_shape_that_did_not_come_off_has_no_numbers_and_the_others_have() -> None:
    wanted = scaling.options(sequences=(64,), rings=(2,), repeat=1)
    found = of_shapes(scaling.FOUR_CORES, wanted, scaling.World(failing={"n64-p2-r2": "out of memory"}).run(wanted))
    (failed,) = found.scaled
    assert (failed.facts, failed.status, found.measured) == (None, "failed", ())
    assert {scaling.missing_of(failed, name) for name in failed.numbers} == {
        Missing(code="failed", detail="out of memory")
    }
    (alone,) = found.alone
    assert alone.status == "ok"
    whole = of_shapes(scaling.FOUR_CORES, wanted, scaling.World().run(wanted))
    (ring,) = whole.measured
    # 6,400 µs alone, a share at 0.9 beside neighbours at 0.8, the slowest 1 / 0.9 of it; a quarter of 1,000 µs shows.
    computing = 6400 / 0.9 / 0.8 / 0.9
    assert scaling.estimate_of(ring, "compute").value == pytest.approx(computing)
    assert scaling.estimate_of(ring, "exposed").value == pytest.approx(250.0)
    assert scaling.estimate_of(ring, "exposed_share").value == pytest.approx(250 / (computing + 250))
    assert scaling.estimate_of(ring, "overlap").value == pytest.approx(0.75)
    assert scaling.estimate_of(ring, "throughput").value == pytest.approx(128e6 / (computing + 250))


def test_other_workloads_have_neither_passes_nor_operations() -> None:
    wanted = scaling.options(subject=scaling.GEMM, sequences=(), rings=(1,), repeat=1)
    found = of_shapes(scaling.FOUR_CORES, wanted, scaling.World().run(wanted))
    (two,) = found.scaled
    codes = {scaling.missing_of(two, name).code for name in ("forward", "backward", *COMMUNICATION_NUMBERS)}
    assert codes == {"unknown_traffic"}
    codes = {scaling.missing_of(two, name).code for name in ("tflops", "mfu_datasheet", "mfu_matmul")}
    assert codes == {"not_counted"}
