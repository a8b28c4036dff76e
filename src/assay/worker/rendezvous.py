"""Meet the other processes of a torchrun through the store it already keeps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY = "assay/hub"


@dataclass(frozen=True)
class Torchrun:
    """This process's place among those that torchrun started."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int
    agent_store: bool

    @classmethod
    def found(cls, environment: Mapping[str, str] = os.environ) -> Torchrun | None:
        """Return this process's place, or null when no torchrun started it."""
        needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
        if any(name not in environment for name in needed):
            return None
        return cls(
            rank=int(environment["RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment.get("LOCAL_RANK", environment["RANK"])),
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def _store(place: Torchrun, within_s: float) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(
        place.address,
        place.port,
        is_master=place.rank == 0 and not place.agent_store,
        timeout=timedelta(seconds=within_s),
        wait_for_workers=False,
    )


def publish(place: Torchrun, hub: str, within_s: float = 60.0) -> object:
    """Let the other ranks know where rank 0 listens; the store is returned to be kept until the end."""
    store = _store(place, within_s)
    store.set(_KEY, hub)
    return store


def look_up(place: Torchrun, within_s: float = 60.0) -> str:
    """Return where rank 0 listens, waiting for it."""
    from torch.distributed import DistError

    try:
        return str(_store(place, within_s).get(_KEY).decode())
    except DistError as error:
        raise MachineCannot(f"Rank 0 of this torchrun was not to be found within {within_s:.0f} s: {error}") from None
