"""A small version of what `benchmarks/decisions.py` publishes: decisions that are seldom wrong, and still made."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.decisions_detectors import NEVER, SIMPLE, oracle, ours
from benchmarks.decisions_noise import CHANGED_AT, FAMILIES, WITHIN, Family, History, history
from benchmarks.decisions_oracles import alarm_level
from benchmarks.decisions_regression_tables import power
from benchmarks.decisions_tables import Row
from benchmarks.decisions_thresholds import AS_RUN, CURVES, LOOK_BY_LOOK, STEEP, simulate, truth

APART = 10**6
"""Numbers of chunks and histories from here on are no part of the benchmark."""


def fewer(seen: History) -> History:
    """Return half of a history's series, for the sake of time."""
    return History(seen.logs[::2], seen.hosts[::2])


@pytest.mark.parametrize("curve", ["flat at ×1.0", "medium, ×1.4 a size", "steep, ×2 a size"])
def test_thresholds_are_rarely_too_low_and_mostly_right(curve: str) -> None:
    found = simulate(curve, "10 %", APART, repeats=30)
    for rule in (AS_RUN, LOOK_BY_LOOK):
        row = Row.of(rule, found[rule])
        assert row.too_low <= 1
        assert row.near >= 27
        assert curve not in STEEP or row.exact >= 21


def test_one_number_a_side_is_often_too_low() -> None:
    row = Row.of("one number a side", simulate("flat at ×1.0", "20 %", APART, repeats=12)["one number a side"])
    assert row.too_low >= 6


def test_the_truth_is_where_all_larger_sizes_clear_the_margin() -> None:
    rng = np.random.default_rng(0)
    places = {curve: truth(CURVES[curve](rng)) for curve in CURVES}
    assert (places["never, ×0.7"], places["always, ×2.5"], places["fails again in the middle"]) == (8, 0, 4)
    assert (places["steep, all sizes clear"], places["steep, only the last clears"]) == (0, 7)


@pytest.mark.parametrize("family", FAMILIES)
def test_stable_series_rarely_give_an_alarm(family: Family) -> None:
    told = ours(fewer(history(family, 0.0, APART)))
    assert sum(run != NEVER for run in told) <= 3


@pytest.mark.full
@pytest.mark.parametrize("family", ["independent", "spikes"])
def test_a_step_of_a_tenth_is_told_within_five_runs_nearly_as_often_as_an_oracle_tells_it(family: Family) -> None:
    seen = fewer(history(family, 0.10, APART))
    told, quiet = power(ours(seen), 0.10)
    best, _ = power(oracle(family, alarm_level(family, series=500), seen), 0.10)
    assert quiet >= 22
    assert told >= 0.75 * best


def test_every_rule_judges_a_run_by_what_was_known_then() -> None:
    whole = history("spikes", 0.0, APART)
    for rule in SIMPLE.values():
        early, late = rule(whole.upto(70)), rule(whole)
        assert early == [run if run < 70 else NEVER for run in late]


def test_histories_are_the_same_for_their_number_and_change_where_they_should() -> None:
    assert np.array_equal(history("AR(1) 0.6", 0.05, 3).logs, history("AR(1) 0.6", 0.05, 3).logs)
    for change, within in WITHIN.items():
        assert history("independent", change, 1).logs.shape[1] == CHANGED_AT + within
