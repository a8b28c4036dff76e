"""``assay history regressions``: steps of the history on the command line, and its gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.experiments.simulated_histories import Made, filled, noise

if TYPE_CHECKING:
    from pathlib import Path

    from assay.store.history.database import HistoryLocation
    from tests.store.postgres import Command

CHANGED = 60


@pytest.fixture
def stepped(history_place: HistoryLocation) -> None:
    """A history of six series, the first of which became slower by an eighth."""
    logs = noise(6, 90, seed=11)
    logs[0, CHANGED:] += np.log(1.12)
    filled(Made(logs), history_place)


@pytest.mark.usefixtures("stepped")
def test_a_regression_is_shown_written_and_stops_the_gate(command: Command, tmp_path: Path) -> None:
    report = tmp_path / "steps.html"
    done = command("history", "regressions", "--fail-on-regression", "--output", report)
    assert done.code == 1
    assert "✗ regression" in done.out
    assert "The gate failed. softmax@numpy call_us (rows=0" in done.err
    html = report.read_text()
    assert "after change 1" in html
    assert "1 regression in 6 series (540 runs)" in html
    (step,) = command("history", "regressions", "--json").data["change_points"]
    assert (step["status"], step["verdict"], step["details"]) == ("regression", "slower", "rows=0 isolation=full")
    assert step["ratio"]["low"] < 1.12 < step["ratio"]["high"]
    assert step["last_good"]["commit"] != step["first_bad"]["commit"]


def test_a_change_of_the_estimates_method_is_no_regression(command: Command, history_place: HistoryLocation) -> None:
    logs = noise(6, 2 * CHANGED, seed=11)
    logs[:, CHANGED:] += np.log(1.12)
    filled(Made(logs, method=lambda day: "median" if day < CHANGED else "trimmed mean"), history_place)
    done = command("history", "regressions", "--fail-on-regression")
    assert (done.code, "12 series" in done.out) == (0, True)


@pytest.mark.usefixtures("stepped")
def test_steps_that_are_old_or_of_something_else_do_not_stop_the_gate(command: Command) -> None:
    gate = ("history", "regressions", "--fail-on-regression")
    assert command(*gate, "--new-since", "2025-12-20").code == 0
    for words, said in ((("--workload", "sofmax"), "softmax"), (("--quantity", "busy_us"), "It knows call_us")):
        done = command(*gate, *words)
        assert done.code == 2
        assert said in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--output", "steps.pdf"), "must be a .html or .md file"),
        (("--fdr", "0"), "between 0 and 1"),
        (("--new-since", "soon"), "not a time"),
    ],
)
def test_what_makes_no_sense_is_said(words: tuple[str, ...], said: str, command: Command) -> None:
    done = command("history", "regressions", *words)
    assert done.code == 2
    assert said in done.err


def test_an_empty_history_has_nothing_to_tell(command: Command) -> None:
    done = command("history", "regressions")
    assert done.code == 0
    assert "No change point can be detected" in done.out


def test_a_gate_over_a_history_that_cannot_show_a_step_is_refused(
    command: Command, history_place: HistoryLocation
) -> None:
    filled(Made(noise(2, 5, seed=1)), history_place)
    done = command("history", "regressions", "--fail-on-regression")
    assert (done.code, done.out) == (2, "")
    assert "The gate has nothing to decide on. No change point can be detected: no series has the" in done.err
