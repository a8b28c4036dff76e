"""The stand-in for clients that are killed: over loopback, by the real clock, with random fates."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from assay.hosts.rented.context import RentalClock
from tests.hosts.standins.answering import Served
from tests.hosts.standins.cloud import Fate
from tests.hosts.standins.runpod import RunPodService, cloud
from tests.hosts.standins.victims import Killed, Victims, kill_one

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.hosts.standins.cloud import Fault


def kills(hows: Iterable[str], seed: int) -> list[Killed]:
    """End clients in these ways, each at a random moment; say what each came to."""
    rng = random.Random(seed)
    account = cloud(RentalClock())
    served, victims = Served(RunPodService(account)), Victims()
    found: list[Killed] = []
    try:
        for how in hows:
            account.usual = Fate(
                listed_s=rng.choice((0.0, rng.uniform(0, 0.3))),
                up_s=rng.uniform(0.02, 0.3),
                gone_s=rng.uniform(0, 0.2),
                deaf=rng.choice((0, 0, 1)),
                twins=rng.choice((0, 0, 0, 1)),
            )
            launch: list[Fault | None] = [rng.choice((None, None, "drop_before", "drop_after", "trouble_after"))]
            account.faults = lambda method, path, launch=launch: (  # type: ignore[misc]
                launch.pop() if launch and (method, path) == ("POST", "/pods") else None
            )
            with tempfile.TemporaryDirectory(prefix="assay-killed-") as home:
                found.append(kill_one(victims, served, Path(home), rng, how))
    finally:
        victims.close()
        served.close()
    if served.wrong:
        raise AssertionError(served.wrong[0])
    return found
