"""What a look at the history says: steps with their runs and commits, and what may explain them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.experiments.regressions import MAX_HOSTS, MIN_HOST_RUNS, detect_regressions, host_numbers
from assay.stats.changepoint import MIN_RUNS
from assay.store.history.database import file_location
from assay.store.history.queries import PointFilter, load_series
from tests.experiments.simulated_histories import DAY_S, FIRST_S, Made, filled, noise

if TYPE_CHECKING:
    from pathlib import Path

    from assay.experiments.regressions import RegressionReport

CHANGED, DAYS = 60, 100


def looked(made: Made, path: Path, since_s: float | None = None) -> RegressionReport:
    database = filled(made, file_location(path / "history.sqlite"))
    with database.reading() as connection:
        return detect_regressions(load_series(connection, PointFilter()), since_s=since_s)


def stepped(size: float, *, series: int = 8, seed: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    logs = noise(series, DAYS, seed=seed)
    logs[0, CHANGED:] += np.log(size)
    return logs


def test_a_planted_regression_is_named_with_its_run_commit_and_size(tmp_path: Path) -> None:
    found = looked(Made(stepped(1.12)), tmp_path)
    (step,) = found.regressions
    assert (step.verdict, step.what, step.details) == ("slower", "softmax@numpy call_us", "rows=0 isolation=full")
    assert step.earliest.began_at.timestamp() <= FIRST_S + CHANGED * DAY_S <= step.latest.began_at.timestamp()
    assert step.first_bad.code is not None
    assert abs(int(step.first_bad.code, 16) - CHANGED) <= 1
    assert step.ratio.low is not None
    assert step.ratio.high is not None
    assert step.ratio.low < 1.12 < step.ratio.high
    assert found.headline.startswith(
        "softmax@numpy call_us (rows=0 isolation=full) on cpu:0, a CPU, 2 cores is slower, +1"
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("quantity", "size", "standing"),
    [
        ("call_us", 0.88, "improvement"),
        ("gb_per_s", 1.12, "improvement"),
        ("gb_per_s", 0.88, "regression"),
        ("energy_j", 1.12, "regression"),
        ("clock_mhz", 1.12, "change"),
    ],
)
def test_what_a_step_is_depends_on_the_quantity(quantity: str, size: float, standing: str, tmp_path: Path) -> None:
    (step,) = looked(Made(stepped(size), quantity), tmp_path).change_points
    assert step.status == standing


@pytest.mark.full
@pytest.mark.parametrize("what", ["host", "driver"])
def test_a_step_with_a_new_host_or_driver_is_confounded(what: str, tmp_path: Path) -> None:
    logs = noise(8, DAYS, seed=2)
    logs[:, CHANGED:] += np.log(1.12)
    made = Made(logs)
    setattr(made, what, lambda day: "new" if day >= CHANGED else "old")
    found = looked(made, tmp_path)
    assert not found.regressions
    confounded = [step for step in found.change_points if step.status == "confounded"]
    assert len(confounded) >= 7
    assert all("new" in step.confounded_by[0] for step in confounded)


def test_hosts_that_take_turns_explain_their_own_levels(tmp_path: Path) -> None:
    logs = stepped(1.12, seed=3)
    logs[:, 1::2] += np.log(1.2)
    found = looked(Made(logs, host=lambda day: "even" if day % 2 == 0 else "odd"), tmp_path)
    assert [step.status for step in found.change_points] == ["regression"]
    assert found.change_points[0].details.startswith("rows=0")


def test_a_step_that_was_taken_back_is_no_regression_any_more(tmp_path: Path) -> None:
    logs = noise(8, DAYS, seed=4)
    logs[0, CHANGED : CHANGED + 12] += np.log(1.15)
    found = looked(Made(logs), tmp_path)
    assert next(step.status for step in found.change_points if step.details.startswith("rows=0")) == "reverted"
    assert not found.regressions


def test_all_steps_of_a_series_are_found(tmp_path: Path) -> None:
    logs = noise(8, 200, seed=5)
    logs[0, 60:] += np.log(1.12)
    logs[0, 130:] -= np.log(1.2)
    found = looked(Made(logs), tmp_path)
    ours = sorted(
        (s for s in found.change_points if s.details.startswith("rows=0")), key=lambda s: s.first_bad.began_at
    )
    assert [step.verdict for step in ours] == ["slower", "faster"]


def test_a_small_step_is_told_and_is_no_regression(tmp_path: Path) -> None:
    logs = noise(8, DAYS, seed=9, sigma=0.001)
    logs[0, CHANGED:] += 0.006
    (step,) = looked(Made(logs), tmp_path).change_points
    assert (step.status, step.verdict) == ("small", "slower")


def test_only_new_steps_can_be_asked_for(tmp_path: Path) -> None:
    logs = stepped(1.12)
    assert not looked(Made(logs), tmp_path, FIRST_S + (CHANGED + 5) * DAY_S).change_points


def test_what_cannot_be_looked_at_is_counted(tmp_path: Path) -> None:
    logs = noise(3, DAYS, seed=6)
    logs[0, MIN_RUNS - 1 :] = np.nan
    found = looked(Made(logs, disturbed=frozenset(range(5))), tmp_path)
    assert (found.series, found.too_short, found.runs) == (2, 1, 2 * (DAYS - 5))
    assert "No change points in 2 series (190 runs)" in found.headline


@pytest.mark.parametrize("sigma", [0.002, 0.03])
def test_a_slow_drift_is_not_passed_over(sigma: float, tmp_path: Path) -> None:
    logs = noise(1, DAYS, seed=10, sigma=sigma) + 0.003 * np.arange(DAYS)
    found = looked(Made(logs), tmp_path)
    assert found.drifted or found.change_points
    assert (found.change_points != ()) or "1 of them drifted slowly" in found.headline


def test_runs_whose_value_is_zero_are_left_out_and_counted(tmp_path: Path) -> None:
    logs = stepped(1.12)
    logs[:, 5] = -np.inf
    found = looked(Made(logs), tmp_path)
    assert (len(found.regressions), found.not_positive) == (1, 8)


def test_a_history_without_enough_runs_says_what_it_takes(tmp_path: Path) -> None:
    found = looked(Made(noise(2, 5, seed=7)), tmp_path)
    assert f"no series has the {MIN_RUNS} runs" in found.headline


def test_rare_hosts_share_a_level_so_that_any_number_of_them_can_be_looked_at() -> None:
    made = Made(noise(1, DAYS, seed=8), host=lambda day: "often" if day % 3 else f"once-{day}")
    runs = [each.run for each in made.told()]
    numbers = host_numbers(runs)
    assert set(numbers) == {0, 1}
    assert len({run.host for run in runs}) > MAX_HOSTS
    few = host_numbers(runs[:MIN_HOST_RUNS])
    assert set(few) == {0}
