"""What tests saw that a log should show, printed at the end of a run under a heading of its own, test by test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from _pytest.terminal import TerminalReporter

PREFIX = "told: "


class Telling(Protocol):
    """Keeps a line for the end of the run, under a heading."""

    def __call__(self, heading: str, line: str) -> None: ...


@pytest.fixture
def telling(record_property: Callable[[str, object], None]) -> Telling:
    """Keep lines for the end of the run."""

    def keep(heading: str, line: str) -> None:
        record_property(f"{PREFIX}{heading}", line)

    return keep


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print what was told."""
    told: dict[str, list[tuple[str, str]]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for name, line in report.user_properties:
                if name.startswith(PREFIX):
                    told.setdefault(name.removeprefix(PREFIX), []).append((report.nodeid.rpartition("::")[2], line))
    for heading, lines in sorted(told.items()):
        terminalreporter.section(heading)
        before = ""
        for test, line in lines:
            if test != before:
                terminalreporter.write_line(test)
            terminalreporter.write_line(f"    {line}")
            before = test
