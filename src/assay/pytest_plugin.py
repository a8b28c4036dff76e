"""A pytest plugin: the fixture ``assay_clock`` measures inside tests and lists the results at the end.

Importing this file imports no other module of Assay: pytest loads it in every run where Assay is installed.
"""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from assay.timing.compare import compare
    from assay.timing.measure import measure
    from assay.timing.pick import pick

ClockResult: TypeAlias = "dict[str, Any]"
"""One result: what kind it is, in which test it was made, the result in one line, and as JSON data."""

_CLOCK_RESULTS = pytest.StashKey["list[ClockResult]"]()
_HOMES = {"compare": "assay.timing.compare", "measure": "assay.timing.measure", "pick": "assay.timing.pick"}


class AssayClock:
    """``assay.measure``, ``compare`` and ``pick``, whose results are listed at the end of the test run."""

    if TYPE_CHECKING:
        compare = staticmethod(compare)
        measure = staticmethod(measure)
        pick = staticmethod(pick)

    def __init__(self, results: list[ClockResult], test: str) -> None:
        self._results = results
        self._test = test

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _HOMES:
            raise AttributeError(f"assay_clock has {', '.join(_HOMES)}, and no {name!r}")
        function = getattr(importlib.import_module(_HOMES[name]), name)

        @functools.wraps(function)
        def keeping(*args: Any, **kwargs: Any) -> Any:
            from assay.timing.results import format_one_line

            result = function(*args, **kwargs)
            kind = type(result).__name__.lower()
            self._results.append(
                {"kind": kind, "test": self._test, "line": format_one_line(result), "result": result.as_json()}
            )
            return result

        return keeping


@pytest.fixture
def assay_clock(request: pytest.FixtureRequest) -> AssayClock:
    """Measures, compares and picks; what it finds is listed at the end, and written by ``--assay-json``."""
    node: pytest.Item = request.node
    return AssayClock(node.stash.setdefault(_CLOCK_RESULTS, []), node.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send what was measured along with the report: with pytest-xdist, from a worker to the controller."""
    report = yield
    results = item.stash.get(_CLOCK_RESULTS, [])
    if results:
        report.assay = list(results)  # type: ignore[attr-defined]
        results.clear()
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer ``--assay-json``."""
    group = parser.getgroup("assay", "how long things take")
    group.addoption(
        "--assay-json", metavar="FILE", type=Path, help="write what assay_clock measured to a file, as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Gather the results, but not in the workers of pytest-xdist; a file that cannot be written is said at once."""
    if hasattr(config, "workerinput"):
        return
    file: Path | None = config.getoption("assay_json")
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise pytest.UsageError(f"--assay-json: {file} cannot be written; it must be a file in a folder that is there")
    config.pluginmanager.register(ClockReport(file), "assay-gathered")


class ClockReport:
    """The results of all tests, shown and written at the end."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._all: list[ClockResult] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in what was measured in a test."""
        self._all += getattr(report, "assay", [])

    def pytest_sessionfinish(self) -> None:
        """Write the file that was asked for, also when nothing was measured."""
        if self._file is None:
            return
        results = [{name: value for name, value in entry.items() if name != "line"} for entry in self._all]
        text = json.dumps({"schema": 1, "results": results}, indent=2, ensure_ascii=False)
        self._file.write_text(text + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the results by test, where there are any."""
        if not self._all:
            return
        terminalreporter.section("assay")
        last = None
        for entry in self._all:
            if entry["test"] != last:
                last = entry["test"]
                terminalreporter.write_line(last)
            for line in entry["line"].splitlines():
                terminalreporter.write_line(f"  {line}")
