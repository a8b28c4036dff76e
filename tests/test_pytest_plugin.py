"""The pytest plugin: results of a fixture listed and written at the end, and nothing where nothing was measured."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest

import assay
from assay.pytest_plugin import AssayClock

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def work(n):
    return lambda: sum(range(n))

def test_how_long(assay_clock):
    assert assay_clock.measure(work(1000), budget_s=0.2, name="summing").call_us.value > 0

@pytest.mark.parametrize("times", [3, 5])
def test_which_is_faster(assay_clock, times):
    found = assay_clock.compare({"once": work(1000), "more": work(1000 * times)}, budget_s=2)
    assert found.verdict == "slower"

def test_which_is_best(assay_clock):
    assert assay_clock.pick({"long": work(5000), "short": work(100)}, budget_s=2).winner == "short"

def test_nothing():
    pass
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:randomly", *arguments)


def test_it_is_found_by_pytest() -> None:
    (point,) = (point for point in entry_points(group="pytest11") if point.name == "assay")
    assert point.value == "assay.pytest_plugin"


@pytest.mark.full
def test_what_was_measured_is_listed_at_the_end_by_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    done = run(pytester)
    done.assert_outcomes(passed=5)
    done.stdout.fnmatch_lines(
        [
            "*= assay =*",
            "test_it.py::test_how_long",
            "  summing: * (call on cpu, by wall)",
            "test_it.py::test_which_is_faster[[]3[]]",
            "  more is slower than once by more than 1 %, *× (*–*) its time",
            "test_it.py::test_which_is_faster[[]5[]]",
            "test_it.py::test_which_is_best",
            "  short: *, of 2 within 1 % of the best with probability *",
        ]
    )


@pytest.mark.full
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "with xdist"])
def test_all_results_are_written_as_json(workers: tuple[str, ...], pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    done = run(pytester, "--assay-json", "out.json", *workers)
    done.assert_outcomes(passed=5)
    done.stdout.fnmatch_lines(["*= assay =*", "  short: *"])
    written = json.loads((pytester.path / "out.json").read_text())
    assert written["schema"] == 1
    kinds = {(result["test"].split("::")[1], result["kind"]) for result in written["results"]}
    assert kinds == {
        ("test_how_long", "measurement"),
        ("test_which_is_faster[3]", "comparison"),
        ("test_which_is_faster[5]", "comparison"),
        ("test_which_is_best", "pick"),
    }
    measured = next(result for result in written["results"] if result["kind"] == "measurement")
    assert assay.Measurement.model_validate(measured["result"]).name == "summing"


def test_without_a_measurement_there_is_no_section_and_the_file_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    done = run(pytester, "--assay-json", "out.json")
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*= assay =*")
    assert json.loads((pytester.path / "out.json").read_text())["results"] == []


@pytest.mark.full
def test_what_was_measured_before_a_test_failed_is_listed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(assay_clock):
            assay_clock.measure(lambda: sum(range(1000)), budget_s=0.1, name="before")
            assert False
        """
    )
    done = run(pytester)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*= assay =*", "  before: *"])


@pytest.mark.full
def test_a_fixture_of_the_users_may_measure_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def baseline(assay_clock):
            return assay_clock.measure(lambda: sum(range(1000)), budget_s=0.1, name="baseline")

        def test_it(baseline):
            assert baseline.name == "baseline"
        """
    )
    done = run(pytester)
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["  baseline: *"])


@pytest.mark.full
def test_a_measurement_that_fails_fails_the_test_with_its_sentence(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(assay_clock): assay_clock.measure(lambda: 1 / 0)")
    done = run(pytester)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*TrialFailed: *raised ZeroDivisionError: division by zero*"])


@pytest.mark.parametrize("file", ["nowhere/out.json", "."])
def test_a_file_that_cannot_be_written_is_said_before_any_test_runs(file: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): open('ran.txt', 'w')")
    done = run(pytester, "--assay-json", file)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--assay-json: * cannot be written*"])
    assert not (pytester.path / "ran.txt").exists()


def test_the_fixtures_functions_have_the_signatures_of_the_public_ones() -> None:
    clock = AssayClock([], "test")
    for name in ("measure", "compare", "pick"):
        assert inspect.signature(getattr(clock, name)) == inspect.signature(getattr(assay, name))
    with pytest.raises(AttributeError, match="no 'time'"):
        _ = clock.time


def test_importing_it_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys\nimport assay.pytest_plugin\n"
        "heavy = {'numpy', 'scipy', 'torch', 'pydantic', 'rich', 'click', 'assay.timing'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
