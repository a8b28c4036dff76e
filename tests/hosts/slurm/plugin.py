"""The cluster as a fixture, and at the end of a run what Slurm's tests saw, state by state."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.hosts.slurm.cluster import Cluster, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _pytest.terminal import TerminalReporter

PROPERTY = "slurm"


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A controller and nodes for the whole session, ended with it; in CI a missing Slurm fails."""
    absent = missing()
    if absent:
        why = f"Slurm is not installed ({', '.join(absent)}): `make ci-setup` does that"
        if os.environ.get("ASSAY_CI"):
            pytest.fail(why)
        pytest.skip(why)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(slurm_daemons: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, with Slurm's commands asking it."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_daemons.conf))
    return slurm_daemons


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Keep a line for the end of the run."""

    def keep(line: str) -> None:
        record_property(PROPERTY, line)

    return keep


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print what was told, test by test."""
    told = [
        (report.nodeid.rpartition("::")[2], line)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, line in report.user_properties
        if name == PROPERTY
    ]
    if told:
        terminalreporter.section("what Slurm did")
    before = ""
    for test, line in told:
        if test != before:
            terminalreporter.write_line(test)
        terminalreporter.write_line(f"    {line}")
        before = test
