"""What is told of runs of the suite: which were green, and how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import suite

if TYPE_CHECKING:
    from pathlib import Path


def run(way: str, took_s: float = 200.0, **changes: Any) -> suite.Run:
    return {"way": way, "exit_code": 0, "took_s": took_s, "tests": 100, "skipped": 3, "failed": [], **changes}


def all_runs() -> list[suite.Run]:
    return [run(way) for way, count in suite.WANTED.items() for _ in range(count)]


def test_all_green_and_quick_enough_holds() -> None:
    assert suite.holds(all_runs())


@pytest.mark.parametrize(
    "changes", [{"exit_code": 2}, {"failed": ["tests.test_it"]}, {"tests": 0}, {"took_s": suite.LIMIT_S + 0.1}]
)
def test_one_that_failed_ran_nothing_or_took_too_long_does_not_hold(changes: dict[str, Any]) -> None:
    assert not suite.holds([{**run("alone"), **changes}, *all_runs()[1:]])


def test_a_run_that_is_missing_does_not_hold_and_busy_ones_take_as_long_as_they_take() -> None:
    assert not suite.holds(all_runs()[1:])
    assert suite.holds([each if each["way"] != "busy" else run("busy", 2000.0) for each in all_runs()])


def test_the_table_counts_what_was_green() -> None:
    runs = [run("alone", 280.0), run("alone", 290.0, failed=["a"]), run("busy", 700.0)]
    assert suite.table(runs).splitlines()[2:] == [
        "| alone | 2 | 1 | 97 | 285 | 290 |",
        "| busy | 1 | 1 | 97 | 700 | 700 |",
    ]


def test_a_report_of_pytest_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="3" skipped="1"><testcase classname="tests.a" name="one"/>'
        '<testcase classname="tests.a" name="two"><failure/></testcase>'
        '<testcase classname="tests.b" name="three"><skipped/></testcase></testsuite></testsuites>'
    )
    assert suite._counted(report) == {"tests": 3, "skipped": 1, "failed": ["tests.a.two"]}
    assert suite._counted(tmp_path / "gone.xml") == {"tests": 0, "skipped": 0, "failed": []}
