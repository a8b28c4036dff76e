"""Answers in one sentence, at the edges of what they say: of company, of ranks, and of energy."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import Any

import numpy as np
import pytest

from assay.core.results import Estimate, Missing, Note
from assay.experiments.contention.effects import ContentionEffect, NoiseBudget, PhaseComparison
from assay.experiments.contention.findings import build_findings
from assay.experiments.contention.layout import ContentionLayout, LayoutCell, TunerPick, WorkerSlot
from assay.experiments.contention.options import Aggressor
from assay.experiments.contention.picks import PickMismatch
from assay.experiments.contention.report import (
    CONCURRENCY_HINT,
    _call_sentence,
    _effect_text,
    _isolation_text,
    _kernel_sentence,
    _ratio_figure,
    only_calls_slow,
)
from assay.experiments.contention.report import headline as of_company
from assay.experiments.energy.findings import main_figure, smallest_and_largest, token_energy
from assay.experiments.energy.findings import write_headline as of_energy
from assay.experiments.energy.result import EnergyCell, EnergyResult, EnergyRow
from assay.experiments.scaling.analysis import AnalysedShape, ScalingAnalysis
from assay.experiments.scaling.findings import find_largest_shape, name_ranks
from assay.experiments.scaling.findings import write_headline as of_ranks
from assay.experiments.scaling.plan import ScalingShape
from assay.experiments.scaling.timings import EFFICIENCY_FACTORS, QUANTITIES
from assay.stats.blocks import BlockRatio
from assay.stats.ratios import Proportion
from tests.experiments.contention import worlds as contention
from tests.experiments.scaling import worlds as scaling
from tests.machines import machine

HERE = WorkerSlot(0, "cpu:0")


def between(value: float, low: float | None = None, high: float | None = None, **changes: Any) -> Estimate:
    told = {"value": value, "low": low, "high": high, "unit": "×", "scope": "run", "method": "made", "n": 3}
    return Estimate.model_validate({**told, **changes})


# Company: whether it is noisy, why, and what would mend it.


def over(value: float, low: float | None, high: float | None, verdict: Any, blocks: int = 4) -> ContentionEffect:
    return ContentionEffect(BlockRatio(value, low, high, blocks), 0.01, verdict)


NOISY = over(2.0, 1.75, 2.25, "yes")
CALM = over(1.0, 0.96875, 1.03125, "no")
OPEN = over(1.25, 0.75, 1.75, "unsure")


def compared(**effects: ContentionEffect) -> dict[Any, PhaseComparison]:
    return {name: PhaseComparison(name, effect, {}) for name, effect in effects.items()}  # type: ignore[arg-type]


def timed(phase: Any) -> LayoutCell:
    return LayoutCell(HERE, 1, phase, "busy_us", np.ones(2), 0.0, "a")


def tried(config: Any, reason: str | None = None) -> TunerPick:
    return TunerPick(HERE, 1, "naive", config, reason, None, "a")


def analysed(
    times: dict[str, Any] | None = None,
    *,
    choices: tuple[TunerPick, ...] = (),
    quantity: str = "busy_us",
    **changes: Any,
) -> Any:
    phases = changes.pop("phases", ("baseline",))
    laid = ContentionLayout(tuple(timed(phase) for phase in phases), choices, (), (), quantity)
    told = {
        "layout": laid, "times": times or {}, "spreads": {}, "mismatches": {}, "losses": {}, "budgets": [],
        "picks": {}, "agreements": [], "correlations": [], "incomparable": None, "overrun": None,
    }  # fmt: skip
    return Made(**{**told, **changes})


def company(*, cores: int = 2, told: dict[str, Any] | None = None, asked: dict[str, Any] | None = None) -> str:
    """Return the answer; without times, those of a noisy machine that nobody isolated."""
    wanted = contention.options(**(asked or {}))
    found = {"times": {"busy_us": compared(naive=NOISY)}, **(told or {})}
    return of_company(machine(cores=(cores,)), wanted, analysed(**found))


def mended(naive: ContentionEffect, isolated: ContentionEffect | None, **asked: Any) -> str:
    """Return what is said to mend noise."""
    return _isolation_text(contention.options(**asked), naive, isolated)


ALONE = {"devices": ("cpu:0",)}
LONG = "softmax@numpy takes 2.00× (1.75–2.25) as long as alone on average"
UNTRIED = "what isolation would do could not be measured"


def test_without_company_the_answer_is_what_measuring_twice_shows() -> None:
    def said(times: dict[str, Any], **changes: Any) -> str:
        return company(told={"times": {"busy_us": compared(**times)}, **changes}, asked=ALONE)

    start = "Nothing runs side by side here, with one device and one worker; "
    end = f"; {CONCURRENCY_HINT}."
    takes = "softmax@numpy takes 1.000× (0.969–1.031) as long"
    assert said({"again": CALM}) == f"{start}measured twice alone in 4 blocks, {takes}{end}"
    once = over(1.5, None, None, "unsure", blocks=1)
    assert said({"again": once}) == f"{start}measured twice alone in 1 block, softmax@numpy takes 1.50× as long{end}"
    assert said({}) == f"{start}nothing was measured twice alone{end}"
    assert said({"again": ContentionEffect(None, None, "unsure")}) == f"{start}nothing was measured twice alone{end}"
    assert said({}, phases=("naive",)) == f"{start}alone nothing could be measured{end}"
    assert said({}, phases=("naive", "again")) == f"{start}nothing was measured twice alone{end}"
    assert said({}, phases=()) == "Nothing could be measured."


def test_subjects_are_listed_as_people_do() -> None:
    third = contention.GEMM.model_copy(update={"workload": "triad"})
    for subjects, takes in (
        ((contention.SOFTMAX,), "softmax@numpy takes"),
        ((contention.SOFTMAX, contention.GEMM), "softmax@numpy and gemm@numpy take"),
        ((contention.SOFTMAX, contention.GEMM, third), "softmax@numpy, gemm@numpy and triad@numpy take"),
    ):
        asked = {"subjects": subjects, "tunable": (True,) * len(subjects)}
        assert company(asked=asked).startswith(f"Noisy side by side: {takes} 2.00×")


def test_what_could_not_be_measured_side_by_side_is_not_known() -> None:
    said = "What side by side does is not known, as it could not be measured; nothing was measured twice alone."
    assert company(told={"times": {}}) == said
    assert company(told={"times": {"busy_us": compared(naive=ContentionEffect(None, None, "unsure"))}}) == said
    untimed = analysed({"busy_us": compared(naive=ContentionEffect(None, None, "unsure"))})
    two = machine(cores=(2,))
    assert _kernel_sentence(two, contention.options(), untimed, "it takes") == ""
    assert _kernel_sentence(two, contention.options(), analysed(), "it takes") == ""


def test_a_tuner_that_never_found_anything_is_told_with_its_first_reason() -> None:
    def said(*choices: TunerPick) -> str:
        return company(told={"choices": choices}).partition(UNTRIED)[2]

    assert said() == "."
    assert said(tried({"block": 1}), tried(None, "no memory")) == "."
    assert said(tried(None, "no memory."), tried(None, "another")) == (
        "; the tuner found no configuration in any of 2 tries (no memory)."
    )
    assert said(tried(None), tried(None, "another"), tried(None)) == (
        "; the tuner found no configuration in any of 3 tries (it does not say why)."
    )


def test_the_answer_is_noisy_not_noisy_or_not_decided() -> None:
    def said(effect: ContentionEffect, **changes: Any) -> str:
        return company(told={"times": {"busy_us": compared(naive=effect)}, **changes})

    assert said(NOISY) == f"Noisy side by side: {LONG}, as 2 processes run at once; {UNTRIED}."
    calm = "softmax@numpy takes 1.000× (0.969–1.031) as long as alone on average"
    assert said(CALM) == f"Not noisy side by side: {calm}."
    open_ = "side by side softmax@numpy takes 1.25× (0.75–1.75) as long as alone on average."
    assert said(OPEN) == f"Not decided after 4 blocks: {open_}"
    once = "side by side softmax@numpy takes 1.50× as long as alone on average."
    assert said(over(1.5, None, None, "unsure", blocks=1)) == f"Not decided after 1 block: {once}"
    assert said(over(1.5, None, None, "unsure", blocks=2)) == f"Not decided after 2 blocks: {once}"


def test_a_machine_that_changes_by_itself_is_doubted() -> None:
    def said(**effects: ContentionEffect) -> str:
        return company(told={"times": {"busy_us": compared(naive=CALM, **effects)}}).partition("average")[2]

    assert said() == said(again=CALM) == said(again=OPEN) == "."
    assert said(again=NOISY) == (
        "; but measured twice alone it takes 2.00× (1.75–2.25) too: this machine changes by itself."
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "written"),
    [
        (1.0, 0.9375, 1.0625, "1.000× (0.938–1.062)"),
        (1.0, 0.9375, 1.1875, "1.00× (0.94–1.19)"),
        (1.0, 0.8125, 1.0625, "1.00× (0.81–1.06)"),
        (1.0, 0.88, 1.12, "1.00× (0.88–1.12)"),
        (1.0, 0.95, 1.12, "1.00× (0.95–1.12)"),
        (3.0, 2.5, 3.5, "3.00× (2.50–3.50)"),
        (1.5, None, None, "1.50×"),
        (1.5, 1.0, None, "1.50×"),
        (1.5, None, 2.0, "1.50×"),
        (2.0, 0.125, 12.5, "2.00× (0.12–12.50)"),
        (2.0, 0.125, 13.0, "2.00× (inconclusive)"),
    ],
)
def test_a_ratio_close_to_one_has_three_decimals(
    value: float, low: float | None, high: float | None, written: str
) -> None:
    assert _effect_text(over(value, low, high, "unsure")) == written
    assert _effect_text(ContentionEffect(None, None, "unsure")) == "–"


def test_only_callers_wait_where_their_calls_are_surely_longer_and_kernels_are_not() -> None:
    def waits(kernels: ContentionEffect | None, calls: ContentionEffect | None, quantity: str = "busy_us") -> bool:
        times = {name: compared(naive=each) for name, each in (("busy_us", kernels), ("call_us", calls)) if each}
        return only_calls_slow(analysed(times, quantity=quantity))

    assert waits(CALM, NOISY)
    assert waits(OPEN, NOISY)
    assert waits(None, NOISY)
    assert not waits(NOISY, NOISY)
    assert not waits(CALM, CALM)
    assert not waits(CALM, OPEN)
    assert not waits(CALM, None)
    assert not waits(CALM, NOISY, "call_us")


def test_who_waits_for_calls_is_told_where_kernels_are_spared() -> None:
    isolated = over(1.0, 0.75, 1.25, "no")
    calls = compared(naive=NOISY, isolated=isolated)
    said = company(told={"times": {"busy_us": compared(naive=CALM, isolated=NOISY), "call_us": calls}})
    assert said == (
        "Noisy side by side for who waits: a call of softmax@numpy takes 2.00× (1.75–2.25) as long as alone, as 2 "
        "processes run at once, while its kernels take 1.000× (0.969–1.031); isolated it takes 1.00× (0.75–1.25),"
        " so `--isolation full` mends it."
    )
    unknown = analysed({"call_us": calls})
    assert _call_sentence(machine(cores=(2,)), contention.options(), unknown, "it") is None
    both = company(told={"times": {"busy_us": compared(naive=NOISY), "call_us": calls}})
    assert both.startswith(f"Noisy side by side: {LONG}")


def test_what_else_company_does_is_said_where_it_is_sure() -> None:
    def also(**changes: Any) -> str:
        return company(told=changes).partition("on average")[2].partition(", as 2 processes")[0]

    def spread(effect: ContentionEffect) -> dict[str, Any]:
        return {"busy_us": compared(naive=effect), "call_us": compared(naive=NOISY)}

    unmeasured = ContentionEffect(None, None, "yes")
    assert also(spreads=spread(over(3.0, 2.0, 4.0, "yes"))) == ", repeats spread 3.0× as much"
    assert also(spreads=spread(OPEN)) == also(spreads=spread(unmeasured)) == also() == ""
    assert also(losses=compared(naive=over(1.25, 1.1, 1.4, "yes"))) == ", the picks lose 25 %"
    assert also(losses=compared(naive=OPEN)) == also(losses=compared(naive=unmeasured)) == ""
    often = PickMismatch(Proportion(9, 12), Proportion(0, 12), Proportion(9, 12), 0)
    seldom = PickMismatch(Proportion(1, 12), Proportion(0, 12), Proportion(1, 12), 0)
    assert (often.verdict, seldom.verdict) == ("yes", "unsure")
    assert also(mismatches={"naive": often}) == ", 9 of 12 picks are others"
    assert also(mismatches={"naive": seldom}) == ""
    assert also(mismatches={"naive": often}, losses=compared(naive=OPEN)) == ", 9 of 12 picks are others"
    loses = compared(naive=over(1.25, 1.1, 1.4, "yes"))
    spreads = spread(over(3.0, 2.0, 4.0, "yes"))
    assert also(mismatches={"naive": often}, losses=loses, spreads=spreads) == (
        ", repeats spread 3.0× as much, the picks lose 25 %"
    )


def test_noise_is_put_down_to_too_few_cores_to_loads_or_to_company() -> None:
    def because(cores: int, *names: str) -> str:
        subjects = [contention.GEMM.model_copy(update={"workload": name}) for name in names]
        loads = [Aggressor(name=subject.workload, subject=subject, location="host") for subject in subjects]
        said = company(cores=cores, asked={"aggressors": tuple(loads)})
        return said.partition("on average")[2].partition(f"; {UNTRIED}")[0]

    assert because(3) == because(2) == ", as 2 processes run at once"
    assert because(1) == ", as 2 processes share 1 core"
    assert because(3, "cpu") == ", beside cpu"
    assert because(2, "cpu") == ", as 3 processes, cpu among them, share 2 cores"
    assert because(4, "cpu", "cpu", "memory") == ", as 5 processes, cpu and memory among them, share 4 cores"


def test_isolation_still_noisy_is_mended_by_measuring_one_after_another() -> None:
    noisy = over(1.5, 1.25, 1.75, "yes")
    still = "isolated it still takes 1.50× (1.25–1.75): "
    assert mended(NOISY, noisy) == f"{still}measuring one after another, removes it"
    assert mended(NOISY, noisy, workers=2) == f"{still}one worker a device, or measuring one after another, removes it"


def test_isolation_mends_what_is_surely_less_with_it() -> None:
    def mends(isolated: ContentionEffect, naive: ContentionEffect = NOISY) -> bool:
        said = mended(naive, isolated)
        takes = _effect_text(isolated)
        mended_ = f"isolated it takes {takes}, so `--isolation full` mends it"
        open_ = f"whether isolation mends it is not decided: isolated it takes {takes}"
        assert said in {mended_, open_}
        return said == mended_

    assert mends(over(1.0, 0.75, 2.0, "no"))
    assert mends(over(1.0, 0.75, math.nextafter(1.75, 1), "unsure"))
    assert not mends(over(1.0, 0.75, 1.75, "unsure"))
    assert not mends(over(1.0, None, None, "unsure"))
    assert not mends(over(1.0, 0.5, 1.25, "unsure"), over(2.0, None, None, "unsure"))
    assert mends(over(1.0, 0.75, 1.25, "yes"))
    assert mends(over(0.5, 0.25, 0.75, "yes"))


def test_isolation_that_was_not_measured_is_not_judged() -> None:
    unmeasured = ContentionEffect(None, None, "yes")
    assert mended(NOISY, None) == mended(NOISY, unmeasured) == mended(unmeasured, NOISY) == UNTRIED
    assert mended(unmeasured, CALM) == UNTRIED


def test_of_a_calm_machine_the_largest_part_of_its_noise_is_told() -> None:
    def largest_of(*budgets: NoiseBudget) -> str:
        times = {"busy_us": compared(naive=CALM)}
        return company(told={"times": times, "budgets": list(budgets)}).partition("on average")[2]

    small, large = math.log(1.05) ** 2, math.log(1.25) ** 2
    alone = NoiseBudget("alone", {"within": small, "starts": large, "rest": 1.0}, 2.0)
    assert largest_of(NoiseBudget("naive", {"within": 1.0}, 1.0), alone) == (
        "; most noise arises from start to start, a spread of 25 %, and more restarts average it out "
        "(`assay run --restarts`)."
    )
    assert largest_of(NoiseBudget("naive", {"within": 1.0}, 1.0)) == "."
    assert largest_of(NoiseBudget("alone", {"within": 0.0}, 0.0)) == "."
    assert largest_of() == "."


def test_ratios_of_24_places_are_drawn_a_dot_a_block_and_named_by_what_sets_them_apart() -> None:
    def drawn(places: int, effect: ContentionEffect = NOISY, **asked: Any) -> Any:
        slots = [WorkerSlot(0, f"cpu:{n}") for n in range(places)]
        told: Any = ((1, "baseline", 2.0), (2, "baseline", 4.0), (1, "naive", 4.0), (2, "naive", 4.0))
        cells = [
            LayoutCell(slot, block, phase, "busy_us", np.full(2, value), 0.0, "a")
            for slot in slots
            for block, phase, value in told
        ]
        times = {"busy_us": {"naive": PhaseComparison("naive", effect, dict.fromkeys(slots, effect))}}
        laid = ContentionLayout(tuple(cells), (), (), (), "busy_us")
        found: Any = Made(layout=laid, times=times)
        return _ratio_figure(contention.options(**asked), found)

    (figure,) = drawn(1)
    (strip,) = figure.strips
    assert strip.label == "side by side: cpu:0"
    assert strip.samples == pytest.approx((2.0, 1.0))
    assert (strip.value, strip.low, strip.high, figure.centre) == (2.0, 1.75, 2.25, 1.0)
    two: dict[str, Any] = {"subjects": (contention.SOFTMAX, contention.GEMM), "tunable": (True, True)}
    assert drawn(1, **two)[0].strips[0].label == "side by side: softmax@numpy on cpu:0"
    assert [len(drawn(places)[0].strips) for places in (23, 24, 25)] == [23, 24, 24]
    assert drawn(0) == drawn(1, ContentionEffect(None, None, "unsure")) == []


def test_a_pick_that_never_changed_leaves_open_whether_it_does() -> None:
    steady, changing = (
        {("baseline", HERE): {1: "a", 2: second, 3: "a"}, ("baseline", WorkerSlot(0, "cpu:1")): {1: second}}
        for second in ("a", "b")
    )

    def changes(picked: Any) -> list[tuple[str, str | None]]:
        found = build_findings(contention.options(), analysed(picks=picked))
        return [(f.verdict, f.reason) for f in found if f.kind.startswith("mismatch_over")]

    never = [("unsure", "it never did in 2 comparisons"), ("unsure", "it never did in 1 comparison")]
    assert changes(steady) == never
    assert changes(changing) == [("yes", None), ("yes", None)]


# Ranks: what more of them buy, and what limits it.

NOT_KNOWN = Missing(code="not_measured", detail="it was not measured")


def number(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return between(value, low, high)


def scaled(shape: ScalingShape, status: str | None = "ok", **numbers: Estimate | Missing) -> AnalysedShape:
    return AnalysedShape(shape, {**dict.fromkeys(QUANTITIES, NOT_KNOWN), **numbers}, None, status)


def found_of(*each: AnalysedShape) -> ScalingAnalysis:
    many = tuple(one for one in each if one.shape.world > 1)
    nothing: Any = None
    lengths = dict.fromkeys(one.shape.sequence for one in each)
    ones = {one.shape.sequence: one for one in each if one.shape.world == 1}
    alone = tuple(ones.get(length, scaled(ScalingShape(length, 1, 1), None)) for length in lengths)
    return ScalingAnalysis(timings=nothing, alone=alone, scaled=many, scores=())


def ranks(*each: AnalysedShape, **asked: Any) -> str:
    return of_ranks(scaling.options(**asked), found_of(*each))


def limit(**numbers: Estimate | Missing) -> str:
    """Return what is said to be lost most, of two ranks in one ring."""
    told: Any = {"efficiency": number(0.75, 0.7, 0.8), **numbers}
    said = ranks(scaled(ScalingShape(64, 2, 2), speedup=number(1.5), **told))
    return said.partition("; ")[2]


def test_the_answer_is_about_most_ranks_then_the_largest_ring_then_the_longest_sequence() -> None:
    def first(*shapes: ScalingShape) -> ScalingShape:
        return find_largest_shape(found_of(*(scaled(shape, efficiency=number(0.5)) for shape in shapes))).shape

    assert first(ScalingShape(64, 4, 1), ScalingShape(128, 2, 2)) == ScalingShape(64, 4, 1)
    assert first(ScalingShape(128, 4, 1), ScalingShape(64, 4, 2)) == ScalingShape(64, 4, 2)
    assert first(ScalingShape(64, 4, 2), ScalingShape(128, 4, 2), ScalingShape(32, 4, 2)) == ScalingShape(128, 4, 2)
    unmeasured = found_of(scaled(ScalingShape(64, 8, 1)), scaled(ScalingShape(64, 2, 1), efficiency=number(0.5)))
    assert find_largest_shape(unmeasured).shape == ScalingShape(64, 2, 1)


@pytest.mark.parametrize(
    ("devices", "world", "named"),
    [
        (("cuda:0", "cuda:1"), 2, "2 GPUs"),
        (("cuda:0", "cuda:1", "cuda:2"), 2, "2 GPUs"),
        (("cuda:0",), 2, "2 ranks on 1 GPU"),
        (("cuda:0", "cuda:1"), 4, "4 ranks on 2 GPUs"),
        (("cpu:0", "cpu:1"), 2, "2 ranks"),
        (("cpu:0",), 2, "2 ranks"),
    ],
)
def test_ranks_are_named_by_what_they_run_on(devices: tuple[str, ...], world: int, named: str) -> None:
    plain = scaling.options(devices=devices, subject=scaling.GEMM, sequences=())
    assert name_ranks(plain, scaled(ScalingShape(0, world, 1))) == named
    attention = scaling.options(devices=devices)
    assert name_ranks(attention, scaled(ScalingShape(64, world, 1))) == f"{named} with independent sequences"
    assert name_ranks(attention, scaled(ScalingShape(64, world, world))) == f"{named} in one ring"


def test_several_rings_are_counted() -> None:
    assert name_ranks(scaling.options(), scaled(ScalingShape(64, 4, 2))) == "4 ranks in 2 rings"
    assert name_ranks(scaling.options(), scaled(ScalingShape(64, 6, 2))) == "6 ranks in 3 rings"


def test_the_answer_tells_what_ranks_buy_and_at_which_length() -> None:
    numbers: Any = {"speedup": number(1.5, 1.25, 1.75), "efficiency": number(0.75, 0.625, 0.875)}
    speedup = "speedup 1.50× (1.25–1.75)"
    end = ", efficiency 75 % (62–88); the limiting factor is unknown: it was not measured."
    ring, plain = scaled(ScalingShape(64, 2, 2), **numbers), scaled(ScalingShape(0, 2, 1), **numbers)
    assert ranks(ring) == f"2 ranks in one ring: {speedup} at 64 tokens{end}"
    assert ranks(ring, mode="weak") == f"2 ranks in one ring: {speedup} at 64 tokens per rank{end}"
    gemm = {"subject": scaling.GEMM, "sequences": ()}
    assert ranks(plain, **gemm) == ranks(plain, mode="weak", **gemm) == f"2 ranks: {speedup}{end}"
    lengthy = scaled(ScalingShape(64, 2, 1), **numbers)
    assert ranks(lengthy, mode="weak", **gemm) == f"2 ranks: {speedup} at 64 tokens{end}"


def test_nothing_is_lost_from_an_efficiency_of_one_on_unless_its_interval_says_otherwise() -> None:
    nothing = "no loss; more than 100 % comes from caches or noise."
    unsaid = "a loss is possible: the interval extends below 100 %."
    assert limit(efficiency=number(1.0, 0.98, 1.25)) == nothing
    assert limit(efficiency=number(1.25, 0.975, 1.5)) == unsaid
    assert limit(efficiency=number(1.0, 0.97, 1.25)) == unsaid
    assert limit(efficiency=number(1.0, math.nextafter(0.98, 0), 1.25)) == unsaid
    assert limit(efficiency=number(1.25)).startswith(nothing)
    assert limit(efficiency=number(math.nextafter(1.0, 0), 0.9, 1.1), split_rest=number(0.5)).startswith(
        "probably the largest"
    )


def test_the_smallest_factor_is_what_most_is_lost_to() -> None:
    factors: dict[str, Estimate | Missing] = {name: number(0.9, 0.85, 0.95) for name in EFFICIENCY_FACTORS}
    worst = {**factors, "split_balance": number(0.75, 0.7, 0.8)}
    assert limit(**worst) == "largest loss: load imbalance (×0.75), ranks wait for the slowest."
    assert limit(**{**worst, "split_shard": NOT_KNOWN}).startswith("largest loss: load imbalance (×0.75)")
    first = {**factors, "split_shard": number(0.75, 0.7, 0.8)}
    assert limit(**first) == "largest loss: smaller shards (×0.75), a shard takes longer than its part of the whole."


def test_little_is_lost_down_to_a_factor_of_98_in_a_hundred() -> None:
    assert limit(split_rest=number(0.98)) == "no factor loses more than 2 %."
    assert limit(split_rest=number(0.97, 0.96, 0.99)) == (
        "largest loss: other effects (×0.97), computation and transfers slow each other down."
    )
    below = math.nextafter(0.98, 0)
    assert limit(split_rest=number(below, 0.9, 0.99)).startswith("largest loss: other effects (×0.98)")


def test_a_loss_that_may_be_none_is_only_perhaps_one() -> None:
    exposed = "largest loss: exposed communication (×0.75), communication does not overlap computation."
    assert limit(split_exposed=number(0.75, 0.5, math.nextafter(1.0, 0))) == exposed
    assert limit(split_exposed=number(0.75, 0.5, 1.0)) == f"probably the {exposed}"
    assert limit(split_exposed=number(0.75, 0.5, 1.25)) == f"probably the {exposed}"
    assert limit(split_exposed=number(0.75)) == f"probably the {exposed}"


def test_the_same_ranks_are_told_at_two_other_lengths() -> None:
    def elsewhere(*others: AnalysedShape) -> str:
        main = scaled(ScalingShape(512, 4, 2), speedup=number(3.0), efficiency=number(0.75, 0.7, 0.8))
        return ranks(main, *others).partition("it was not measured")[2]

    def at(length: int, world: int = 4, ring: int = 2) -> AnalysedShape:
        return scaled(ScalingShape(length, world, ring), efficiency=number(0.5, 0.25, 0.75))

    assert elsewhere() == elsewhere(at(64, 2, 2), at(64, 4, 1)) == "."
    assert elsewhere(at(64)) == ". Efficiency 50 % (25–75) at 64 tokens."
    assert elsewhere(at(64), at(128)) == ". Efficiency 50 % (25–75) at 64 and 50 % (25–75) at 128 tokens."
    assert elsewhere(at(64), at(128), at(256)) == elsewhere(at(64), at(128))


def test_efficiencies_without_an_interval_and_shapes_without_a_number_are_counted() -> None:
    def doubts(*others: AnalysedShape, off: float | None = 0.125) -> str:
        ends = (None, None) if off is None else (0.75 - off, 0.75 + off)
        main = scaled(ScalingShape(512, 4, 2), speedup=number(3.0), efficiency=number(0.75, *ends))
        return ranks(main, *others).partition("it was not measured")[2]

    more = ": use more --benchmark-runs, or --repeat 3."
    assert doubts() == "."
    assert doubts(off=None) == f". No interval{more}"
    assert (
        doubts(scaled(ScalingShape(512, 2, 2), efficiency=number(0.5)), off=None)
        == f". 2 shapes have no interval{more}"
    )
    failed = [scaled(ScalingShape(length, 2, 2), "failed") for length in (1, 2, 3, 4)]
    named = ". Not measured: 1 tokens, 2 ranks in one ring"
    assert doubts(failed[0], scaled(ScalingShape(5, 2, 2), None), scaled(ScalingShape(6, 2, 2))) == f"{named}."
    three = f"{named}; 2 tokens, 2 ranks in one ring; 3 tokens, 2 ranks in one ring"
    assert doubts(*failed[:3]) == f"{three}."
    assert doubts(*failed) == f"{three} and more."
    assert doubts(failed[0], off=None) == f". No interval{more[:-1]}{named}."


def test_without_one_rank_the_answer_is_what_most_ranks_do() -> None:
    def timed_at(length: int, world: int, ring: int) -> AnalysedShape:
        return scaled(ScalingShape(length, world, ring), time=number(2000.0), throughput=number(1500.0))

    rate = "1.50 k tokens/s at"
    why = "2.000 ms per call; the speedup is unknown: it was not measured."
    assert ranks() == ranks(scaled(ScalingShape(64, 2, 2))) == "Nothing could be measured."
    assert ranks(timed_at(64, 4, 1), timed_at(128, 2, 2)) == (
        f"4 ranks with independent sequences: {rate} 64 tokens, {why}"
    )
    assert ranks(timed_at(128, 4, 1), timed_at(64, 4, 2)) == f"4 ranks in 2 rings: {rate} 64 tokens, {why}"
    assert ranks(timed_at(64, 2, 2), timed_at(128, 2, 2)) == f"2 ranks in one ring: {rate} 128 tokens, {why}"
    plain = {"subject": scaling.GEMM, "sequences": ()}
    assert ranks(timed_at(0, 2, 1), **plain) == f"2 ranks: 1.50 k calls/s, {why}"


def test_one_rank_alone_is_told_with_why_more_of_them_are_not() -> None:
    one = scaled(ScalingShape(64, 1, 1), time=number(2000.0), throughput=number(1500.0))
    done = "1 rank: 1.50 k tokens/s at 64 tokens, 2.000 ms per call"
    assert ranks(one) == f"{done}; no speedup was requested (use --nproc 2)."
    failed = scaled(ScalingShape(64, 2, 2), "failed", efficiency=Missing(code="failed", detail="no memory"))
    later = scaled(ScalingShape(64, 4, 2), "failed")
    assert ranks(one, failed, later) == f"{done}; the speedup is unknown: no memory."
    untold = scaled(ScalingShape(64, 2, 2), efficiency=Missing(code="no_baseline", detail="one rank was too slow"))
    assert ranks(one, untold) == f"{done}; the speedup is unknown: one rank was too slow."


# Energy: joules per token where they are told, times where they are not.

JOULES, SERVED = "decode_j_per_token", "j_per_output_token"


def asked_for(mode: str = "eager", batch: int = 1, **changes: int) -> EnergyCell:
    return EnergyCell.model_validate(
        {"mode": mode, "batch": batch, "input_tokens": 100, "output_tokens": 50, **changes}
    )


A_NOTE = Note(code="tensor_parallel", message="a note")
STALLED = Note(code="server_stalled", message="the server stalled: often", severity="warning")


def told_of(cell: EnergyCell | None = None, **changes: Any) -> EnergyRow:
    figures = changes.pop("figures", {JOULES: between(2.0, 1.75, 2.25)})
    return EnergyRow(cell=cell or asked_for(), figures=figures, **changes)


def energy(*rows: EnergyRow, left_out: dict[str, str] | None = None, gpu: str | None = "1 × Example") -> str:
    return of_energy(
        EnergyResult(
            name="n", model="m", backend="pytorch", config={}, gpu=gpu, started_at="now", rows=rows,
            skipped=left_out or {},
        )
    )  # fmt: skip


ONE = "m on 1 × Example: 2.00 J per output token decoding at batch 1 (±12 %, GPU only)."


def test_nothing_measured_is_told_with_the_first_reason() -> None:
    assert energy() == "Nothing could be measured."
    assert energy(left_out={"a": "no memory.", "b": "a stall"}) == "Nothing could be measured: no memory."


def test_the_first_and_the_last_cell_of_each_mode_are_shown() -> None:
    def ends(*cells: EnergyCell) -> list[EnergyCell]:
        return [row.cell for row in smallest_and_largest([told_of(cell) for cell in cells])]

    eager = [asked_for("eager", batch) for batch in (1, 2, 4, 8)]
    graphs = [asked_for("graphs", batch) for batch in (1, 2, 4)]
    assert ends(eager[0]) == eager[:1]
    assert ends(*eager[:2]) == eager[:2]
    assert ends(*eager) == [eager[0], eager[3]]
    assert ends(*graphs, *eager) == [graphs[0], graphs[2], eager[0], eager[3]]
    assert ends(eager[0], *graphs) == [eager[0], graphs[0], graphs[2]]


def test_whole_requests_stand_for_a_token_where_nothing_is_taken_apart() -> None:
    one, two = asked_for(output_tokens=1), asked_for(output_tokens=2)
    server = asked_for("server", concurrency=16)
    assert [main_figure(cell) for cell in (one, two, server)] == [SERVED, JOULES, SERVED]
    assert [cell.load for cell in (one, server)] == ["batch 1", "16 at once"]
    figures = {JOULES: between(1.0), SERVED: between(4.0)}
    energies = [token_energy(told_of(cell, figures=figures)) for cell in (one, two, server)]
    assert [each and each.value for each in energies] == [4.0, 1.0, 4.0]


def test_joules_of_every_mode_are_told_and_their_unit_once() -> None:
    assert energy(told_of()) == ONE
    assert energy(told_of(), gpu=None) == "m: 2.00 J per output token decoding at batch 1 (±12 %, GPU only)."
    cells = [asked_for(mode, batch) for mode in ("eager", "graphs") for batch in (1, 2, 4)]
    assert energy(*map(told_of, cells)) == (
        "m on 1 × Example: in eager 2.00 J per output token decoding at batch 1 (±12 %, GPU only), 2.00 at batch 4 "
        "(±12 %); in graphs 2.00 at batch 1 (±12 %), 2.00 at batch 4 (±12 %)."
    )
    assert energy(*map(told_of, cells[:2])) == (
        "m on 1 × Example: 2.00 J per output token decoding at batch 1 (±12 %, GPU only), 2.00 at batch 2 (±12 %)."
    )
    served = told_of(asked_for("server", concurrency=16), figures={SERVED: between(0.5)})
    assert energy(served) == "m on 1 × Example: 0.500 J per output token at 16 at once (no interval, GPU only)."


def test_without_joules_the_speed_is_told_and_why() -> None:
    fast, slow = between(200.0), between(50.0)
    both = told_of(
        figures={"decode_tokens_per_s": fast, "output_tokens_per_s": slow}, missing_reasons={JOULES: "no GPU."}
    )
    only = told_of(asked_for("graphs"), figures={"output_tokens_per_s": slow}, missing_reasons={JOULES: "another"})
    start = "m on 1 × Example:"
    assert energy(both, only) == (
        f"{start} 200 tokens/s at batch 1, eager, 50.0 tokens/s at batch 1, graphs; no energy reported: no GPU."
    )
    assert energy(only) == f"{start} 50.0 tokens/s at batch 1, graphs; no energy reported: another."
    assert energy(told_of(figures={})) == f"{start} no token came while it was measured."


def test_joules_of_few_processes_do_not_stand_for_a_run() -> None:
    def few(*counts: int) -> str:
        ends: Any = {"scope": "process", "low": 1.75, "high": 2.25}
        rows = [
            told_of(asked_for(batch=1 + number), figures={JOULES: between(2.0, **ends, n=n)})
            for number, n in enumerate(counts)
        ]
        return energy(*rows).partition("). ")[2]

    end = "other processes may differ by more than the interval (scenario.repeats: 3 or more cover that)."
    assert few(1) == f"Joules are of one process: {end}"
    assert few(2) == f"Joules are of 2 processes: {end}"
    assert few(1, 2) == few(2, 1) == f"Joules are of 2 processes: {end}"


def test_a_server_that_stalled_is_told_with_how_many_cells_it_did_so_in() -> None:
    stalled, fine = told_of(notes=(A_NOTE, STALLED)), told_of(asked_for(batch=2), notes=(A_NOTE,))
    assert energy(stalled) == f"{ONE} The server stalled meanwhile, and that time counts."
    assert energy(fine, stalled).endswith("The server stalled meanwhile in 1 of 2 cells, and that time counts.")
    assert "stalled" not in energy(fine)


def test_modes_in_which_the_gpu_waited_are_told_with_how_long() -> None:
    def waited(*shares: tuple[str, float]) -> str:
        figures = {JOULES: between(2.0, 1.75, 2.25)}
        rows = [told_of(asked_for(mode), figures={**figures, "busy_share": between(busy)}) for mode, busy in shares]
        return energy(*rows).partition("). ")[2]

    start = "Host-bound: the GPU waited for the host in"
    assert waited(("eager", 0.7)) == ""
    assert waited(("eager", math.nextafter(0.7, 0))) == f"{start} eager 30 % of the time."
    assert waited(("eager", 0.25), ("eager", 0.5), ("graphs", 0.5), ("graphs", 0.502)) == (
        f"{start} eager 50–75 %, in graphs 50 % of the time."
    )


def test_cells_that_are_missing_or_not_whole_are_counted() -> None:
    whole, part = told_of(), told_of(asked_for(batch=2), partial=True)
    assert energy(whole, left_out={"a": "no memory.", "b": "c"}) == f"{ONE} 2 of 3 cells left out (no memory)."
    assert energy(told_of(partial=True)) == f"{ONE} 1 of 1 only in part."
    assert energy(part, whole, part, left_out={"a": "b"}).endswith(
        " 1 of 4 cells left out (b) and 2 of 4 only in part."
    )


def test_numbers_of_no_real_device_are_said_to_be_so() -> None:
    real = told_of()
    assert energy(told_of(origin="fake")) == f"{ONE} The numbers are of a fake device."
    assert energy(told_of(origin="simulated")) == f"{ONE} It is simulated."
    assert energy(real, told_of(origin="fake"), told_of(origin="simulated")).endswith(
        "The numbers are of a fake device."
    )
