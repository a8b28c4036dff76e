"""What is said and claimed of sweeps at the edges of what decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.results import Estimate, Missing, Record, Window
from assay.experiments.power.sweep.curve import Optimum, SweepCurve, SweepReading, SweepStep, SweepStudy, match_records
from assay.experiments.power.sweep.findings import (
    axis_name,
    build_findings,
    missing_energy_reason,
    optimum_doubt,
    sweep_headline,
)
from assay.experiments.power.sweep.options import SweepPoint
from assay.experiments.power.sweep.plan import SweepVisit, build_trial
from tests.experiments.power.sweeps import Swept, options, points

if TYPE_CHECKING:
    from assay.core.results import Finding
    from assay.core.values import Scalar
    from assay.experiments.power.sweep.options import SweepOptions

THREE = options(points=points(None, 200.0, 300.0, 400.0), max_slowdown=0.5)
WHERE = "On cuda:0 sgemm@torch"
SAVED = "20 % less than as found (10–30 %) for calls that take 25 % longer"


def about(value: float, low: float | None = None, high: float | None = None, unit: str = "×") -> Estimate:
    return Estimate(value=value, low=low, high=high, unit=unit, scope="run", method="made", n=3)


def reading(trial: str = "t", **changes: Any) -> SweepReading:
    told: dict[str, Any] = {
        "device": "cuda:0", "point": 1, "block": "b", "trial": trial, "quantity": "span_us",
        "samples": (np.ones(2),), "calls": 10, "timed_s": 1.0, "energy_j": None, "energy_missing": None, "flop": None,
        "bytes_moved": None, "power_w": None, "sm_mhz": None, "temperature_c": None, "utilisation_percent": None,
        "held_back": None,
    }  # fmt: skip
    return SweepReading(**{**told, **changes})


def step(place: int, setting: Scalar, **changes: Any) -> SweepStep:
    told: dict[str, Any] = {
        "readings": (reading(f"t{place}"),), "time_us": about(100.0), "calls_per_s": about(10.0), "energy_j": None,
        "cost_j": about(4.0, unit="J"), "energy_ratio": about(0.8, 0.7, 0.9), "slowdown": about(1.25, 1.125, 1.375),
        "longer_at_most": None, "binds": "binds",
    }  # fmt: skip
    return SweepStep(place, setting, **{**told, **changes})


def steps(*changes: dict[str, Any]) -> tuple[SweepStep, ...]:
    return tuple(step(place, 100.0 + 100 * place, **change) for place, change in enumerate(changes, 1))


def best(place: int = 1, may_be: tuple[int, ...] = (1,), *, told: bool = True, chance: bool = True) -> Optimum:
    return Optimum(place, may_be, told, chance, 3)


def curve(*told: SweepStep, optimum: Optimum | None = None, **changes: Any) -> SweepCurve:
    known: dict[str, Any] = {"device": "cuda:0", "reference": None, "unit": "call", "best_delay": None}
    return SweepCurve(steps=told or steps({}, {}, {}), best=optimum, **{**known, **changes})


def record(trial: str, status: Any = "failed", reason: str | None = "why", origin: Any = "real") -> Record:
    window = Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at="2026-11-15T10:00:00Z")
    return Record(trial=trial, block="b", attempt=1, window=window, status=status, reason=reason, origin=origin)


def said(*found: SweepCurve, wanted: SweepOptions = THREE, records: tuple[Record, ...] = ()) -> str:
    return sweep_headline(wanted, found, Swept(list(records), {}))


def test_where_nothing_was_measured_the_first_reason_is_given() -> None:
    refused = options(knob="dtype", points=(SweepPoint(setting="float17", subject=None, refused="no float17."),))
    assert said() == "Nothing could be measured."
    assert said(wanted=refused) == "Nothing could be measured: no float17."
    records = (record("a", "ok", None), record("b", reason="too hot."), record("c", reason="too cold."))
    assert said(wanted=refused, records=records) == "Nothing could be measured: too hot."


def test_four_devices_are_told_one_by_one_and_five_together() -> None:
    one = curve(optimum=best(), unit=None)
    own = f"{WHERE} spends the least energy at a limit of 200 W (4.000 J a call), {SAVED}."
    assert said(one) == own
    assert said(one, one, one, one) == " ".join([own] * 4)
    assert said(one, one, one, one, one) == "sgemm@torch spends the least energy at 200 W on 5 devices."


def test_a_step_is_called_cheaper_only_than_what_spends_more_as_found() -> None:
    def of(optimum: Optimum, **changes: Any) -> str:
        return said(curve(*steps(changes, {"binds": "unclear"}), optimum=optimum))

    once = best(told=False, chance=False)
    spent = f"{WHERE} spent the least energy at a limit of 200 W, in a single repeat"
    least = f"{WHERE} spends the least energy at a limit of 200 W (4.000 J a call)"
    assert of(best()) == f"{least}, {SAVED}."
    assert of(best(), cost_j=None) == f"{WHERE} spends the least energy at a limit of 200 W, {SAVED}."
    assert of(once) == f"{spent}, {SAVED}."
    assert of(best(), slowdown=None) == of(best(), energy_ratio=None) == f"{least}."
    more = {"energy_ratio": about(1.0, 1.0, 1.25)}
    dear = "0 % more than as found (0–25 %) for calls that take 25 % longer"
    at = f"at a limit of 200 W it takes {dear}."
    assert of(best(), **more) == f"{WHERE}: no step is cheaper than as found; {at}"
    perhaps = {"energy_ratio": about(1.25, 0.75, 1.5)}
    same = "at a limit of 200 W it takes 25 % more than as found (or the same) for calls that take 25 % longer."
    assert of(best(), **perhaps) == f"{WHERE}: no step is surely cheaper than as found; {same}"
    assert of(once, **more) == f"{WHERE}: no step is cheaper than as found, in a single repeat; {at}"
    alone = {"energy_ratio": about(1.25)}
    bare = "at a limit of 200 W it takes 25 % more than as found for calls that take 25 % longer."
    assert of(best(), **alone) == f"{WHERE}: no step is surely cheaper than as found; {bare}"
    free = "calls take at most 50 % longer down to 200 W; 200 W does not bind."
    unbound = {**more, "binds": "does_not_bind", "longer_at_most": 1.0}
    assert of(best(), **unbound) == f"{WHERE} spends the least energy where no cap binds; {free}"
    assert (
        of(once, **unbound) == f"{WHERE} spent the least energy at a limit of 200 W, in a single repeat, {dear}; {free}"
    )


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.75, 1.0, " (0–25 %)"), (1.0, 1.25, " (0–25 %)"), (0.75, 1.25, " (or the same)"),
        (1.1, 1.2, " (10–20 %)"), (0.8, 0.9, " (10–20 %)"), (0.7, 0.8, " (20–30 %)"), (None, None, ""),
        (None, 0.8, ""), (0.8, None, ""),
    ],
)  # fmt: skip
def test_what_is_saved_has_its_interval_from_the_nearer_end_on(
    low: float | None, high: float | None, words: str
) -> None:
    ratio = about(0.9375).model_copy(update={"low": low, "high": high})
    found = said(curve(step(1, 200.0, energy_ratio=ratio, cost_j=None), *steps({}, {})[1:], optimum=best()))
    told = f"6.2 % less than as found{words} for calls that take 25 % longer"
    assert found == f"{WHERE} spends the least energy at a limit of 200 W, {told}."


def test_steps_that_cannot_be_told_from_the_best_are_named() -> None:
    found = said(curve(optimum=best(2, (1, 2))))
    assert found == (
        f"{WHERE} spends the least energy at a limit of 300 W (4.000 J a call), {SAVED}, "
        "and 200 W cannot be told from it."
    )


def test_a_best_step_that_cannot_be_told_is_one_of_several() -> None:
    four = options(points=points(None, 200.0, 300.0, 400.0, 500.0), max_slowdown=0.5)
    costs = [{"cost_j": about(joules, unit="J")} for joules in (4.0, 5.0, 6.0, 8.0)]

    def of(*changes: dict[str, Any], may_be: tuple[int, ...] = (1, 2)) -> str:
        told = [{**cost, **change} for cost, change in zip(costs, [*changes, {}, {}, {}, {}], strict=False)]
        return said(curve(*steps(*told), optimum=best(1, may_be, told=False)), wanted=four)

    worth = f"; 200 W takes {SAVED}."
    least = f"{WHERE}: where it spends the least energy cannot be told, it may be"
    assert of() == f"{least} 200 or 300 W (they lie within 25 %){worth}"
    assert of(may_be=(1,)) == f"{least} 200 W{worth}"
    assert of({"slowdown": None}) == f"{least} 200 or 300 W (they lie within 25 %)."
    surely = {"energy_ratio": about(1.25, 1.0, 1.5)}
    dearer = "200 W takes 25 % more than as found (0–50 %) for calls that take 25 % longer."
    nearest = f"{WHERE}: no step is cheaper than as found; which comes nearest cannot be told, it may be"
    assert of(surely) == f"{nearest} 200 or 300 W; {dearer}"
    likely = {"energy_ratio": about(1.25, 0.875, 1.5)}
    assert of(likely).startswith(f"{least} 200 or 300 W (they lie within 25 %); 200 W takes 25 % more")
    every = f"{WHERE}: no step can be told from another by its energy"
    assert of(may_be=(1, 2, 3, 4)) == f"{every} (they lie within 100 %)."
    assert of({}, {}, {}, {"cost_j": None}, may_be=(1, 2, 3)) == f"{every} (they lie within 50 %)."
    assert of({}, {}, {}, {"cost_j": None}, may_be=(1, 2)).startswith(f"{least} 200 or 300 W")


def test_where_no_cap_binds_it_is_said_once() -> None:
    free = {"binds": "does_not_bind", "longer_at_most": 1.0}
    none = f"{WHERE}: no cap binds, so that none saves energy"
    optimum = best(told=False)
    one = curve(*steps(free), optimum=optimum)
    assert said(one) == f"{none}."
    two = steps({**free, "cost_j": about(4.0, unit="J")}, {**free, "cost_j": about(5.0, unit="J")})
    assert said(curve(*two, optimum=optimum)) == f"{none} (they lie within 25 %)."


def test_without_energy_the_step_that_does_the_most_work_is_named() -> None:
    def of(knob: Any, unit: Any, *told: SweepStep, settings: tuple[Scalar, ...] = (64, 128)) -> str:
        return said(curve(*told, unit=unit), wanted=options(knob=knob, points=points(*settings)))

    def size(place: int, rate: float, **work: Any) -> SweepStep:
        given = (reading(**work), reading(flop=1.0, bytes_moved=1.0))
        return step(place, (64, 128)[place], calls_per_s=about(rate), readings=given)

    none = f"{WHERE}: no energy is told"
    sizes = size(0, 10.0, flop=6.0, bytes_moved=2.0), size(1, 5.0, flop=8.0, bytes_moved=8.0)
    assert of("size", "call", *sizes) == f"{none}; it does the most work at size 64."
    assert of("size", "FLOP", *sizes) == f"{none}; it does the most work at size 64."
    assert of("size", "byte", *sizes) == f"{none}; it does the most work at size 128."
    untold = size(0, 10.0, flop=None), size(1, 3.0, flop=4.0)
    assert of("batch", "FLOP", *untold) == f"{none}; it does the most work at batch 128."
    assert of("batch", "item", *sizes) == f"{none}."
    unlike = "calls of different sizes do different work, and it does not tell how much"
    assert of("size", None, *sizes) == f"{WHERE}: {unlike}."
    assert of("duty", "call", *sizes) == f"{none}."
    words = step(0, "half", calls_per_s=about(9.0)), step(1, "full", calls_per_s=about(3.0))
    assert of("dtype", "call", *words, settings=("half", "full")) == f"{none}; it does the most work at half."
    nothing = SweepCurve("cuda:0", (), None, "call", None, None)
    assert said(nothing, wanted=options(knob="dtype", points=points("half"))) == f"{none}."


def test_how_far_calls_can_be_held_back_is_said_of_caps() -> None:
    def of(*changes: dict[str, Any]) -> str:
        return said(curve(*steps(*changes), unit="call")).partition(f"{WHERE}: no energy is told")[2]

    free, near = {"binds": "does_not_bind", "longer_at_most": 1.0}, {"longer_at_most": 1.5}
    far: dict[str, Any] = {"longer_at_most": 1.75}
    within = "; calls take at most 50 % longer down to"
    assert of(near, {}, {}) == f"{within} 200 W, 20 % less energy."
    assert of(far, near, {}) == f"{within} 300 W, 20 % less energy."
    assert of({**near, "energy_ratio": None}, {}) == f"{within} 200 W."
    assert of(free, {}) == f"{within} 200 W; 200 W does not bind."
    assert of(free, free, {}) == f"{within} 200 W; 200 and 300 W do not bind."
    assert of({}, free, free) == f"{within} 300 W; 300 and 400 W do not bind."
    assert of(free, free) == "."
    assert of(far, {}) == of({}, far) == "; no step is surely within 50 % of the time as found."
    assert of({}, {}) == "."
    unknown = {"binds": "does_not_bind", "longer_at_most": None}
    assert of(unknown, {}) == "; 200 W does not bind."
    assert of(unknown, unknown) == "."


def test_of_many_devices_the_best_steps_are_counted() -> None:
    def cheap(place: int) -> SweepCurve:
        return curve(optimum=best(place))

    dear = curve(*steps({"energy_ratio": about(1.0)}), optimum=best())
    open_one, silent = curve(optimum=best(told=False)), curve()
    own = "sgemm@torch spends the least energy at"
    assert said(*[cheap(1)] * 3, cheap(2), cheap(2)) == f"{own} 200 W and 300 W on 5 devices."
    assert said(*[cheap(2)] * 3, dear, open_one, silent) == (
        f"{own} 300 W on 3 devices; on 1 none is cheaper than as found; of 2 it cannot be told."
    )
    assert said(*[cheap(1)] * 4, dear) == f"{own} 200 W on 4 devices; on 1 none is cheaper than as found."
    assert said(*[cheap(1)] * 4, silent) == f"{own} 200 W on 4 devices; of 1 it cannot be told."
    assert said(*[dear] * 4, silent) == "sgemm@torch: no step is cheaper than as found on 4 of 5 devices."
    none = "5 devices were measured, and of none is the best step told from the others."
    assert said(*[open_one] * 4, silent) == said(*[silent] * 5) == none


@pytest.fixture
def judged() -> Any:
    def of(
        *found: SweepCurve, wanted: SweepOptions = THREE, records: tuple[Record, ...] = ()
    ) -> dict[str, tuple[Finding, ...]]:
        kept = Swept(list(records), {})
        told = build_findings(wanted, SweepStudy(tuple(match_records(wanted, kept)), (), found), kept)
        kinds = dict.fromkeys(each.kind for each in told.findings)
        return {kind: tuple(each for each in told.findings if each.kind == kind) for kind in kinds}

    return of


def test_findings_are_as_real_as_their_records(judged: Any) -> None:
    real, fake = record("a", "ok", None), record("b", "ok", None, "fake")
    assert {each.origin for each in judged(curve(), records=(real,))["best_energy"]} == {"real"}
    assert {each.origin for each in judged(curve(), records=(real, fake))["best_energy"]} == {"fake"}
    assert list(judged(curve())) == ["best_energy", "energy_delay", "within_slowdown", "binding"]
    sizes = options(knob="size", points=points(64))
    assert list(judged(curve(step(0, 64)), wanted=sizes)) == ["best_energy"]


def test_the_best_step_is_claimed_with_all_that_is_known_of_it(judged: Any) -> None:
    told = step(
        1, 200.0, energy_j=about(6.0, 5.0, 7.0), longer_at_most=1.5,
        readings=(reading("t1", power_w=300.0), reading("t2", power_w=500.0), reading("t1")),
    )  # fmt: skip
    rest = steps({}, {}, {})[1:]
    reference = step(0, None, readings=(reading("t0"), reading("t2")))
    one = curve(
        told, *rest, optimum=best(1, (1, 2)), best_delay=best(2, (2,), told=False, chance=False), reference=reference
    )
    (found,) = judged(one)["best_energy"]
    assert found.claim == "sgemm@torch on cuda:0 spends the least energy per call at a limit of 200 W"
    assert (found.verdict, found.reason) == ("yes", "300 W cannot be told from it")
    assert found.records == ("t1", "t2", "t3", "t0")
    assert (found.estimate.value, found.estimate.low, found.estimate.high) == (200.0, 200.0, 300.0)
    assert (found.estimate.unit, found.estimate.n) == ("W", 3)
    assert found.facts == {
        "device": "cuda:0", "knob": "power_limit_w", "setting": 200.0,
        "energy_per_call_j": 6.0, "energy_low_j": 5.0, "energy_high_j": 7.0, "cost_j": 4.0, "energy_ratio": 0.8,
        "energy_ratio_low": 0.7, "energy_ratio_high": 0.9, "slowdown": 1.25, "slowdown_low": 1.125,
        "slowdown_high": 1.375, "longer_at_most": 1.5, "calls_per_s": 10.0, "power_w": 400.0, "binds": "binds",
        "may_be": "200 W, 300 W",
    }  # fmt: skip
    (delay,) = judged(one)["energy_delay"]
    assert delay.claim == "sgemm@torch on cuda:0: energy times time of a call is least at a limit of 300 W"
    assert (delay.verdict, delay.reason) == ("unsure", "one repeat tells nothing of chance")
    assert (delay.estimate.value, delay.estimate.low, delay.estimate.high) == (300.0, None, None)
    assert delay.facts["energy_per_call_j"] is None
    assert delay.facts["may_be"] == "300 W"


def test_a_step_of_which_nothing_is_known_has_no_numbers(judged: Any) -> None:
    bare = step(1, 200.0, cost_j=None, energy_ratio=None, slowdown=None, binds=None)
    (found,) = judged(curve(bare, optimum=best(told=False)))["best_energy"]
    assert found.verdict == "unsure"
    known = {name for name, value in found.facts.items() if value is not None}
    assert known == {"device", "knob", "setting", "calls_per_s", "may_be"}


def test_words_and_duties_have_places_of_their_own(judged: Any) -> None:
    types = options(knob="dtype", points=points("half", "full"))
    (found,) = judged(curve(step(0, "half"), optimum=best(0, (0,))), wanted=types)["best_energy"]
    assert (found.estimate.value, found.estimate.unit) == (4.0, "J")
    duties = options(knob="duty", points=points(0.5, 0.75))
    (found,) = judged(curve(step(0, 0.5), optimum=best(0, (0, 1))), wanted=duties)["best_energy"]
    assert (found.estimate.value, found.estimate.low, found.estimate.high) == (50.0, 50.0, 75.0)


def test_without_energy_it_is_said_why(judged: Any) -> None:
    joules = about(1.0, unit="J")
    told = (
        reading(energy_j=joules), reading(), reading(energy_missing=Missing(code="no_sensor", detail="no counter")),
        reading(energy_missing=Missing(code="no_sensor", detail="no sensor")),
    )  # fmt: skip
    (found,) = judged(curve(step(1, 200.0, readings=told)))["best_energy"]
    assert found.claim == "sgemm@torch on cuda:0: the step that spends the least energy per call is known"
    assert (found.verdict, found.reason, found.estimate) == ("unsure", "no counter", None)
    (delay,) = judged(curve(step(1, 200.0, readings=told)))["energy_delay"]
    assert (delay.claim, delay.reason) == ("sgemm@torch on cuda:0: energy times time of a call is least", "no counter")
    assert missing_energy_reason(curve(step(1, 200.0, readings=told[:2]))) == "no energy was measured"
    unlike = "calls of different sizes do different work, and this workload does not tell how much"
    assert missing_energy_reason(curve(unit=None)) == unlike
    (found,) = judged(curve(unit=None))["best_energy"]
    assert found.claim == "sgemm@torch on cuda:0: the step that spends the least energy per call is known"
    (found,) = judged(curve(unit="FLOP"))["best_energy"]
    assert found.claim.endswith("the least energy per floating-point operation is known")


def test_a_delay_is_the_lowest_step_that_keeps_it(judged: Any) -> None:
    exact = options(points=points(None, 200.0, 300.0, 400.0), max_slowdown=0.12345)
    (found,) = judged(curve(), wanted=exact)["within_slowdown"]
    assert found.claim == "sgemm@torch on cuda:0 stays within 12.3 % of its time as found at some step"
    assert "no step is surely within 12.3 % of" in said(curve(*steps({"longer_at_most": 1.75}, {})), wanted=exact)
    (found,) = judged(curve(*steps({"longer_at_most": 1.75}, {"longer_at_most": 1.5}, {})))["within_slowdown"]
    assert found.claim == "sgemm@torch on cuda:0 takes at most 50 % longer down to a limit of 300 W"
    assert (found.verdict, found.reason, found.estimate.value) == ("yes", None, 1.25)
    assert (found.facts["setting"], found.facts["max_slowdown"], found.kind) == (300.0, 0.5, "within_slowdown")


@pytest.mark.parametrize(
    ("lows", "known", "verdict"),
    [
        ((1.625, 1.625), (1.75, 1.75), "no"), ((1.625, 1.625), (1.75, None), "no"),
        ((1.625, 1.625), (None, None), "unsure"), ((1.625, 1.5), (1.75, 1.75), "unsure"),
        ((1.5, 1.5), (1.75, 1.75), "unsure"), ((1.25, 1.25), (1.75, 1.75), "unsure"),
        ((1.625, None), (1.75, 1.75), "unsure"),
    ],
)  # fmt: skip
def test_no_step_keeps_a_delay_where_all_are_surely_slower(
    judged: Any, lows: tuple[float | None, ...], known: tuple[float | None, ...], verdict: str
) -> None:
    slower = [about(2.0, low, None if low is None else 3.0) for low in lows]
    told = steps(*({"slowdown": ratio, "longer_at_most": most} for ratio, most in zip(slower, known, strict=True)))
    (found,) = judged(curve(*told))["within_slowdown"]
    assert found.claim == "sgemm@torch on cuda:0 stays within 50 % of its time as found at some step"
    assert found.verdict == verdict
    assert found.reason == (None if any(known) else "one repeat tells nothing of chance")
    assert found.records == ("t1", "t2")
    never = curve(*steps({"slowdown": None, "longer_at_most": 1.75}, {"slowdown": about(2.0, 1.75, 3.0)}))
    assert judged(never)["within_slowdown"][0].verdict == "unsure"


def test_caps_are_told_apart_by_whether_they_bind(judged: Any) -> None:
    def binding(*binds: str, drawn: tuple[float | None, ...] = ()) -> Finding:
        reference = step(0, None, readings=tuple(reading(power_w=watts) for watts in drawn)) if drawn else None
        told = steps(*({"binds": each} for each in binds))
        found: Finding = judged(curve(*told, reference=reference))["binding"][0]
        return found

    free, held, open_one = "does_not_bind", "binds", "unclear"
    found = binding(held, open_one, free, drawn=(300.0, None, 500.0, 700.0, 340.0))
    assert found.claim == "sgemm@torch on cuda:0 is throttled by some step of the power limit"
    assert (found.verdict, found.reason) == ("yes", "400 W does not bind")
    assert found.estimate is not None
    assert (found.estimate.value, found.estimate.low, found.estimate.high) == (460.0, 300.0, 700.0)
    assert (found.estimate.n, found.estimate.unit) == (4, "W")
    assert found.facts == {
        "device": "cuda:0", "knob": "power_limit_w", "binds": "200 W", "does_not_bind": "400 W",
        "unclear": "300 W",
    }  # fmt: skip
    assert (binding(free, free, held).reason, binding(held, held, held).reason) == ("200 and 300 W do not bind", None)
    nothing = binding(open_one, free, free)
    assert (nothing.verdict, nothing.reason, nothing.estimate) == ("unsure", "300 and 400 W do not bind", None)
    assert nothing.facts["binds"] is None
    assert binding(free, free, free).verdict == "no"
    assert binding(held, held, held, drawn=(None,)).estimate is None
    assert [axis_name(options(knob=knob, points=points(1))) for knob in ("sm_mhz", "size")] == [
        "locked SM clock", "size",
    ]  # fmt: skip


def test_doubt_names_the_other_steps_or_all() -> None:
    refused = SweepPoint(setting=500.0, subject=None, refused="too much")
    wanted = options(points=(*points(None, 200.0, 300.0, 400.0), refused))
    assert optimum_doubt(wanted, best(1, (1,))) is None
    assert optimum_doubt(wanted, best(1, (1,), chance=False)) == "one repeat tells nothing of chance"
    assert optimum_doubt(wanted, best(1, (1, 2))) == "300 W cannot be told from it"
    assert optimum_doubt(wanted, best(2, (1, 2, 3))) == "no step can be told from another"
    five = options(points=(*points(None, 200.0, 300.0, 400.0, 450.0), refused))
    assert optimum_doubt(five, best(2, (1, 2, 3))) == "200 and 400 W cannot be told from it"


def test_steps_that_never_worked_have_their_last_reason(judged: Any) -> None:
    wanted = options(points=points(None, 200.0, 300.0, 400.0), repeat=3, max_slowdown=0.5)

    def tries(place: int, *outcomes: tuple[str, str | None]) -> tuple[Record, ...]:
        trials = [build_trial(wanted, SweepVisit(place, ("cuda:0",)), number).id for number in (1, 2, 3)]
        return tuple(record(trial, *outcome) for trial, outcome in zip(trials, outcomes, strict=True))

    never = tries(1, ("failed", "first"), ("failed", "second"), ("refused", "third"))
    once = tries(2, ("failed", "first"), ("ok", None), ("failed", "third"))
    (found,) = judged(curve(), wanted=wanted, records=(*never, *once, record("of another run")))["missing"]
    assert found.claim == "sgemm@torch can be measured at a limit of 200 W on cuda:0"
    assert (found.verdict, found.reason, found.estimate) == ("no", "third", None)
    assert found.facts == {"knob": "power_limit_w", "status": "refused"}
    assert found.records == tuple(each.trial for each in never)
    bad = options(
        knob="dtype", points=(*points("half"), SweepPoint(setting="odd", subject=None, refused="no such type"))
    )
    (odd,) = judged(curve(step(0, "half")), wanted=bad)["missing"]
    assert (odd.claim, odd.reason, odd.records) == ("sgemm@torch takes odd", "no such type", ())
    assert odd.facts["status"] == "refused"
