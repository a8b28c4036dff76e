"""Whatever goes wrong, nothing is left: random faults in virtual time, and clients that are really killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.guardian import Guardian
from tests.hosts.standins.killing import kills
from tests.hosts.standins.schedules import LATE_S, draw, play
from tests.hosts.standins.victims import WITH_GUARDIAN
from tests.hosts.standins.wired import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", autouse=True)
def one_guardian() -> Iterator[None]:
    """Share one guardian: it is the schedules that kill."""
    with Guardian():
        yield


@pytest.mark.full
@pytest.mark.parametrize("decade", range(10))
@pytest.mark.parametrize("provider", ["runpod", "lambda"])
def test_nothing_is_left_after_any_schedule_of_faults(
    provider: str, decade: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS[provider], "a-key")
    for seed in range(10 * decade, 10 * decade + 10):
        monkeypatch.setenv("ASSAY_HOME", str(tmp_path / str(seed)))
        schedule = draw(provider, seed)
        outcome = play(schedule)
        assert (outcome.left_after_reap, outcome.keys_left) == (0, 0), (schedule, outcome)
        assert outcome.finished or not schedule.could_finish, (schedule, outcome)
        assert not (outcome.finished and schedule.hopeless), (schedule, outcome)
        if schedule.ends != "kill -9" and all(fate.listed_s <= LATE_S for fate in schedule.fates):
            assert outcome.left_at_end == 0, (schedule, outcome)


@pytest.mark.full
def test_a_client_that_is_killed_or_stopped_leaves_nothing_after_the_next_reap() -> None:
    for killed in kills(["kill -9", WITH_GUARDIAN] * 5 + ["SIGTERM", "SIGINT"], seed=1):
        assert (killed.reap_code, killed.left_after_reap, killed.leases_left) == (0, 0, 0), killed
        assert killed.left_before_reap in {None, 0}, killed
