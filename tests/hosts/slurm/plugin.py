"""The cluster as a fixture, and what its tests saw for the end of a run, state by state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hosts.slurm.cluster import Cluster, missing
from tests.needing import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.telling import Telling


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A controller and nodes for the whole session, ended with it; in CI a missing Slurm fails."""
    need(missing(), "Slurm")
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
def tell(telling: Telling) -> Callable[[str], None]:
    """Keep a line for the end of the run."""
    return lambda line: telling("what Slurm did", line)
