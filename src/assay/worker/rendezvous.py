"""The processes of a torchrun: this process's rank, and how ranks find rank 0 through torchrun's store.

Run as a module, it is the torchrun of one node, started on another machine: it writes a marker file once PyTorch is
imported, before it waits for the other nodes.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_KEY = "assay/hub"


@dataclass(frozen=True)
class Torchrun:
    """This process's rank among those that torchrun started."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    address: str
    port: int
    agent_store: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Torchrun | None:
        """Return this process's rank, or null when it was not started by torchrun."""
        needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
        if any(name not in environment for name in needed):
            return None
        return cls(
            rank=int(environment["RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment.get("LOCAL_RANK", environment["RANK"])),
            local_world_size=int(environment.get("LOCAL_WORLD_SIZE", environment["WORLD_SIZE"])),
            node=int(environment.get("GROUP_RANK", "0")),
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def nodes(self) -> int:
        """The number of nodes, each with the same number of processes."""
        return -(-self.world_size // self.local_world_size)

    def local_ranks(self, ranks: int) -> int:
        """Return how many of the first ``ranks`` ranks are on this process's node."""
        first = self.rank - self.local_rank
        return max(0, min(self.local_world_size, ranks - first))


def devices_of_ranks(devices: tuple[str, ...], torchrun: Torchrun | None) -> tuple[str, ...]:
    """Return the devices that ranks take in turn: of several nodes, as many as there are processes on one.

    Devices are numbered on each node from 0: rank 4, the first of a second node with four processes, takes ``cuda:0``.
    """
    return devices if torchrun is None or torchrun.nodes == 1 else devices[: torchrun.local_world_size]


def own_address(torchrun: Torchrun, within_s: float = 60.0) -> str:
    """Return an address of this machine that the other ranks can reach.

    The store may be on another node than rank 0. If it is on this one, the others have reached it by its configured
    name; otherwise they can reach this machine at the address from which it reaches the store.
    """
    try:
        with socket.create_connection((torchrun.address, torchrun.port), timeout=within_s) as connection:
            local_address, store_address = str(connection.getsockname()[0]), str(connection.getpeername()[0])
    except OSError as error:
        store = f"{torchrun.address}:{torchrun.port}"
        raise MachineCannot(
            f"The store of this torchrun, {store}, does not answer: {error.strerror or error}."
        ) from None
    return torchrun.address if local_address == store_address else local_address


def open_store(torchrun: Torchrun, within_s: float) -> Any:
    """Return the store that all ranks share; rank 0 hosts it if torchrun does not."""
    from torch.distributed import TCPStore

    return TCPStore(
        torchrun.address,
        torchrun.port,
        is_master=torchrun.rank == 0 and not torchrun.agent_store,
        timeout=timedelta(seconds=within_s),
        wait_for_workers=False,
    )


def publish_hub(store: Any, hub: str) -> None:
    """Publish the address where rank 0 listens."""
    store.set(_KEY, hub)


def find_hub(torchrun: Torchrun, within_s: float = 60.0) -> str:
    """Return the address where rank 0 listens, waiting for it."""
    from torch.distributed import DistError

    try:
        return str(open_store(torchrun, within_s).get(_KEY).decode())
    except DistError as error:
        raise MachineCannot(f"Rank 0 of this torchrun was not to be found within {within_s:.0f} s: {error}") from None


def main(arguments: Sequence[str]) -> None:
    """Import PyTorch, which may fail or hang on one node of many, write the marker, and run torchrun."""
    from torch.distributed.run import main as torchrun

    marker, *torchrun_arguments = arguments
    Path(marker).write_text("joins\n", encoding="ascii")
    torchrun(torchrun_arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
