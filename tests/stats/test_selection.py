"""Races whose true best is known; the benchmark has the same counts in full."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.selection import CandidateRank, Race
from tests.stats.chances import at_least, at_most
from tests.stats.races import RACE_NOISES, Field, RaceNoise, Races, race, races

REPEATS = 128


def run(times_us: list[list[float]], **options: float) -> Race:
    """Return the race after rounds of known times; what is given for one that has left is not taken."""
    running = Race.start(len(times_us[0]), **options)
    for row in times_us:
        running = running.after({c: row[c] for c in running.contenders})
    return running


def noisy_rounds(seed: int, truths_us: list[float], rounds: int, noise: float = 0.02) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    strays = rng.standard_normal((rounds, len(truths_us)))
    return [list(row) for row in np.array(truths_us) * np.exp(noise * strays)]


TRUTHS = st.lists(st.floats(1.0, 30.0), min_size=2, max_size=8)
SEEDS = st.integers(0, 2**32)


@cache
def simulated(family: RaceNoise) -> Races:
    return races(family, 10, REPEATS, seed=1)


def right(outcome: Races) -> int:
    return sum(outcome.counts[f"right {name}"] for name in outcome.stated)


@pytest.mark.full
@pytest.mark.parametrize("family", RACE_NOISES)
def test_a_winner_is_within_the_tolerance_at_least_as_often_as_is_stated(family: RaceNoise) -> None:
    outcome = simulated(family)
    for name, stated in outcome.stated.items():
        n = outcome.counts[f"in {name}"]
        assert outcome.counts[f"right {name}"] >= at_least(stated / n, n)
    assert right(outcome) >= at_least(0.95, REPEATS)


@pytest.mark.full
@pytest.mark.parametrize("family", RACE_NOISES)
def test_the_best_is_hardly_ever_lost_and_a_decision_seldom_wrong(family: RaceNoise) -> None:
    counts = simulated(family).counts
    assert counts["lost"] <= at_most(0.0025, REPEATS)
    assert counts["decided wrongly"] <= at_most(0.05, counts["decided"])


@pytest.mark.full
@pytest.mark.parametrize("family", RACE_NOISES)
def test_the_regret_is_small_and_not_stated_much_smaller_than_it_is(family: RaceNoise) -> None:
    outcome = simulated(family)
    assert np.median(outcome.regrets) <= 50  # hundredths of a percent
    assert sum(outcome.regrets) <= 1.2 * outcome.expected_regret


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 20])
def test_what_is_stated_holds_on_average_where_each_candidates_noise_remembers(count: int) -> None:
    outcome = races("AR(1) 0.6", count, REPEATS, seed=2, shared=False)
    assert right(outcome) >= at_least(sum(outcome.stated.values()) / REPEATS, REPEATS)


@pytest.mark.full
def test_one_that_is_two_tolerances_ahead_of_all_others_is_found_about_as_often_as_is_stated() -> None:
    outcome = races("independent", 10, REPEATS, seed=3, fields=("one ahead",))
    assert right(outcome) >= at_least(sum(outcome.stated.values()) / REPEATS, REPEATS)


@pytest.mark.parametrize(
    ("kind", "count", "rounds"), [("10 % ahead", 2, 4), ("10 % ahead", 100, 4), ("spread", 300, 40)]
)
def test_what_is_far_behind_costs_few_rounds(kind: Field, count: int, rounds: int) -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        done, truth, samples = race(kind, "independent", count, rng, limit=rounds, noise=0.01, shared=True)
        assert int(np.argmin(truth)) in done.contenders
        assert samples <= 4 * count
    if kind == "10 % ahead":
        assert len(done.contenders) <= 2


def test_twice_as_slow_ones_leave_after_two_rounds_where_nothing_spikes() -> None:
    done = run(noisy_rounds(7, [10.0] + [20.0] * 60, 2, noise=0.01))
    assert done.contenders == (0,)
    assert done.decided


def test_equally_fast_ones_are_decided_together() -> None:
    done, _, _ = race("equal", "independent", 10, np.random.default_rng(8), limit=100, noise=0.01, shared=True)
    assert done.decided
    assert len(done.contenders) == 10
    assert done.standing().probability > 0.95
    assert all(place.low is not None and place.low > -0.01 for place in done.standing().ranking)


def test_what_decides_a_race_is_what_the_ranking_says() -> None:
    """Two that are equally fast, after many others have left."""
    running, rng = Race.start(40), np.random.default_rng(16)
    while not running.decided:
        strays = np.exp(0.01 * rng.standard_normal(40))
        running = running.after({c: (10.0 if c < 2 else 15.0) * strays[c] for c in running.contenders})
    assert running.contenders == (0, 1)
    places = running.standing().ranking
    assert all(place.low is not None and place.low > 1 / 1.01 - 1 for place in places)
    assert all(place.low is not None and place.low > 0.2 for place in places[2:])


def test_a_lower_tolerance_takes_more_rounds() -> None:
    rows = noisy_rounds(9, [10.0] * 3, 400, noise=0.01)
    took = []
    for tolerance in (0.05, 0.01):
        running = Race.start(3, tolerance=tolerance)
        while not running.decided:
            running = running.after(dict(enumerate(rows[len(running.rows)])))
        took.append(len(running.rows))
    assert took[0] < took[1] < 400


@settings(deadline=None, max_examples=30)
@given(TRUTHS, SEEDS, st.integers(1, 12))
def test_the_order_of_candidates_does_not_matter(truths: list[float], seed: int, rounds: int) -> None:
    rows = np.array(noisy_rounds(seed, truths, rounds))
    order = np.random.default_rng(seed).permutation(len(truths))
    here, there = run(rows.tolist()), run(rows[:, order].tolist())
    assert {int(order[c]) for c in there.contenders} == set(here.contenders)
    assert here.decided == there.decided
    one, other = here.standing(), there.standing()
    assert other.winner is not None
    assert order[other.winner] == one.winner
    assert other.probability == pytest.approx(one.probability)
    assert other.expected_regret == pytest.approx(one.expected_regret)


@settings(deadline=None, max_examples=30)
@given(TRUTHS, SEEDS, st.integers(1, 12), st.floats(1e-3, 1e6))
def test_the_unit_of_time_does_not_matter(truths: list[float], seed: int, rounds: int, unit: float) -> None:
    rows = np.array(noisy_rounds(seed, truths, rounds))
    here, there = run(rows.tolist()), run((unit * rows).tolist())
    assert (here.contenders, here.decided) == (there.contenders, there.decided)
    one, other = here.standing(), there.standing()
    assert one.winner == other.winner
    assert other.probability == pytest.approx(one.probability, abs=1e-3)
    assert [place.behind for place in other.ranking] == pytest.approx([place.behind for place in one.ranking])


@pytest.mark.parametrize("seed", range(5))
def test_what_slows_whole_rounds_does_not_matter(seed: int) -> None:
    rows = np.array(noisy_rounds(seed, [10.0, 10.5, 11.0, 12.0, 14.0], 12, noise=0.01))
    clock = np.repeat([1.0, 1.2, 1.0], 4)[:, None]
    here, there = (run(r.tolist()).standing() for r in (rows, clock * rows))
    assert here.winner == there.winner == 0
    assert here.probability == pytest.approx(there.probability, abs=0.02)
    for one, other in zip(here.ranking, there.ranking, strict=True):
        assert one.candidate == other.candidate
        assert one.behind == pytest.approx(other.behind, abs=0.02)


@settings(deadline=None, max_examples=40)
@given(TRUTHS, SEEDS, st.integers(1, 15), st.data())
def test_a_failed_candidate_never_wins_and_who_left_is_not_asked_again(
    truths: list[float], seed: int, rounds: int, data: st.DataObject
) -> None:
    rows = noisy_rounds(seed, truths, rounds)
    fails_at = data.draw(st.lists(st.none() | st.integers(0, rounds), min_size=len(truths), max_size=len(truths)))
    running, failed, left = Race.start(len(truths)), set(), set()
    for turn, row in enumerate(rows):
        before = running.contenders
        now = {c for c in before if fails_at[c] == turn}
        failed |= now
        running = running.after(
            {c: math.nan if c in now and c % 2 else row[c] for c in before if c not in now or c % 2}
        )
        assert set(running.contenders) <= set(before) - now
        left |= set(before) - set(running.contenders)
        assert not left & set(running.contenders)
        standing = running.standing()
        assert running.failed == failed
        assert standing.winner not in failed
        assert (standing.winner is None) == (len(failed) == len(truths))
        assert 0 <= standing.probability <= 1
        assert standing.expected_regret >= 0
        assert sorted(place.candidate for place in standing.ranking) == list(range(len(truths)))
        assert {p.candidate for p in standing.ranking if p.behind is None} == failed


def test_nothing_is_known_before_the_first_round() -> None:
    standing = Race.start(2).standing()
    assert (standing.winner, standing.probability, standing.expected_regret) == (None, 0.0, math.inf)
    assert standing.ranking == (CandidateRank(0, None, None, None, 0), CandidateRank(1, None, None, None, 0))
    assert Race.start(0).decided
    assert Race.start(0).standing().ranking == ()


def test_one_candidate_wins_as_soon_as_it_has_run() -> None:
    assert not Race.start(1).decided
    done = run([[5.0]])
    assert done.decided
    standing = done.standing()
    assert (standing.winner, standing.probability, standing.expected_regret) == (0, 1.0, 0.0)
    assert standing.ranking == (CandidateRank(0, 0.0, 0.0, 0.0, 1),)


def test_where_everybody_fails_nobody_wins() -> None:
    done = run([[1.0, 2.0], [math.nan, math.inf]])
    assert done.decided
    assert done.contenders == ()
    assert done.standing().winner is None
    assert [place.rounds for place in done.standing().ranking] == [1, 1]


@pytest.mark.parametrize("time_us", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_a_failure(time_us: float) -> None:
    done = Race.start(3).after({0: 3.0, 1: 2.0, 2: time_us})
    assert (done.contenders, done.failed) == ((0, 1), frozenset({2}))


def test_where_all_contenders_fail_the_best_of_those_that_left_wins_and_it_is_not_sure() -> None:
    rows = noisy_rounds(10, [1.0, 1.0, 1.3, 1.3], 3, noise=0.005)
    done = run(rows)
    assert done.contenders == (0, 1)
    standing = done.after({}).standing()
    assert standing.winner in {2, 3}
    assert standing.probability < 0.99


def test_a_time_for_one_that_left_is_refused() -> None:
    with pytest.raises(ValueError, match="not among the contenders"):
        Race.start(2).after({0: 1.0, 5: 1.0})


def test_times_that_never_change_are_compared_as_they_are() -> None:
    done = run([[5.0, 5.0, 5.0, 6.0]] * 40)
    assert done.decided
    assert done.contenders == (0, 1, 2)
    assert done.standing().ranking[-1].behind == pytest.approx(0.2)


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01, 0.03])
def test_steps_of_32_ns_do_not_hide_the_fastest(noise: float) -> None:
    rows = np.array(noisy_rounds(11, [2.0, 2.15, 2.3, 3.0], 60, noise))
    standing = run((0.032 * np.round(rows / 0.032)).tolist()).standing()
    assert standing.winner == 0
    assert standing.probability > 0.95
    assert [place.behind for place in standing.ranking] == pytest.approx([0.0, 0.075, 0.15, 0.5], abs=0.05)


def test_noise_finer_than_the_timers_step_leaves_doubt_between_steps() -> None:
    """Both take between 62 and 63 steps of 32 ns, and nearly always read the same."""
    rows = np.array(noisy_rounds(12, [2.0, 2.005], 60, noise=0.003))
    stepped = 0.032 * np.round(rows / 0.032)
    fine, coarse = (run(r.tolist()).standing().ranking[1] for r in (rows, stepped))
    assert fine.high is not None
    assert fine.low is not None
    assert coarse.high is not None
    assert coarse.low is not None
    assert coarse.high - coarse.low > fine.high - fine.low


def test_one_spike_in_two_or_three_rounds_throws_nobody_out_and_misleads_nobody() -> None:
    for rounds in (2, 3):
        rows = noisy_rounds(13, [10.0] + [11.0] * 30, rounds, noise=0.005)
        rows[-1][0] *= 5
        done = run(rows)
        assert 0 in done.contenders
        assert done.standing().winner == 0


def test_the_ranking_says_how_far_behind_each_is_and_how_many_rounds_it_took_part_in() -> None:
    standing = run(noisy_rounds(14, [10.0, 10.5, 12.0, 30.0], 30, noise=0.01)).standing()
    assert [place.candidate for place in standing.ranking] == [0, 1, 2, 3]
    for place, truth in zip(standing.ranking, (0.0, 0.05, 0.2, 2.0), strict=True):
        assert place.low is not None
        assert place.high is not None
        assert place.low <= truth <= place.high
    rounds = [place.rounds for place in standing.ranking]
    assert rounds == sorted(rounds, reverse=True)
    assert rounds[-1] <= 5


def test_the_same_race_gives_the_same_answer() -> None:
    done = run(noisy_rounds(15, [10.0, 10.1, 10.2], 6))
    assert done.standing() == done.standing()
