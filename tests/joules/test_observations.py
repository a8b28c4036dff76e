"""Least squares with errors that know each other."""

from __future__ import annotations

import numpy as np
import pytest

from assay.joules.observations import KrigingTarget, bridge_covariance, fit_kriging, integrated_covariance


def test_the_covariance_of_integrals_is_the_double_integral() -> None:
    memory_s, step = 0.3, 1e-3
    x = np.arange(0, 1.0, step) + step / 2
    kernel = np.exp(-np.abs(x[:, None] - x[None, :]) / memory_s)
    for a, b in ((0.2, 0.7), (1.0, 1.0), (0.05, 0.9)):
        numeric = kernel[: round(a / step), : round(b / step)].sum() * step**2
        assert integrated_covariance(np.array([a]), np.array([b]), memory_s)[0, 0] == pytest.approx(numeric, rel=1e-4)


def test_a_stray_that_returns_is_nothing_at_both_ends() -> None:
    phases = np.array([0.0, 0.03, 0.07, 0.1])
    covariance = bridge_covariance(phases, phases, 0.1, 0.02)
    assert covariance[0] == pytest.approx(0.0, abs=1e-12)
    assert covariance[-1] == pytest.approx(0.0, abs=1e-12)
    assert covariance[1, 1] > 0
    assert covariance == pytest.approx(covariance.T)


def test_independent_errors_give_ordinary_least_squares() -> None:
    rng = np.random.default_rng(0)
    columns = np.stack([np.ones(30), np.arange(30.0)], axis=1)
    observed = columns @ [3.0, 0.5] + rng.normal(0, 0.1, 30)
    found = fit_kriging(columns, observed, 0.01 * np.eye(30))
    expected = np.linalg.lstsq(columns, observed, rcond=None)[0]
    assert found.coefficients == pytest.approx(expected)
    assert found.covariance == pytest.approx(0.01 * np.linalg.inv(columns.T @ columns), rel=1e-6)


def test_the_likelihood_prefers_the_covariance_that_made_the_data() -> None:
    rng = np.random.default_rng(1)
    columns = np.ones((60, 1))
    observed = 5.0 + rng.normal(0, 0.1, 60)
    likelihood = {s: fit_kriging(columns, observed, s**2 * np.eye(60)).log_likelihood for s in (0.01, 0.1, 1.0)}
    assert max(likelihood, key=lambda s: likelihood[s]) == 0.1


def test_what_is_asked_for_between_readings_comes_with_a_variance_that_is_right() -> None:
    """Values of a process at ten moments tell an eleventh: errors are as large as they claim."""
    rng = np.random.default_rng(2)
    t = np.linspace(0, 1, 11)
    kernel = np.exp(-np.abs(t[:, None] - t[None, :]) / 0.4)
    draws = 2.0 + rng.standard_normal((400, 11)) @ np.linalg.cholesky(kernel).T
    others = np.delete(np.arange(11), 5)
    target = KrigingTarget(np.ones(1), kernel[others, 5], 1.0)
    z = []
    for draw in draws:
        found = fit_kriging(np.ones((10, 1)), draw[others], kernel[np.ix_(others, others)], target)
        assert found.target is not None
        assert found.target_variance is not None
        z.append((found.target - draw[5]) / np.sqrt(found.target_variance))
    assert np.std(z) == pytest.approx(1.0, abs=0.12)
