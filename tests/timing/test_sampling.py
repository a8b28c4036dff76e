"""When to stop: once warm, once precise, when the budget is spent, or when no number of samples would help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.stats.intervals import find_competing_levels
from assay.stats.sequential import InterimLook
from assay.timing.sampling import (
    MAX_SAMPLES,
    SampleBatch,
    WarmUp,
    collect_samples,
    concatenate_batches,
    looks_between,
    median_interval,
    plan_budget_looks,
    warm_up,
)
from tests.timing.faking import BATCH_S, PER_BATCH, Known, between, noisy

if TYPE_CHECKING:
    from assay.timing.sampling import Samples
    from tests.timing.faking import VirtualTime

WARM = WarmUp(settled=True, batches=3, samples_per_batch=PER_BATCH, batch_s=BATCH_S)


def test_a_steady_series_is_warm_after_a_few_batches(virtual: VirtualTime) -> None:
    found = warm_up(Known(virtual, noisy(10.0)), budget_s=10.0)
    assert found.settled
    assert 2 <= found.batches <= 4
    assert found.samples_per_batch == PER_BATCH
    assert found.batch_s == pytest.approx(BATCH_S)


def test_a_series_that_decays_is_waited_for(virtual: VirtualTime) -> None:
    noise = noisy(1.0, 0.001)

    def decaying(first: int, n: int) -> Samples:
        return 10 * (1 + np.exp(-np.arange(first, first + n) / 20)) * noise(first, n)

    found = warm_up(Known(virtual, decaying), budget_s=10.0)
    assert found.settled
    assert math.exp(-found.batches * PER_BATCH / 20) < 0.05


def test_a_series_that_never_settles_ends_its_warm_up_with_a_fifth_of_the_budget(virtual: VirtualTime) -> None:
    began = virtual.now_s
    rising = Known(virtual, lambda first, n: np.arange(first, first + n, dtype=np.float64) + 1)
    found = warm_up(rising, budget_s=1.0)
    assert not found.settled
    assert virtual.now_s - began == pytest.approx(0.2, abs=2 * BATCH_S)


def test_a_clock_that_moves_is_no_warm_up_where_cycles_are_counted(virtual: VirtualTime) -> None:
    slowing = Known(virtual, lambda first, n: np.full(n, 100.0 + first), mhz=lambda batch: 1e5 / (100 + 8 * batch - 8))
    assert warm_up(slowing, budget_s=1.0).settled


def test_one_batch_longer_than_the_budget_is_all_the_warm_up_there_is(virtual: VirtualTime) -> None:
    found = warm_up(Known(virtual, noisy(10.0)), budget_s=BATCH_S)
    assert (found.settled, found.batches) == (False, 1)


@pytest.mark.parametrize("precision", [0.05, 0.01, 0.002])
def test_it_stops_as_soon_as_it_is_precise_enough_and_not_before(virtual: VirtualTime, precision: float) -> None:
    collected = collect_samples(Known(virtual, noisy(10.0, 0.02)), WARM, precision=precision, budget_s=100.0)
    assert collected.stopped == "precise enough"
    samples = collected.samples["call_us"]
    assert len(samples) == collected.look.n
    within = median_interval(samples, collected.look, precision)
    assert within is not None
    assert (within[1] - within[0]) / 2 <= precision * float(np.median(samples))
    assert within[0] < 10.0 < within[1]


def test_more_precision_takes_more_samples(virtual: VirtualTime) -> None:
    counts = [
        collect_samples(Known(virtual, noisy(10.0, 0.02)), WARM, precision=p, budget_s=100.0).look.n
        for p in (0.05, 0.005)
    ]
    assert counts[0] < counts[1]


def test_when_the_budget_is_spent_it_stops_and_keeps_what_it_has(virtual: VirtualTime) -> None:
    began = virtual.now_s
    collected = collect_samples(Known(virtual, noisy(10.0, 0.5)), WARM, precision=0.0001, budget_s=0.5)
    assert collected.stopped == "budget spent"
    assert virtual.now_s - began == pytest.approx(0.5, abs=0.05)
    assert len(collected.samples["call_us"]) == collected.look.n == pytest.approx(0.5 / BATCH_S * PER_BATCH, rel=0.1)


def test_at_least_one_batch_is_taken(virtual: VirtualTime) -> None:
    collected = collect_samples(Known(virtual, noisy(10.0)), WARM, precision=0.01, budget_s=1e-9)
    assert len(collected.samples["call_us"]) >= 1


def test_two_levels_end_it_early_with_a_word(virtual: VirtualTime) -> None:
    began = virtual.now_s
    collected = collect_samples(Known(virtual, between(10.0, 13.0, every=6)), WARM, precision=0.01, budget_s=100.0)
    assert collected.stopped == "two levels"
    assert virtual.now_s - began < 60.0


def test_two_levels_closer_together_than_the_precision_do_not_keep_it_from_ending(virtual: VirtualTime) -> None:
    collected = collect_samples(Known(virtual, between(10.0, 10.1, every=6)), WARM, precision=0.01, budget_s=100.0)
    assert collected.stopped == "precise enough"


def test_two_levels_closer_together_than_the_precision_are_an_interval() -> None:
    samples = between(10.0, 10.1)(0, 400)
    assert find_competing_levels(samples) is not None
    within = median_interval(samples, InterimLook(400, 0.1), 0.01)
    assert within is not None
    assert within[0] <= 10.0 * 1.001
    assert within[1] >= 10.1 * 0.999


def test_levels_far_apart_have_no_interval() -> None:
    samples = between(10.0, 13.0)(0, 400)
    assert median_interval(samples, InterimLook(400, 0.1), 0.01) is None


def test_between_is_called_after_every_batch(virtual: VirtualTime) -> None:
    calls: list[float] = []
    instrument = Known(virtual, noisy(10.0))
    collect_samples(instrument, WARM, precision=0.05, budget_s=1.0, after_batch=lambda: calls.append(virtual.now_s))
    assert len(calls) == instrument.batches


def test_looks_are_planned_before_the_first_sample_and_end_with_the_budget() -> None:
    planned = plan_budget_looks(WARM, budget_s=1.0)
    assert planned[0].n == 16
    assert planned[-1].n == pytest.approx(1.0 / BATCH_S * PER_BATCH, abs=1)
    assert sum(look.share for look in planned) == pytest.approx(1.0)


@pytest.mark.parametrize("budget_s", [1e-9, BATCH_S, 1e9])
def test_looks_can_be_planned_for_any_budget(budget_s: float) -> None:
    planned = plan_budget_looks(WARM, budget_s)
    assert 1 <= planned[0].n <= planned[-1].n <= 100_000


def test_samples_of_several_batches_are_joined_by_quantity_in_order() -> None:
    batches = [
        SampleBatch({"call_us": np.array([1.0, 2.0])}),
        SampleBatch({"call_us": np.array([3.0]), "cycles": np.array([9.0])}),
    ]
    assert {name: values.tolist() for name, values in concatenate_batches(batches).items()} == {
        "call_us": [1.0, 2.0, 3.0],
        "cycles": [9.0],
    }


@pytest.mark.parametrize("batches", [55, 199, 270, 999])
def test_the_last_look_is_at_the_end_of_the_budget_whatever_number_of_samples_that_is(
    virtual: VirtualTime, batches: int
) -> None:
    began, budget_s = virtual.now_s, batches * BATCH_S
    collected = collect_samples(Known(virtual, noisy(10.0, 0.5)), WARM, precision=1e-4, budget_s=budget_s)
    assert virtual.now_s - began == pytest.approx(budget_s, abs=2 * BATCH_S)
    assert collected.look.n == pytest.approx(batches * PER_BATCH, abs=2 * PER_BATCH)
    assert not collected.look.early


@pytest.mark.parametrize("slower", [0.3, 5.0])
def test_a_batch_that_was_not_typical_does_not_leave_budget_unused(virtual: VirtualTime, slower: float) -> None:
    began = virtual.now_s
    warm = WarmUp(settled=True, batches=3, samples_per_batch=PER_BATCH, batch_s=slower * BATCH_S)
    collected = collect_samples(Known(virtual, noisy(10.0, 0.5)), warm, precision=1e-4, budget_s=0.5)
    assert collected.stopped == "budget spent"
    assert virtual.now_s - began == pytest.approx(0.5, abs=2 * BATCH_S)


@pytest.mark.parametrize("last", [7, 64, 1999, 54_321])
def test_planned_looks_end_with_just_the_last_and_share_the_whole_error(last: int) -> None:
    looks = looks_between(64, last)
    assert looks[-1].n == last
    assert [look.n for look in looks] == sorted({look.n for look in looks})
    assert sum(look.share for look in looks) == pytest.approx(1.0)


def test_times_that_drift_do_not_end_early_however_precise_they_seem(virtual: VirtualTime) -> None:
    began, noise = virtual.now_s, noisy(10.0, 0.005)

    def rising(first: int, n: int) -> Samples:
        return noise(first, n) * (1 + 1e-4 * np.arange(first, first + n))

    collected = collect_samples(Known(virtual, rising), WARM, precision=0.002, budget_s=1.0)
    assert collected.stopped == "budget spent"
    assert virtual.now_s - began == pytest.approx(1.0, abs=2 * BATCH_S)


def test_a_limit_on_samples_is_not_called_the_budget(virtual: VirtualTime) -> None:
    collected = collect_samples(Known(virtual, noisy(10.0, 0.5)), WARM, precision=1e-5, budget_s=1000.0)
    assert (collected.stopped, collected.look.n) == ("sample limit", MAX_SAMPLES)
