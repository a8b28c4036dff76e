"""What is claimed of fleets at the edges of what decides it."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.experiments.power.variability.analysis import (
    CorrelatedPair,
    FleetAnalysis,
    GpuOutlier,
    GpuRecommendation,
    LocationEffect,
    PeerDifference,
    TimeGain,
)
from assay.experiments.power.variability.findings import (
    advice_sentence,
    difference_text,
    fleet_findings,
    fleet_headline,
    fourth_gpu_sentence,
)
from assay.experiments.power.variability.fleet import MEASURES, FleetKind, GpuFleet, LocatedGpu, TimeSpread
from assay.stats.correlation import PartialCorrelation
from assay.stats.variance import VarianceComponent

if TYPE_CHECKING:
    from assay.core.results import Estimate, Finding

ONE = "There is one GPU only, and nothing to choose between."
INF = math.inf


def fleet(gpus: int, runs: int = 1, model: str = "M", hosts: int = 1) -> GpuFleet:
    codes = np.arange(runs) % max(gpus, 1)
    rows: Any = ("a row",) * runs
    return GpuFleet(
        kind=FleetKind("sgemm", (("n", 8),), model, "call_us", "simulated"),
        gpus=tuple(LocatedGpu(f"U{n}", f"h{n % hosts}", f"r{n}", n, f"cuda:{n}") for n in range(gpus)),
        gpu=codes,
        run=np.arange(runs),
        case=codes,
        rows=rows,
    )


def looked(gpus: int = 8, **changes: Any) -> FleetAnalysis:
    places = changes.pop("places", ())
    told: dict[str, Any] = {
        "fleet": fleet(gpus), "minimum_effect": 0.5, "numbers": {}, "outliers": (), "components": (), "typical": None,
        "spread": None, "pairs": (), "advice": GpuRecommendation("one"), "references": {"time": Made(effects=places)},
    }  # fmt: skip
    return FleetAnalysis(**{**told, **changes})


def measure(name: str) -> Any:
    return next(each for each in MEASURES if each.name == name)


def outlier(name: str, gpu: int, value: float = 0.5, said: Any = "yes") -> GpuOutlier:
    return GpuOutlier(
        gpu,
        measure(name),
        PeerDifference(value, value, value),
        PeerDifference(value, value, value),
        "its peers",
        0.01,
        said,
    )


def place(what: Any, name: str, said: Any, by: str = "time") -> LocationEffect:
    return LocationEffect(what, name, measure(by), 3, math.log(1.5), math.log(1.25), math.log(2), 0.001, said)


def claims(one: FleetAnalysis, about: str) -> list[Finding]:
    return [found for found in fleet_findings([one]).findings if found.kind == about]


def ends(estimate: Estimate | None) -> tuple[float | None, ...]:
    assert estimate is not None
    return estimate.value, estimate.low, estimate.high


def test_the_first_kind_of_rows_is_answered_for_and_the_others_are_counted() -> None:
    first, other = looked(4), looked(4, fleet=fleet(4, model="Z"))
    own = f"No single one of 4 GPUs stands out against its peers. {ONE}"
    assert fleet_headline([first]) == own
    assert fleet_headline([first, other]) == f"{own} So says sgemm n=8 on M; 1 other kind of rows below."
    assert fleet_headline([first, other, other]) == f"{own} So says sgemm n=8 on M; 2 other kinds of rows below."
    both = fleet_findings([first, other])
    assert both.headline == fleet_headline([first, other])
    assert [found.claim for found in both.findings] == [
        "sgemm n=8 on M: it matters which GPU is asked for",
        "sgemm n=8 on Z: it matters which GPU is asked for",
    ]
    assert {found.origin for found in both.findings} == {"simulated"}


def test_one_gpu_has_none_to_differ_from() -> None:
    said = "how GPUs differ cannot be told."
    assert fleet_headline([looked(fleet=fleet(1, runs=1))]) == f"One GPU in 1 run: {said} {ONE}"
    assert fleet_headline([looked(fleet=fleet(1, runs=3))]) == f"One GPU in 3 runs: {said} {ONE}"


def test_fewer_than_four_gpus_have_no_peers() -> None:
    few = " (fewer than 4 have no peers to speak of)"
    assert fleet_headline([looked(2)]) == f"No single one of 2 GPUs stands out against its peers{few}. {ONE}"
    assert fleet_headline([looked(3)]) == f"No single one of 3 GPUs stands out against its peers{few}. {ONE}"
    assert fleet_headline([looked(4)]) == f"No single one of 4 GPUs stands out against its peers. {ONE}"


def test_gpus_and_places_that_stand_out_are_counted() -> None:
    def said(*outliers: GpuOutlier, places: tuple[LocationEffect, ...] = ()) -> str:
        return fleet_headline([looked(outliers=outliers, places=places)]).removesuffix(f" {ONE}")

    slow, hot = [outlier("time", gpu) for gpu in (0, 1)], outlier("temperature", 2)
    assert said(slow[0]) == "Of 8 GPUs 1 slow stands out."
    assert said(hot) == "Of 8 GPUs 1 hot stands out."
    assert said(*slow) == "Of 8 GPUs 2 slow stand out."
    assert said(slow[0], hot) == "Of 8 GPUs 1 slow and 1 hot stand out."
    assert said(*slow, hot) == "Of 8 GPUs 2 slow and 1 hot stand out."
    unsure = outlier("time", 3, said="unsure")
    places = (
        place("rack", "r1", "yes"), place("rack", "r1", "yes", "power"), place("host", "h1", "unsure"),
        place("slot", "1", "no"),
    )  # fmt: skip
    nobody = "No single one of 8 GPUs stands out against its peers"
    assert said(unsure, places=places) == f"{nobody}; 1 rack strays as a whole."
    assert said(slow[0], places=places) == "Of 8 GPUs 1 slow stands out; 1 rack strays as a whole."
    more = (*places, place("slot", "2", "yes"), place("slot", "3", "yes"))
    assert said(places=more) == f"{nobody}; 1 rack and 2 slots stray as a whole."
    assert said(places=more[4:]) == f"{nobody}; 2 slots stray as a whole."


@pytest.mark.parametrize(
    ("low", "high", "largest", "middle"),
    [
        (1.5, 2.0, "unsure", "unsure"), (1.625, 2.0, "yes", "no"), (1.25, 1.5, "unsure", "unsure"),
        (1.25, 1.375, "no", "yes"), (1.25, 2.0, "unsure", "unsure"), (None, None, "unsure", "unsure"),
        (None, 1.25, "unsure", "unsure"), (1.625, None, "unsure", "unsure"),
    ],
)  # fmt: skip
def test_gpus_are_apart_by_where_the_interval_lies(
    low: float | None, high: float | None, largest: str, middle: str
) -> None:
    one = looked(3, spread=TimeSpread(1.75, low, high, 2, 1, 1.625, low, high))
    (apart,), (near,) = claims(one, "spread"), claims(one, "middle")
    assert (apart.verdict, near.verdict) == (largest, middle)
    told = (low, high) if low is not None and high is not None else (None, None)
    assert ends(apart.estimate) == (1.75, *told)
    assert ends(near.estimate) == (1.625, *told)


def test_how_far_gpus_are_apart_names_the_slowest_and_the_fastest() -> None:
    (apart,) = claims(looked(3, spread=TimeSpread(1.75, 1.5, 2.0, 2, 1, None, None, None)), "spread")
    assert apart.claim == "sgemm n=8 on M: the slowest GPU takes over 50 % longer than the fastest"
    assert apart.facts == {
        "workload": "sgemm n=8", "model": "M", "slowest": "GPU 2", "fastest": "GPU 1",
    }  # fmt: skip
    assert apart.estimate is not None
    assert (apart.estimate.n, apart.estimate.unit) == (3, "×")
    one = looked(3, spread=TimeSpread(1.75, 1.5, 2.0, 2, 1, 1.5, None, None))
    assert claims(one, "middle")[0].claim == "sgemm n=8 on M: nine tenths of the GPUs are within 50 %"
    assert claims(looked(3, spread=TimeSpread(1.75, 1.5, 2.0, 2, 1, None, None, None)), "middle") == []
    assert claims(looked(3), "spread") == []


@pytest.mark.parametrize("one", [(1.0, INF), (-INF, 2.0), (-INF, INF), (1.0, math.nan)])
def test_an_interval_without_an_end_is_none(one: tuple[float, float]) -> None:
    found = looked(3, spread=TimeSpread(1.75, *one, 2, 1, None, None, None))
    assert ends(claims(found, "spread")[0].estimate) == (1.75, None, None)
    assert claims(looked(3, spread=TimeSpread(INF, 1.0, 2.0, 2, 1, None, None, None)), "spread")[0].estimate is None


def test_levels_differ_where_their_variance_is_surely_above_none() -> None:
    levels = (
        VarianceComponent("racks", 1, 4.0, 1.0, 9.0, 0.5, 0.25, 0.75),
        VarianceComponent("hosts", 3, 0.25, 0.0, 1.0),
        VarianceComponent("runs", 5, 0.25, None, None, within="GPUs"),
        VarianceComponent("calls", 7),
    )
    racks, hosts, runs, calls = claims(looked(components=levels), "component")
    assert [found.verdict for found in (racks, hosts, runs, calls)] == ["yes", "unsure", "unsure", "unsure"]
    assert racks.claim == "sgemm n=8 on M: racks differ beyond what lies below them"
    assert [ends(found.estimate) for found in (racks, hosts, runs)] == [
        (2.0, 1.0, 3.0), (0.5, 0.0, 1.0), (0.5, None, None),
    ]  # fmt: skip
    assert calls.estimate is None
    assert [found.estimate.n for found in (racks, hosts, runs) if found.estimate] == [1, 3, 5]
    assert racks.facts == {
        "workload": "sgemm n=8", "model": "M", "level": "racks", "share": 0.5,
        "share_low": 0.25, "share_high": 0.75, "members": 1, "part_of": None,
    }  # fmt: skip
    assert runs.facts["part_of"] == "GPUs"


def test_gpus_that_stand_out_are_told_of_as_ratios_or_in_degrees() -> None:
    peers, all_of_them = (
        PeerDifference(math.log(2), math.log(1.5), math.log(3)),
        PeerDifference(math.log(4), 0.0, math.log(5)),
    )
    degrees = PeerDifference(-4.0, -5.0, -3.0)
    found = looked(
        3,
        outliers=(
            GpuOutlier(1, measure("time"), peers, all_of_them, "its host", 0.02, "yes"),
            GpuOutlier(2, measure("temperature"), degrees, degrees, "its peers", 0.03, "unsure"),
        ),
    )
    slow, cool = claims(found, "outlier")
    assert slow.claim == "sgemm n=8 on M: GPU 1 is slow against its host"
    assert ends(slow.estimate) == pytest.approx((2.0, 1.5, 3.0))
    assert slow.estimate is not None
    assert (slow.estimate.unit, slow.estimate.n, slow.verdict) == ("×", 3, "yes")
    told = {name: value for name, value in slow.facts.items() if not name.startswith("against_fleet")}
    assert told == {
        "workload": "sgemm n=8", "model": "M", "kind": "slow", "measure": "time", "uuid": "U1",
        "host": "h0", "slot": 1, "rack": "r1", "against": "its host", "false_rate": 0.02,
    }  # fmt: skip
    fleet_wide = [slow.facts[f"against_fleet{end}"] for end in ("", "_low", "_high")]
    assert fleet_wide == pytest.approx([4.0, 1.0, 5.0])
    assert cool.claim == "sgemm n=8 on M: GPU 2 is cool against its peers"
    assert ends(cool.estimate) == (-4.0, -5.0, -3.0)
    assert cool.estimate is not None
    assert cool.estimate.unit == "°C"


def test_all_slots_are_told_of_and_other_places_only_where_they_stray() -> None:
    places = [place(what, f"{what} {said}", said) for what in ("rack", "host", "slot") for said in ("yes", "unsure")]
    found = fleet_findings([looked(places=tuple(places))]).findings
    told = [each for each in found if each.kind in {"rack", "host", "slot"}]
    assert [each.facts["name"] for each in told] == ["rack yes", "host yes", "slot yes", "slot unsure"]
    assert [each.verdict for each in told] == ["yes", "yes", "yes", "unsure"]
    assert told[0].claim == "sgemm n=8 on M: rack rack yes is slow as a whole"
    assert ends(told[0].estimate) == pytest.approx((1.5, 1.25, 2.0))
    assert told[0].estimate is not None
    assert told[0].estimate.n == 3
    assert told[0].facts == {
        "workload": "sgemm n=8", "model": "M", "name": "rack yes", "measure": "time", "members": 3,
        "chance": 0.001,
    }  # fmt: skip


def test_what_goes_together_says_what_was_held_equal() -> None:
    rho = PartialCorrelation(0.5, 0.25, 0.75, 12)
    pairs = (
        CorrelatedPair("heat slows", "temperature", "time", None, "GPUs", 1, rho),
        CorrelatedPair("heat slows at equal power", "temperature", "time", "power", "GPUs", 1, rho),
        CorrelatedPair("never seen", "a", "b", None, "GPUs", 1, None),
    )
    plain, held = claims(looked(pairs=pairs), "correlation")
    assert plain.estimate is not None
    assert held.estimate is not None
    assert plain.estimate.method == "Spearman's rho over GPUs, Fisher's interval"
    assert held.estimate.method == "Spearman's rho over GPUs, power held equal, Fisher's interval"
    assert ends(plain.estimate) == (0.5, 0.25, 0.75)
    assert (plain.claim, plain.verdict, plain.estimate.n) == ("sgemm n=8 on M: heat slows", "yes", 12)
    assert (plain.facts["equal"], held.facts["equal"]) == (None, "power")


@pytest.mark.parametrize(
    ("answer", "said"),
    [("gpu", "yes"), ("slot", "yes"), ("avoid", "yes"), ("any", "no"), ("one", "no"), ("unknown", "unsure")],
)
def test_it_matters_which_gpu_is_asked_for_where_the_answer_names_some(answer: Any, said: str) -> None:
    gain = TimeGain(0.25, 0.125, 0.375)
    advice = GpuRecommendation(answer, gain, best=(2, 1), confidence=0.75, slot=place("slot", "3", "yes"), unit="runs")
    (found,) = claims(looked(advice=advice), "advice")
    assert found.verdict == said
    assert ends(found.estimate) == (0.25, 0.125, 0.375)
    assert found.estimate is not None
    assert found.estimate.n == 8
    told = {name: found.facts[name] for name in ("answer", "best", "uuid", "confidence", "slot")}
    assert told == {"answer": answer, "best": "GPU 2", "uuid": "U2", "confidence": 0.75, "slot": 3}


def test_advice_of_one_gpu_names_none() -> None:
    (found,) = claims(looked(fleet=fleet(1)), "advice")
    assert found.estimate is None
    assert found.facts == {
        "workload": "sgemm n=8", "model": "M", "answer": "one", "best": None, "uuid": None,
        "confidence": None, "slot": None, "sentence": ONE,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.125, 0.25, "yes"), (0.0, 0.625, "unsure"), (-0.125, 0.5, "unsure"), (-0.125, 0.375, "no"),
        (0.0, 0.25, "no"), (-0.25, 0.0, "no"),
    ],
)  # fmt: skip
def test_the_fourth_gpu_saves_time_where_all_of_the_interval_does(low: float, high: float, said: str) -> None:
    (found,) = claims(looked(advice=GpuRecommendation("one", fourth=TimeGain(0.0625, low, high))), "fourth")
    assert found.verdict == said
    assert found.claim == "sgemm n=8 on M: always asking for the 4th GPU saves time"
    assert ends(found.estimate) == (0.0625, low, high)
    assert str(found.facts["sentence"]).startswith("Can I save money by just asking for the 4th GPU always?")


def test_nothing_is_said_of_a_fourth_gpu_that_cannot_be_told_of() -> None:
    assert claims(looked(advice=GpuRecommendation("one", fourth=TimeGain(0.25, None, None))), "fourth") == []
    assert claims(looked(), "fourth") == []


LESS = "takes 25 % (12–38) less time than a random one"
GAIN = TimeGain(0.25, 0.125, 0.375)
ONE_RUN = "; each GPU was seen in one run only, so that the day may have a part in it"


def advised(answer: Any, gpus: int = 8, hosts: int = 1, **changes: Any) -> str:
    told: dict[str, Any] = {"gain": GAIN, "best": (2, 1), "confidence": 0.75, "unit": "runs", **changes}
    spread, runs = told.pop("spread", None), told.pop("runs", gpus)
    of = fleet(gpus, runs=runs, hosts=hosts)
    return advice_sentence(looked(fleet=of, spread=spread, advice=GpuRecommendation(answer, **told)))


def test_which_gpu_to_ask_for_is_said_with_how_sure_that_is() -> None:
    for sure, said in ((0.75, "75 %"), (0.99, "99 %"), (0.995, "over 99 %"), (1.0, "over 99 %"), (None, "some")):
        alone = f"Ask for GPU 2: it is the fastest of 8 GPUs with {said} confidence, and {LESS}."
        assert advised("gpu", best=(2,), confidence=sure) == alone
    several = f"one of these is the fastest of 8 GPUs with 95 % confidence; GPU 2 is the likeliest, and {LESS}."
    assert advised("gpu") == f"Ask for GPU 2 or GPU 1: {several}"
    assert advised("gpu", best=(2, 1, 0, 3, 4)) == f"Ask for GPU 2, GPU 1, GPU 0, GPU 3 or GPU 4: {several}"
    assert advised("gpu", best=(2, 1, 0, 3, 4, 5)) == (
        f"Ask for GPU 2, GPU 1, GPU 0, GPU 3, GPU 4 or 1 more: {several}"
    )
    assert advised("one") == ONE
    assert advised("gpu", gain=None) == ONE


def test_a_slot_to_ask_for_is_called_by_its_number_and_its_ordinal() -> None:
    for name, ordinal in (("0", "1st"), ("1", "2nd"), ("2", "3rd"), ("3", "4th"), ("10", "11th")):
        said = f"Ask for slot {name}, the {ordinal} GPU of a host: over 3 hosts it {LESS}."
        assert advised("slot", slot=place("slot", name, "yes")) == said
    # A slot that is known, where a GPU is what to ask for.
    assert advised("gpu", slot=place("slot", "3", "yes")).startswith("Ask for GPU 2 or GPU 1: ")


def test_advice_from_a_single_run_says_that_the_day_may_have_a_part() -> None:
    slot = place("slot", "3", "yes")
    for answer in ("gpu", "slot", "avoid"):
        assert advised(answer, slot=slot, unit="repeats").endswith(f"{ONE_RUN}.")
        assert advised(answer, gpus=3, slot=slot, unit="repeats").endswith(f"{ONE_RUN}.")
        assert ONE_RUN not in advised(answer, slot=slot)
        assert ONE_RUN not in advised(answer, slot=slot, unit=None)
    assert advised("gpu", gpus=2, best=(1,), unit="repeats").endswith(f"{ONE_RUN}.")
    assert ONE_RUN not in advised("gpu", gpus=1, best=(0,), unit="repeats")
    for answer in ("any", "unknown", "one"):
        assert ONE_RUN not in advised(answer, unit="repeats")


def test_what_cannot_be_told_has_its_reason() -> None:
    cannot = "Which of 8 GPUs to ask for cannot be told"
    assert advised("unknown") == f"{cannot} from these runs: the likeliest {LESS}."
    took = "GPU 2 took 25 % (12–38) less time than the mean, which may be chance"
    assert advised("unknown", unit=None) == f"{cannot}, as nothing was measured twice: {took}."
    assert advised("unknown", unit=None, runs=7) == f"{cannot}, as nothing was measured twice: {took}."
    assert advised("unknown", unit=None, runs=9) == (
        f"{cannot}, as too little was measured to tell GPUs from chance (9 runs of 8 cases): {took}."
    )
    assert advised("unknown", gpus=1, best=(0,), unit=None, runs=2).startswith(
        "Which of 1 GPU to ask for cannot be told, as too little was measured to tell GPUs from chance "
        "(2 runs of 1 case): GPU 0 took"
    )


def test_how_near_most_gpus_are_to_each_other_is_said_where_it_hardly_matters() -> None:
    def spread(ratio: float, high: float | None, middle: float | None) -> TimeSpread:
        return TimeSpread(ratio, None, high, 2, 1, middle, None, None)

    ranges = (
        (None, "8 GPUs"),
        (spread(1.5, None, None), "8 GPUs are within 50 % of each other"),
        (spread(1.5, 1.75, None), "8 GPUs are within 75 % of each other"),
        (spread(1.5, 1.75, 1.25), "nine tenths of 8 GPUs are within 25 % of each other"),
    )
    for given, said in ranges:
        assert advised("any", spread=given) == (
            f"It does not matter which GPU you ask for: {said}; the likeliest to be fastest {LESS}."
        )
        assert advised("avoid", spread=given) == (f"Ask for any but the slow ones: {said}; the fastest, GPU 2, {LESS}.")


def test_a_gain_that_is_sure_but_small_matters_little() -> None:
    def said(low: float | None, best: tuple[int, ...]) -> str:
        return advised("any", gain=TimeGain(0.25, low, 0.375), best=best)

    little = "It matters little which GPU you ask for: 8 GPUs; the fastest, GPU 2 with 75 % confidence, "
    assert said(0.125, (2,)) == f"{little}{LESS}."
    for low, best in ((0.125, (2, 1)), (0.0, (2,)), (-0.125, (2,)), (None, (2,)), (0.0, (2, 1))):
        assert said(low, best).startswith(
            "It does not matter which GPU you ask for: 8 GPUs; the likeliest to be fastest takes 25 %"
        )


def test_the_fourth_gpu_is_said_to_save_money_or_not() -> None:
    question = "Can I save money by just asking for the 4th GPU always?"

    def said(low: float | None, high: float | None, hosts: int = 1, slot: str | None = None) -> str | None:
        strays = None if slot is None else place("slot", slot, "yes")
        advice = GpuRecommendation("gpu", GAIN, (2,), slot=strays, fourth=TimeGain(0.25, low, high))
        found = fourth_gpu_sentence(looked(fleet=fleet(8, hosts=hosts), advice=advice))
        return None if found is None else found.removeprefix(f"{question} ")

    saves = "it takes 25 % (12–75) less time than a random one"
    assert said(0.125, 0.75) == f"Yes: on this host {saves}."
    assert said(0.125, 0.75, hosts=2) == f"Yes: over 2 hosts {saves}."
    assert said(0.125, 0.75, hosts=3) == f"Yes: over 3 hosts {saves}."
    assert said(0.125, 0.75, slot="3") == f"Yes: on this host {saves}."
    assert said(0.125, 0.75, slot="2") == f"Yes: on this host {saves}; slot 2 saves more."
    few = "Yes: on this host it takes 25 % (12–50) less time than a random one"
    assert said(0.125, 0.5) == f"{few}."
    assert said(0.125, 0.375) == f"Yes: on this host it {LESS}, which is less than 50 %."
    assert said(0.125, 0.375, slot="2") == f"Yes: on this host it {LESS}, which is less than 50 %; slot 2 saves more."
    no = said(0.0, 0.375)
    assert no is not None
    assert no.startswith("No: on this host it saves 25 % ")
    assert no.endswith(" of the time of a random one, which is below 50 %.")
    assert str(said(-0.125, 0.375, hosts=2)).startswith("No: over 2 hosts it saves 25 % ")
    for low in (0.0, -0.125):
        unclear = str(said(low, 0.5))
        assert unclear.startswith("It cannot be told: on this host it takes 25 % ")
        assert unclear.endswith(" less time than a random one.")
    assert said(0.125, None) is None
    assert said(None, 0.375) is None


def test_a_difference_is_written_as_a_change_or_in_degrees() -> None:
    time, heat = measure("time"), measure("temperature")
    assert difference_text(time, math.log(1.5)) == "+50.0 %"
    assert difference_text(time, math.log(1.5), math.log(1.25), math.log(1.75)) == "+50.0 % (+25.0 to +75.0)"
    assert difference_text(heat, -4.0) == "−4.0 °C"
    assert difference_text(heat, 4.0, 3.0, 5.0) == "+4.0 °C (+3.0 to +5.0)"
    assert difference_text(time, math.log(1.5), None, math.log(2)) == "+50.0 %"
