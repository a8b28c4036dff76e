"""Distributions, outliers, associations, components, rounds and draws at their edges, on numbers worked out by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import special, stats

from assay.stats import correlation, intervals, numerics, outliers, selection, variance
from assay.stats.correlation import PartialCorrelation, partial_correlation
from assay.stats.numerics import (
    LongRunVariance,
    binomial_beyond,
    f_quantile,
    incomplete_beta,
    normal_quantile,
    student_cdf,
    student_quantile,
)
from assay.stats.selection import NoiseStats
from assay.stats.shape import TwoLevels
from assay.stats.variance import VarianceComponent

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]


def always(value: object) -> Callable[..., object]:
    """Return a function that says the same of everything."""
    return lambda *_, **__: value


@pytest.mark.parametrize("freedom", [0.5, 1.0, 2.0, 3.5, 30.0, 1e4])
def test_students_t_is_scipys_from_the_middle_to_the_far_ends(freedom: float) -> None:
    for p in (1e-300 if freedom >= 30 else 1e-13, 1e-12, 0.001, 0.025, 0.3, 0.499999, 0.500001, 0.7, 0.975, 0.9999):
        assert student_quantile(p, freedom) == pytest.approx(float(special.stdtrit(freedom, p)), rel=1e-8)
    for t in (-50.0, -1.0, -0.999, -1e-6, 0.0, 1e-6, 0.999, 1.0, 1.001, 3.0, 50.0):
        assert student_cdf(t, freedom) == pytest.approx(float(special.stdtr(freedom, t)), rel=1e-10)


def test_students_t_of_endless_freedom_is_normal() -> None:
    for p in (1e-9, 0.025, 0.4, 0.6, 0.999):
        assert student_quantile(p, math.inf) == normal_quantile(p) or p > 0.5
        assert student_quantile(p, math.inf) == pytest.approx(float(special.ndtri(p)), rel=1e-9)
    for t in (-3.0, -0.5, 0.0, 0.5, 3.0):
        assert student_cdf(t, math.inf) == pytest.approx(float(special.ndtr(t)), rel=1e-12)
    assert (student_quantile(0.5, 1.0), student_quantile(0.5, math.inf)) == (0.0, 0.0)
    for low, high in ((-0.1, 1.1), (0.0, 1.0)):
        assert (student_quantile(low, 4), student_quantile(high, 4)) == (-math.inf, math.inf)


def test_the_least_chance_there_is_has_a_quantile() -> None:
    for freedom in (1e3, 1e4, 1e5, 1e6):
        found = student_quantile(5e-324, freedom)
        assert -45 < found < -38 or freedom < 1e4
        assert math.isfinite(found)


@pytest.mark.parametrize(("above", "below"), [(1, 1), (1, 50), (50, 1), (4, 3), (50, 2), (7, 400)])
def test_quantiles_of_f_are_scipys(above: int, below: int) -> None:
    for p in (0.001, 0.05, 0.5, 0.51, 0.95, 0.99, 0.9999):
        assert f_quantile(p, above, below) == pytest.approx(float(stats.f.ppf(p, above, below)), rel=1e-10)
    assert f_quantile(1.0, above, below) == math.inf


def test_the_binomial_and_beta_probabilities_are_scipys() -> None:
    for k, n in ((0, 1), (0, 5), (3, 10), (9, 10), (49, 50)):
        for p in (0.1, 0.5, 0.9):
            assert binomial_beyond(k, n, p) == pytest.approx(float(special.bdtrc(k, n, p)), rel=1e-10)
    assert [binomial_beyond(k, 3, 0.5) for k in (-1, 0, 2, 3, 4)] == pytest.approx([1.0, 7 / 8, 1 / 8, 0.0, 0.0])
    for a, b in ((0.5, 0.5), (3.0, 20.0), (20.0, 3.0), (1.0, 1.0)):
        for x in (-1.0, 0.0, 1e-9, 0.2, 0.5, 0.9, 1.0, 2.0):
            expected = float(special.betainc(a, b, min(max(x, 0.0), 1.0)))
            assert incomplete_beta(a, b, x) == pytest.approx(expected, rel=1e-10)


def test_a_search_ends_where_it_no_longer_moves_and_after_200_steps_at_the_latest() -> None:
    places: list[float] = []

    def walking(following: list[float]) -> Callable[[float], tuple[bool, float]]:
        places.clear()
        ahead = iter(following)

        def step(place: float) -> tuple[bool, float]:
            places.append(place)
            return True, next(ahead)

        return step

    solved = numerics._newton_root
    assert (solved(walking([2.0, 2.0 + 1e-15]), 1.0, math.inf), places) == (2.0 + 1e-15, [1.0, 2.0])
    near = 1 + 5 * 2.0**-52  # 1.11e-15 away
    assert solved(walking([near, 3.0, 3.0 + 1e-15]), 1.0, math.inf) == 3.0 + 1e-15
    assert solved(walking([2e-9, 3e-9, 4e-9, 4e-9 + 1e-24]), 1e-9, math.inf) == pytest.approx(4e-9, rel=1e-12)
    assert solved(lambda place: (True, place + 1), 1.0, math.inf) == 201.0


def test_a_search_that_leaves_its_bracket_halves_it_or_looks_farther_out() -> None:
    places: list[float] = []

    def step(place: float) -> tuple[bool, float]:
        places.append(place)
        return place < 20, math.inf

    assert numerics._newton_root(step, 1.0, math.inf) == pytest.approx(20.0, rel=1e-15)
    assert places[:8] == [1.0, 3.0, 7.0, 15.0, 31.0, 23.0, 19.0, 21.0]
    places.clear()
    assert numerics._newton_root(step, 16.0, 64.0) == pytest.approx(20.0, rel=1e-15)
    assert places[:4] == [16.0, 40.0, 28.0, 22.0]
    assert len(places) < 60


def searched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Callable[[float], tuple[bool, float]], float, float]]:
    """Return a list that holds what is searched for from here on: its step, its start and its highest place."""
    found: list[tuple[Callable[[float], tuple[bool, float]], float, float]] = []

    def kept(step: Callable[[float], tuple[bool, float]], start: float, high: float) -> float:
        found.append((step, start, high))
        return 0.5

    monkeypatch.setattr(numerics, "_newton_root", kept)
    return found


@pytest.mark.parametrize(("p", "freedom"), [(0.01, 2.0), (0.2, 5.0), (1e-6, 30.0)])
def test_students_quantile_is_searched_from_nearby_with_newtons_steps_on_logarithms(
    p: float, freedom: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the normal quantile z on, and the first term of its expansion (Abramowitz and Stegun 26.7.5)."""
    found = searched(monkeypatch)
    assert student_quantile.__wrapped__(p, freedom) == -0.5
    ((step, start, high),) = found
    z = -float(special.ndtri(p))
    assert (start, high) == pytest.approx((z + (z**3 + z) / (4 * freedom), math.inf))
    for t in (0.25, 1.5, 9.0):
        tail, density = float(stats.t.sf(t, freedom)), float(stats.t.pdf(t, freedom))
        too_low, following = step(t)
        assert too_low is (tail > p)
        assert following == pytest.approx(t + (math.log(tail) - math.log(p)) * tail / density)


def test_no_newtons_step_is_made_from_where_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(monkeypatch)
    student_quantile.__wrapped__(0.01, 1e4)
    assert found[0][0](1000.0) == (False, math.inf)
    monkeypatch.setattr(numerics, "_student_tail", always(0.0))
    assert found[0][0](0.5) == (False, math.inf)
    monkeypatch.setattr(numerics, "_student_tail", always(0.01))
    assert found[0][0](1000.0) == (False, math.inf)


@pytest.mark.parametrize(("above", "below"), [(4, 3), (1, 8), (12, 6)])
def test_the_quantile_of_f_is_searched_from_the_mean_of_the_beta_with_newtons_steps(
    above: int, below: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searched(monkeypatch)
    assert f_quantile.__wrapped__(0.3, above, below) == pytest.approx(below / above)
    ((step, start, high),) = found
    assert (start, high) == pytest.approx((above / (above + below), 1.0))
    for x in (0.1, 0.5, 0.9):
        below_x = float(special.betainc(above / 2, below / 2, x))
        too_low, following = step(x)
        assert too_low is (below_x < 0.3)
        assert following == pytest.approx(x - (below_x - 0.3) / float(stats.beta.pdf(x, above / 2, below / 2)))


def test_a_fraction_is_never_divided_by_nothing() -> None:
    assert [numerics._away_from_zero(each) for each in (0.0, 1e-301, -1e-300)] == [1e-300] * 3
    assert [numerics._away_from_zero(each) for each in (-1.1e-300, 1.1e-300, 3.0)] == [-1.1e-300, 1.1e-300, 3.0]


def test_so_many_quantiles_are_kept() -> None:
    assert student_quantile.cache_info().maxsize == f_quantile.cache_info().maxsize == 4096


def test_fewer_than_ten_are_each_held_against_all_others() -> None:
    """Of 1, 2, 3 and 10: 10 is 8 from the rest, of variance 1; 1 is 4 from the rest, of variance 19."""
    values = np.array([1.0, 2.0, 3.0, 10.0])

    def two_sided(distance: float, variance: float) -> float:
        return 2 * float(stats.t.sf(distance / math.sqrt(variance), 2))

    found = outliers.outlier_p_values(values)
    assert found[[0, 3]] == pytest.approx([two_sided(4.0, 19 * 4 / 3), two_sided(8.0, 4 / 3)])
    found = outliers.outlier_p_values(values, least=2.0)
    assert found[[0, 3]] == pytest.approx([two_sided(4.0, 19 * 4 / 3), two_sided(8.0, 4 * 4 / 3)])
    found = outliers.outlier_p_values(values, 3.0)
    assert found[3] == pytest.approx(two_sided(8.0, 4 / 3 + 3.0))
    assert np.isnan(outliers.outlier_p_values(values[:3])).all()
    nine = np.array([-1.0, 1.0] * 4 + [0.0])
    assert outliers.outlier_p_values(nine)[8] == pytest.approx(1.0)
    assert outliers.outlier_p_values(nine)[0] == pytest.approx(
        2 * float(stats.t.sf(1.125 / math.sqrt((7 - 8 / 64) / 7 * 9 / 8), 7))
    )


def test_ten_are_held_against_the_middle_of_them() -> None:
    """Their scale is 1.4826, known as well as by 0.37 of 8 degrees of freedom, and with one fitted 10 / 9 larger."""
    ten = np.array([-1.0, 1.0] * 5)
    t = 1 / (1.4826 * math.sqrt(10 / 9))
    assert outliers.outlier_p_values(ten) == pytest.approx([2 * float(stats.t.sf(t, 2.96))] * 10, rel=1e-4)
    t = 1 / (1.4826 * math.sqrt(10 / 7))
    assert outliers.outlier_p_values(ten, fitted=3) == pytest.approx([2 * float(stats.t.sf(t, 2.22))] * 10, rel=1e-4)
    t = 1 / (1.4826 * math.sqrt(10))
    assert outliers.outlier_p_values(ten, fitted=9) == pytest.approx([2 * float(stats.t.sf(t, 1.0))] * 10, rel=1e-4)
    t = 1 / math.sqrt(1.4826**2 * 10 / 9 + 3)
    assert outliers.outlier_p_values(ten, 3.0) == pytest.approx([2 * float(stats.t.sf(t, 2.96))] * 10, rel=1e-4)
    t = 1 / 9
    assert outliers.outlier_p_values(ten, least=9.0) == pytest.approx([2 * float(stats.t.sf(t, 2.96))] * 10, rel=1e-4)


def heavy(tails: float) -> Samples:
    """Return 101 distances: the 51st is 1, the 91st as far as those of such tails, and two standard errors more."""
    far = float(stats.t.ppf(0.95, tails) / stats.t.ppf(0.75, tails)) * math.exp(2 * 1.206 / math.sqrt(101))
    sizes = np.concatenate([np.full(50, 0.5), [1.0], np.full(39, 1.5), np.full(11, far)])
    return np.asarray(sizes * np.tile([1.0, -1.0], 51)[:101], dtype=np.float64)


def test_tails_are_read_off_how_far_a_tenth_are_beyond_half() -> None:
    for step in (0, 1, 7, 20):
        tails = 3.0 * (1e6 / 3) ** (step / 59)
        assert outliers.estimate_tail_freedom(heavy(tails)) == pytest.approx(tails, rel=1e-7)
        assert outliers.estimate_tail_freedom(4 * heavy(tails)) == pytest.approx(tails, rel=1e-7)
    assert outliers.estimate_tail_freedom(heavy(2.0)) == pytest.approx(3.0)
    assert outliers.estimate_tail_freedom(np.tile([1.0, -1.0], 50)) == pytest.approx(1e6)
    assert (
        outliers.estimate_tail_freedom(np.zeros(9))
        == outliers.estimate_tail_freedom(np.append(np.zeros(9), [5.0] * 3))
        == 1e6
    )


def test_the_scale_of_heavy_tails_is_read_off_their_own_middle() -> None:
    tails = 3.0 * (1e6 / 3) ** (7 / 59)
    samples = heavy(tails)
    scale = 1.4826 * float(np.median(np.abs(samples - np.median(samples)))) * math.sqrt(101 / 100)
    scale *= float(stats.norm.ppf(0.75) / stats.t.ppf(0.75, tails))
    freedom = 1 / (1 / tails + 1 / (0.37 * 99))
    expected = 2 * float(stats.t.sf(1.0 / scale, freedom))
    assert outliers.outlier_p_values(samples)[50] == pytest.approx(expected, rel=1e-6)


def test_rounded_numbers_are_spread_over_what_rounding_hides() -> None:
    """By the parts behind the point of multiples of the golden ratio, half a unit to each side."""
    parts = [0.618034, 0.236068, 0.854102, 0.472136, 0.090170, 0.708204, 0.326238, 0.944272, 0.562306, 0.180340]
    parts += [0.798374, 0.416408]
    steps = 3 * np.arange(12.0) % 12
    spread = steps + np.array(parts) - 0.5
    expected = 1.4826 * float(np.median(np.abs(spread - np.median(spread))))
    assert outliers.estimate_scale(steps, fitted=0, least=0.5) == pytest.approx(expected, rel=1e-5)
    assert outliers.estimate_scale(steps, fitted=3, least=0.5) == pytest.approx(expected * math.sqrt(12 / 9), rel=1e-5)
    for all_fitted in (11, 12, 13):
        assert outliers.estimate_scale(steps, fitted=all_fitted, least=0.5) == pytest.approx(
            expected * math.sqrt(12), rel=1e-5
        )
    assert outliers.estimate_scale(np.zeros(12), least=0.5) == 0.5
    assert outliers.estimate_scale(np.array([-1.0, 1.0] * 5)) == pytest.approx(1.4826 * math.sqrt(10 / 9))


def test_what_differs_at_all_stands_out_among_equals() -> None:
    samples = np.zeros(20)
    samples[3] = 0.001
    assert outliers.outlier_p_values(samples).tolist() == [1.0] * 3 + [0.0] + [1.0] * 16
    few = np.array([2.0, 2.0, 2.0, 2.0])
    assert outliers.outlier_p_values(few).tolist() == [1.0] * 4
    found = outliers._two_sided_p_values(np.array([0.0, 1.0, -1.0, 1.0]), np.array([0.0, 0.0, 0.0, 1.0]), 3.0)
    assert found == pytest.approx([1.0, 0.0, 0.0, 2 * float(stats.t.sf(1.0, 3))])


def test_chances_are_raised_by_how_many_there_are_and_never_beyond_one() -> None:
    assert outliers.holm_p_values(np.array([0.6, 0.02, 0.7])).tolist() == pytest.approx([1.0, 0.06, 1.0])
    assert outliers.holm_p_values(np.array([0.3, np.nan, 0.01])) == pytest.approx([0.3, np.nan, 0.02], nan_ok=True)
    assert outliers.holm_p_values(np.array([0.01, 0.011])).tolist() == pytest.approx([0.02, 0.02])
    assert outliers.false_discovery_rates(np.array([0.95, 0.9])).tolist() == pytest.approx([0.95, 0.95])
    assert outliers.false_discovery_rates(np.array([0.01, 0.03, 0.02, 1.0])).tolist() == pytest.approx(
        [0.04, 0.04, 0.04, 1.0]
    )
    assert np.isnan(outliers.false_discovery_rates(np.array([np.nan, np.inf]))).all()
    assert outliers.false_discovery_rates(np.array([])).tolist() == outliers.holm_p_values(np.array([])).tolist() == []


def swapped(n: int, place: int) -> Samples:
    steps = np.arange(float(n))
    steps[[place, place + 1]] = steps[[place + 1, place]]
    return steps


def test_what_is_left_beside_something_held_equal_must_be_more_than_rounding() -> None:
    """Each is the third but for one swapped pair: squares of about 2 are left, against a billionth of n cubed."""
    for n, told in ((500, True), (1200, True), (1300, False)):
        found = partial_correlation(swapped(n, 10), swapped(n, n // 2), [np.arange(float(n))])
        assert (found is not None) is told


def test_a_correlation_that_is_perfect_but_for_rounding_has_no_interval() -> None:
    """One pair of neighbours swapped among n takes 12 / n³ off."""
    for n, told in ((21_544, True), (23_500, False)):
        found = partial_correlation(swapped(n, 10), np.arange(float(n)))
        assert found is not None
        assert (found.low is not None) is told


def test_an_association_has_this_interval_at_another_confidence() -> None:
    """Of six in pairs swapped, rho is 1 - 6 * 6 / 210."""
    found = partial_correlation(np.arange(6.0), np.array([1.0, 0, 3, 2, 5, 4]), confidence=0.8)
    rho = 1 - 36 / 210
    reach = 1.2815516 * math.sqrt((1 + rho**2 / 2) / 3)
    low, high = math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach)
    assert found is not None
    assert (found.rho, found.low, found.high, found.n) == pytest.approx((rho, low, high, 6))
    assert partial_correlation(np.arange(5.0), np.array([1.0, 0, 3, 2, 4])) == PartialCorrelation(
        pytest.approx(0.8),  # type: ignore[arg-type]
        None,
        None,
        5,
    )


GPUS = np.repeat(np.arange(3), 2)


def test_variances_of_a_nested_design_do_not_depend_on_where_it_lies() -> None:
    values = np.array([1.0, 1.5, 2.0, 2.25, 3.0, 3.5])
    there = [("GPUs", GPUS), ("runs", np.arange(6))]
    near, far = variance.estimate_components(values, there), variance.estimate_components(values + 2.0**27, there)
    assert [one.variance for one in far] == pytest.approx([one.variance for one in near], rel=1e-6)
    gpus, runs = near
    assert runs.variance == pytest.approx((0.125 + 0.03125 + 0.125) / 3)
    assert gpus.variance == pytest.approx((2 * np.var([1.25, 2.125, 3.25], ddof=1) - 0.28125 / 3) / 2)
    assert (gpus.members, runs.members) == (3, 6)


def test_two_members_are_worth_one_degree_of_freedom() -> None:
    """Their variance is 2; what it may be is that times one, divided by chi-squared of one degree of freedom."""
    (one,) = variance.estimate_components(np.array([0.0, 2.0]), [("GPUs", np.arange(2))])
    assert (one.level, one.members, one.variance, one.share) == ("GPUs", 2, 2.0, 1.0)
    assert one.low == pytest.approx(2 / stats.chi2.ppf(0.975, 1), rel=0.07)
    assert one.high is not None
    assert 1000 < one.high < 4000
    assert (one.share_low, one.share_high, one.within) == (1.0, 1.0, None)
    (less_sure,) = variance.estimate_components(np.array([0.0, 2.0]), [("GPUs", np.arange(2))], confidence=0.5)
    assert less_sure.low == pytest.approx(2 / stats.chi2.ppf(0.75, 1), rel=0.07)
    assert less_sure.high == pytest.approx(2 / stats.chi2.ppf(0.25, 1), rel=0.1)


def test_five_members_alike_are_worth_four_degrees_of_freedom_less_what_is_spent() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    (one,) = variance.estimate_components(values, [("GPUs", np.arange(5))])
    assert one.variance == pytest.approx(2.5)
    assert (one.low, one.high) == pytest.approx((10 / stats.chi2.ppf(0.975, 4), 10 / stats.chi2.ppf(0.025, 4)), rel=0.1)
    (spent,) = variance.estimate_components(values, [("GPUs", np.arange(5))], spent={"GPUs": 1})
    assert spent.variance == pytest.approx(10 / 3)
    assert spent.low == pytest.approx(10 / stats.chi2.ppf(0.975, 3), rel=0.1)


def test_known_variances_are_averaged_over_clusters_and_scatter_as_those_do() -> None:
    def of(variances: list[float], clusters: list[int]) -> tuple[float, Samples]:
        found = variance._draw_mean_variance(np.array(variances), np.array(clusters), np.random.default_rng(1))
        return found.value, found.draws

    value, draws = of([0.5, 1.5], [0, 1])  # a mean of exactly 1; standard error 1/2 of it
    assert value == 1.0
    assert np.median(draws) == pytest.approx(1.0, abs=0.05)
    assert np.quantile(np.log(draws), 0.75) == pytest.approx(0.5, abs=0.07)  # t with one degree of freedom: 1
    assert np.abs(np.log(draws)).max() == pytest.approx(50.0)
    value, draws = of([1.0, 3.0], [0, 1])
    assert np.quantile(np.log(draws / 2), 0.75) == pytest.approx(0.5, abs=0.07)
    value, draws = of([1.0, 2.0, 6.0], [0, 0, 1])
    assert value == 3.75
    assert len(draws) == 4000
    value, draws = of([0.0, 0.0], [0, 1])
    assert (value, draws.min(), draws.max()) == (0.0, 0.0, 0.0)
    value, draws = of([3.0, 5.0], [0, 0])
    assert value == 4.0
    assert np.isnan(draws).all()


def test_a_level_of_one_cluster_has_a_variance_and_no_interval() -> None:
    below = "calls", np.array([3.0, 5.0]), np.zeros(2, dtype=np.intp)
    gpus, calls = variance.estimate_components(np.array([0.0, 4.0]), [("GPUs", np.arange(2))], below)
    assert calls == VarianceComponent("calls", 2, variance=4.0, share=pytest.approx(1 / 3))  # type: ignore[arg-type]
    assert gpus.share == pytest.approx(2 / 3)
    assert gpus.share_high == 1.0


def test_where_nothing_varies_there_are_no_shares() -> None:
    (one,) = variance.estimate_components(np.ones(4), [("GPUs", np.arange(4))])
    assert one == VarianceComponent("GPUs", 4, 0.0, 0.0, 0.0, None, None, None)


def test_a_correlation_is_judged_by_the_same_shuffles_each_time() -> None:
    found = correlation.rank_correlation([1.0, 2, 3, 4, 5, 6, 7, 8], [2.0, 1, 5, 3, 8, 4, 6, 7])
    assert found is not None
    assert (found.rho, found.n) == pytest.approx((1 - 6 * 22 / 504, 8))
    assert found.p == 193 / 4001


def test_draws_are_in_runs_as_long_as_samples_resemble_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.arange(7.0)
    for worth, run in ((7.0, 1), (6.9, 2), (3.5, 2), (2.8, 3), (1.0, 7)):
        monkeypatch.setattr(intervals, "effective_size", always(worth))
        chosen = intervals.draw_indices(samples, 5)
        assert chosen.shape == (2000, 7)
        starts = np.random.default_rng(5).integers(0, 7, (1999, -(-7 // run)))
        assert (chosen[1:, ::run] == starts).all()
        for place in range(7):
            assert (chosen[1:, place] == (starts[:, place // run] + place % run) % 7).all()


def test_why_samples_have_no_interval_in_whole_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    few = "are too few; 6 are needed"
    assert intervals.explain_no_process_interval(np.ones(1)) == f"1 sample of one process {few}"
    assert intervals.explain_no_process_interval(np.ones(2)) == f"2 samples of one process {few}"
    monkeypatch.setattr(intervals, "effective_size", always(3.0))
    assert intervals.explain_no_process_interval(np.ones(6), 0.75) is None  # exactly the three that it takes
    said = "6 samples that resemble their neighbours are too few"
    assert intervals.explain_no_process_interval(np.ones(6), 0.76) == said
    monkeypatch.setattr(intervals, "find_competing_levels", always(TwoLevels(1.0, 2.34567, 0.4, 5)))
    said = "the samples switch between two levels, 1 and 2.346 (40% of the time)"
    assert intervals.explain_no_process_interval(np.ones(6)) == said


def test_a_quantile_takes_samples_beyond_it() -> None:
    assert [intervals.min_samples_for_quantile(share) for share in (0.5, 0.1, 0.9, 0.8, 0.999, 0.3)] == [
        2,
        10,
        10,
        5,
        1000,
        4,
    ]


def test_a_quantile_is_known_no_better_than_by_independent_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.arange(65.0)
    monkeypatch.setattr(intervals, "t_quantile", always(2.0))
    for long_run, reach in ((0.0, 0.125 * math.sqrt(64 / 65)), (1.0, 0.25 * math.sqrt(64 / 65))):
        monkeypatch.setattr(intervals, "long_run_variance", always(LongRunVariance(long_run, 4)))
        found = intervals.quantile_interval(samples, 0.5)
        assert found == pytest.approx((64 * (0.5 - reach), 64 * (0.5 + reach)))
    monkeypatch.setattr(intervals, "long_run_variance", always(LongRunVariance(0.0, 4)))
    sixteen = np.arange(16.0)  # two standard errors are exactly the quarter
    assert intervals.quantile_interval(sixteen, 0.5) == (3.75, 11.25)
    monkeypatch.setattr(intervals, "t_quantile", always(4.0))
    assert intervals.quantile_interval(sixteen, 0.5) is None
    monkeypatch.setattr(intervals, "t_quantile", always(3.999))
    assert intervals.quantile_interval(sixteen, 0.5) is not None


def test_rounding_to_steps_leaves_open_where_a_mean_lies_between_them() -> None:
    """Half of (steps / π)² at most, and less by exp(-4π² w) where noise is wider than rounding alone."""
    ones = np.ones(4)
    found = selection._rounding_variance(ones, np.array([0.0, 1 / 12, 1 / 12 + 0.05, 1 / 12 + 1.0]))
    assert found[:3] == pytest.approx([0.0506606, 0.0506606, 0.0506606 * math.exp(-1.9739209)], rel=1e-5)
    assert found[3] < 1e-17
    finer = selection._rounding_variance(ones / 10, np.full(4, 1 / 1200 + 0.0005))
    assert finer == pytest.approx(np.full(4, 0.000506606 * math.exp(-1.9739209)), rel=1e-5)
    assert selection._rounding_variance(np.zeros(1), np.array([0.01])).tolist() == [0.0]


def test_a_timer_shows_its_step_where_times_repeat() -> None:
    repeating = np.log(np.array([[10.0, 20.0], [10.0, 22.0], [11.0, 22.0]]))
    assert selection._timer_steps(repeating) == pytest.approx([1 / 10, 1 / 20])
    assert selection._timer_steps(np.log(np.array([[10.0, 20.0], [11.0, 22.0], [10.0, 23.0]]))).tolist() == [0.0, 0.0]
    assert selection._timer_steps(np.zeros((3, 2))).tolist() == [0.0, 0.0]
    assert selection._timer_steps(np.zeros((1, 2))).tolist() == [0.0, 0.0]


def test_lower_medians_leave_out_what_is_not_clean() -> None:
    values = np.array([[1.0, 5.0, 9.0], [2.0, 6.0, 8.0], [3.0, 7.0, 7.0], [4.0, 8.0, 6.0]])
    clean = np.ones((4, 3), dtype=bool)
    assert selection._low_medians(values, clean).tolist() == [2.0, 6.0, 7.0]
    assert selection._low_medians(values[:3], clean[:3]).tolist() == [2.0, 6.0, 8.0]
    clean[:, 1], clean[0, 0] = False, False
    assert selection._low_medians(values, clean).tolist() == [3.0, 5.0, 7.0]


def test_medians_of_rows_leave_out_what_is_not_clean_and_are_none_where_nothing_is() -> None:
    values = np.array([[1.0, 5.0, 9.0, 2.0], [4.0, 6.0, 8.0, 1.0], [3.0, 7.0, 7.0, 9.0]])
    clean = np.array([[True] * 4, [True, True, True, False], [False] * 4])
    assert selection._row_medians(values, clean).tolist() == [3.5, 6.0, 0.0]
    assert selection._row_medians(values[:1, :1], clean[:1, :1]).tolist() == [1.0]


def test_the_spread_of_all_is_their_typical_step_and_what_is_known_as_logarithms() -> None:
    """Four degrees of freedom say 0.02; two steps, of which the lower is 2, say 2 / 0.6745 / √2."""
    strays = np.array([[0.0, 0.0], [2.0, -6.0]])
    logs = (4 * math.log(0.0004) + 2 * 0.5 * 2 * math.log(2 / 0.6745 / math.sqrt(2))) / (4 + 1)
    assert selection._spread(strays, 0.5, NoiseStats()) == pytest.approx(math.exp(logs / 2))
    assert selection._spread(strays[:1], 0.5, NoiseStats()) == pytest.approx(0.02)
    still = (4 * math.log(0.0004) + 2 * 2 * math.log(1e-4)) / 6
    assert selection._spread(np.zeros((2, 2)), 1.0, NoiseStats()) == pytest.approx(math.exp(still / 2))
    three = np.array([[0.0], [1.0], [3.0], [8.0]])  # steps 1, 2, 5
    logs = (4 * math.log(0.0004) + 3 * 2 * math.log(2 / 0.6745 / math.sqrt(2))) / 7
    assert selection._spread(three, 1.0, NoiseStats()) == pytest.approx(math.exp(logs / 2))
    assert selection._own_spread(np.array([[1.0, 0.0], [-3.0, 5.0], [9.0, 1.0], [0.5, 7.0]])) == pytest.approx(
        [1.4826] * 2
    )


def test_the_noise_of_all_says_as_much_about_one_as_they_are_alike() -> None:
    ten = np.full(2, 10.0)
    assert selection._pooled_freedom(np.array([1.0]), np.array([10.0])) == pytest.approx(10.0)
    assert selection._pooled_freedom(np.zeros(2), ten) == pytest.approx(10.0)
    assert selection._pooled_freedom(np.array([1.0, 5.0]), np.array([10.0, 0.0])) == pytest.approx(10.0)
    # variances alike: less unlike than by chance, so that ten times 1/3 is spread over twelve
    assert selection._pooled_freedom(np.array([3.0, 3.0]), ten) == pytest.approx(4 + 2 / (10 / 3 / 12))
    # 0.1 and 0.5 have the squared coefficient 0.08 / 0.09; chance gives 0.2
    seen = (0.08 / 0.09 - 0.2) / 1.2
    assert selection._pooled_freedom(np.array([1.0, 5.0]), ten) == pytest.approx(4 + 2 / ((10 / 3 + 2 * seen) / 12))


def test_two_rounds_forget_or_remember_by_hand() -> None:
    """Of two, the residuals are ± the same whatever the memory m: neighbours -1/2, and (1 + m) / (1 - m) times."""
    neighbours, larger = selection._memory_effects(2)
    memories = np.array([0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
    assert neighbours == pytest.approx(np.full(7, -0.5))
    assert larger == pytest.approx((1 + memories) / (1 - memories))
    likely = np.array([0.4, 0.2, 0.14, 0.1, 0.08, 0.05, 0.03])
    expected = float(likely @ ((1 + memories) / (1 - memories)))
    assert selection._memory_inflation(np.array([[1.0], [-1.0]]), 1.0) == pytest.approx(expected)
    assert selection._memory_inflation(np.zeros((2, 3)), 1.0) == pytest.approx(expected)
    assert selection._memory_inflation(np.ones((1, 3)), 1.0) == 1.0


def test_three_rounds_without_memory_have_neighbours_of_minus_a_third() -> None:
    neighbours, larger = selection._memory_effects(3)
    assert (neighbours[0], larger[0]) == pytest.approx((-1 / 3, 1.0))
    # of memory 0.6: 1, 0.6, 0.36; rows of mean 1.96 / 3, 2.2 / 3, 1.96 / 3
    mean = 6.12 / 9
    left = 3 * (1 - mean)
    assert larger[4] == pytest.approx(mean * 3 * 2 / left)
    assert neighbours[4] == pytest.approx((2 * (0.6 + mean) - 2 * (1.96 + 2.2) / 3) / left)


def test_what_neighbours_say_weighs_by_how_much_of_the_noise_is_left() -> None:
    residuals = np.array([[1.0, 2.0], [1.0, -2.0], [-1.0, 0.0]])
    seen = (1 - 1 - 4) / (3 + 8)
    neighbours, larger = selection._memory_effects(3)
    before = np.array([0.4, 0.2, 0.14, 0.1, 0.08, 0.05, 0.03])
    likely = before * np.exp(-((seen - neighbours) ** 2) * 1.5)  # 3 rounds of 2, half of it left, in halves
    assert selection._memory_inflation(residuals, 0.5) == pytest.approx(float(likely @ larger) / float(likely.sum()))


def test_noise_adds_up_part_by_part() -> None:
    assert NoiseStats() == NoiseStats(0.0, 0.0, 0, 0)
    assert NoiseStats(1.0, 2.0, 3, 4) + NoiseStats(10.0, 20.0, 30, 40) == NoiseStats(11.0, 22.0, 33, 44)
    assert NoiseStats(0.0, 0.0, 2, 5).spike_rate == pytest.approx(3 / 15)
    assert NoiseStats(0.0016, 4.0).variance == pytest.approx(0.0004)


def test_candidates_beside_each_other_have_their_centres_and_what_each_round_adds() -> None:
    own, added = np.array([1.0, 1.5, 2.0]), np.array([0.0, 0.25, -0.125, 0.0])
    fitted = selection.fit_rounds(added[:, None] + own, np.full(4, 3), np.zeros(0), NoiseStats())
    assert fitted.centre - fitted.centre[0] == pytest.approx(own - 1.0)
    assert fitted.effects - fitted.effects[0] == pytest.approx(added)
    assert [each.samples for each in fitted.noise] == [4, 4, 4]
    assert [each.spikes for each in fitted.noise] == [0, 0, 0]
    assert [each.degrees for each in fitted.noise] == pytest.approx([2.0] * 3)  # three, of which two thirds are left
    assert fitted.freedom == pytest.approx([10.0] * 3)  # as many as all have: 4 + 3 * 2


def test_a_candidate_that_left_is_held_against_the_rounds_it_took_part_in() -> None:
    known = NoiseStats()
    fitted = selection.RoundFit(
        np.zeros(1), np.ones(1), np.ones(1), np.array([0.0, 1.0, 2.0, 3.0]), (NoiseStats(),), 1.5
    )
    centre, variance = selection.estimate_dropped(np.array([5.0, 6.0, 7.03]), fitted, known)  # 5, 5, 5.03
    assert (centre, variance) == pytest.approx((5.01, 2 * 1.5 * 0.0004 / 3))
    centre, variance = selection.estimate_dropped(np.array([5.0, 7.0]), fitted, known)  # the other is a spike
    assert (centre, variance) == pytest.approx((5.0, 2 * 1.5 * 0.0004))
    centre, variance = selection.estimate_dropped(np.array([5.0, 6.2, 7.0, 8.0]), fitted, known)
    assert (centre, variance) == pytest.approx((5.0, 2 * 1.5 * 0.0004 / 3))


@pytest.mark.parametrize(
    ("own", "step", "limit"), [(0.001, 0.0, 0.3125), (1.0, 0.0, 1.25), (0.125, 0.0, 0.625), (0.001, 0.5, 2.5)]
)
def test_a_sample_is_a_spike_beyond_five_of_a_spread_that_is_between_that_of_all_and_four_times_it(
    own: float, step: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_spread", always(0.0625))
    monkeypatch.setattr(selection, "_own_spread", always(np.array([own])))
    beyond = limit + 0.01
    for stray, clean, spikes in ((limit, True, 0), (beyond, False, 1), (-limit, True, 0), (-beyond, False, 0)):
        logs = np.array([[0.0], [0.0], [0.0], [stray], [0.0]])
        levels, effects, clean_samples, spike_counts = selection._decompose(
            logs, np.zeros(5), np.zeros(5), np.array([step]), NoiseStats()
        )
        assert clean_samples[:, 0].tolist() == [True, True, True, clean, True]
        assert spike_counts.tolist() == [spikes]
        assert (levels.tolist(), effects.tolist()) == ([0.0], [0.0] * 5)


def test_what_is_beside_nothing_but_a_spike_says_nothing_and_effects_that_are_known_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "_spread", always(0.0625))
    monkeypatch.setattr(selection, "_own_spread", always(np.full(2, 0.0625)))
    logs = np.array([[0.0, 1.0], [0.125, 1.125], [0.0, 1.0], [0.0, 3.0], [0.0, 1.0]])
    levels, effects, clean_samples, spike_counts = selection._decompose(
        logs, np.full(5, 0.5), np.zeros(0), np.zeros(2), NoiseStats()
    )
    assert levels.tolist() == [0.0, 1.0]
    assert effects.tolist() == [0.0, 0.125, 0.0, 0.0, 0.0]
    assert clean_samples.tolist() == [[True, True]] * 3 + [[False, False]] + [[True, True]]
    assert spike_counts.tolist() == [0, 1]
    levels, effects, clean_samples, spike_counts = selection._decompose(
        logs, np.full(5, 0.5), np.full(4, 0.0625), np.zeros(2), NoiseStats()
    )
    assert effects[:4].tolist() == [0.0625] * 4
    assert clean_samples.tolist()[3] == [True, False]
    near = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.21], [0.0, 1.0]])  # 0.21 is 0.297 of noise of which half is left
    levels, effects, clean_samples, spike_counts = selection._decompose(
        near, np.full(4, 0.5), np.zeros(4), np.zeros(2), NoiseStats()
    )
    assert spike_counts.tolist() == [0, 0]
    near[2, 1] = 1.23
    levels, effects, clean_samples, spike_counts = selection._decompose(
        near, np.full(4, 0.5), np.zeros(4), np.zeros(2), NoiseStats()
    )
    assert spike_counts.tolist() == [0, 1]


def test_two_candidates_that_stray_against_each_other_share_their_noise() -> None:
    """Residuals of ± 0.01 in four rounds, of which half is left: squares 4e-4 with 1.5 degrees of freedom each."""
    strays = np.array([0.01, -0.01, 0.01, -0.01])
    fitted = selection.fit_rounds(np.stack([strays, 1 - strays], axis=1), np.full(4, 2), np.zeros(0), NoiseStats())
    assert [each.squares for each in fitted.noise] == pytest.approx([4e-4] * 2)
    assert [each.degrees for each in fitted.noise] == pytest.approx([1.5] * 2)
    assert fitted.centre[1] - fitted.centre[0] == pytest.approx(1.0)
    assert fitted.memory == pytest.approx(selection._memory_inflation(np.stack([strays, -strays], axis=1), 0.5))
    shared = (4 * 0.0004 + 8e-4) / 7
    own = (11.2 * shared + 4e-4) / 12.7  # as alike as they are, all of it is worth 4 + 2 * 3.6 degrees of freedom
    assert fitted.variance == pytest.approx(np.full(2, fitted.memory * own / 4))
    assert fitted.freedom == pytest.approx([7.0, 7.0])
    told = selection.fit_rounds(
        np.stack([strays, 1 - strays], axis=1), np.full(4, 2), np.zeros(0), NoiseStats(0.04, 100.0)
    )
    assert told.freedom == pytest.approx([12.7, 12.7])


def test_rounds_that_more_took_part_in_leave_more_of_the_noise() -> None:
    strays = np.array([0.01, -0.01, 0.01, -0.01])
    logs = np.stack([strays, 1 - strays], axis=1)
    fitted = selection.fit_rounds(logs, np.array([4, 4, 9, 9]), np.zeros(2), NoiseStats())
    assert [each.degrees for each in fitted.noise] == pytest.approx([3 * 0.625] * 2)  # 3/4 twice, then 1/2 twice


def test_a_timers_steps_leave_a_centre_open_between_them() -> None:
    logs = np.array([[0.0, 1.0], [0.0, 1.0], [0.5, 1.5], [0.0, 1.0]])
    fitted = selection.fit_rounds(logs, np.full(4, 2), np.zeros(0), NoiseStats())
    own = 10 * (0.0016 / 7) / 11.5
    between = np.array([math.sqrt(math.e) - 1, (math.sqrt(math.e) - 1) / math.e]) ** 2 / (2 * math.pi**2)
    assert fitted.variance == pytest.approx(fitted.memory * own / 4 + between)


def test_one_candidate_alone_has_no_noise_of_its_own() -> None:
    fitted = selection.fit_rounds(np.array([[1.0], [1.5]]), np.ones(2), np.zeros(0), NoiseStats())
    assert [each.degrees for each in fitted.noise] == [0.0]
    assert fitted.freedom.tolist() == [4.0]


def test_one_round_has_the_variance_that_is_usual() -> None:
    fitted = selection.fit_rounds(np.array([[1.0, 2.0]]), np.full(1, 2), np.zeros(0), NoiseStats())
    assert [*fitted.variance, fitted.memory] == pytest.approx([0.0004, 0.0004, 1.0])
    assert fitted.freedom == pytest.approx([4.0, 4.0])


def test_a_candidate_that_left_keeps_what_is_exactly_five_standard_deviations_from_its_middle() -> None:
    still = selection.RoundFit(np.zeros(1), np.ones(1), np.ones(1), np.zeros(5), (NoiseStats(),), 1.0)
    quarter = NoiseStats(squares=4 * 0.0625 - 4 * 0.0004)  # a variance of 1/16
    for logs, centre in (
        ([0.0, 0.0, 1.25], 1.25 / 3),
        ([0.0, 0.0, 1.26], 0.0),
        ([0.0, 1.0, 2.0], 1.0),
        ([0.0, 1.0, 2.0, 2.2, 2.25], 7.45 / 4),
    ):
        assert selection.estimate_dropped(np.array(logs), still, quarter)[0] == pytest.approx(centre)


@pytest.mark.parametrize("found", [0, 2, 5])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_what_slows_whole_rounds_by_much_makes_no_spikes(found: int, count: int) -> None:
    own, added = np.array([1.0, 1.5, 2.0, 4.0])[:count], np.array([0.0, 3.0, -2.0, 5.0, 1.0])
    fitted = selection.fit_rounds(added[:, None] + own, np.full(5, count), added[:found], NoiseStats())
    assert fitted.centre - fitted.centre[0] == pytest.approx(own - 1.0)
    assert fitted.effects - fitted.effects[0] == pytest.approx(added)
    assert [each.spikes for each in fitted.noise] == [0] * count
    assert [each.squares for each in fitted.noise] == pytest.approx([0.0] * count)
    assert [each.degrees for each in fitted.noise] == pytest.approx([4 * (1 - 1 / count)] * count)


def test_a_spike_in_one_of_three_is_not_taken_for_what_slowed_the_round() -> None:
    own, added = np.array([1.0, 1.5, 2.0]), np.array([0.0, 3.0, -2.0, 5.0])
    logs = added[:, None] + own
    logs[1, 2] += 1.0
    logs[3, 0] -= 1.0
    fitted = selection.fit_rounds(logs, np.full(4, 3), np.zeros(0), NoiseStats())
    assert fitted.centre - fitted.centre[0] == pytest.approx(own - 1.0)
    assert fitted.effects - fitted.effects[0] == pytest.approx(added)
    assert [each.spikes for each in fitted.noise] == [0, 0, 1]


def test_members_of_unlike_sizes_are_worth_fewer_degrees_of_freedom() -> None:
    """GPUs of 4, 2 and 1 values, in runs of 3 and 1, of 1 and 1, and of 1; variances of 2, 2 and 1/2.

    What GPUs weigh is 5.785714, 4.642857 and 3.857143, that is 2.919281 of three; runs 1.625, 1.875, 1.25 and 1.25, and
    one that is alone; single values a third each of three.
    """
    gpus, runs = np.array([0, 0, 0, 0, 1, 1, 2]), np.array([0, 0, 0, 1, 2, 3, 4])
    design = variance._NestedDesign(np.arange(7.0), [gpus, runs, np.arange(7)], np.zeros(3))
    worth = design.worth(np.array([2.0, 2.0, 0.5]))
    assert worth == pytest.approx([2.919281 * 2 / 3, 36 / 9.28125 * 2 / 4, 2.0], rel=1e-6)
    assert design.worth(np.zeros(3)).tolist() == [2.0, 2.0, 2.0]
    spent = variance._NestedDesign(np.arange(7.0), [gpus, runs, np.arange(7)], np.array([0.0, 1.0, 0.0]))
    assert spent.worth(np.zeros(3)).tolist() == [2.0, 1.0, 2.0]


def test_a_level_that_adds_no_members_beyond_what_is_spent_is_part_of_the_one_above() -> None:
    values, each = np.array([1.0, 1.5, 2.0, 2.25, 3.0, 3.5]), np.arange(6)
    found = variance.estimate_components(values, [("GPUs", GPUS), ("runs", each), ("calls", each)], spent={"runs": 2})
    assert [(one.variance is None, one.within) for one in found] == [(False, None), (False, None), (True, "runs")]
    found = variance.estimate_components(values, [("GPUs", GPUS), ("runs", each)], spent={"runs": 3})
    assert [(one.variance is None, one.within) for one in found] == [(False, None), (True, "GPUs")]


def test_members_are_told_apart_by_all_that_they_belong_to() -> None:
    parents, members = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 2, 0, 1, 2, 0])
    assert variance._nested([parents, members]).tolist() == [0, 1, 2, 3, 5, 4]
    assert variance._nested([np.array([7, 3, 7])]).tolist() == [1, 0, 1]
