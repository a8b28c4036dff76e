"""The other ranks of a role: one process group to a worker, made once, shared by its subjects, closed with the last.

Ranks meet over gloo, which needs nothing but the host. Where each has a GPU of its own, tensors go over NCCL; ranks
that share a GPU, which NCCL refuses, exchange over gloo too.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Ranks:
    """Who this process is among the ranks; ``group`` carries tensors, null for the one that gloo made."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def align(self) -> None:
        """Wait until all ranks are here."""
        if self.size > 1:
            import_torch().distributed.barrier()


@dataclass
class _Meeting:
    """The ranks of this process while someone uses them."""

    ranks: Ranks | None = None
    users: int = 0


_HERE = _Meeting()


def join(where: str) -> Ranks:
    """Return the ranks, met now unless they were before; ``where`` is PyTorch's name of this rank's device."""
    if _HERE.ranks is None:
        _HERE.ranks = _met(where, os.environ)
    _HERE.users += 1
    return _HERE.ranks


def leave() -> None:
    """Be done with the ranks; the last to say so closes the group."""
    _HERE.users -= 1
    if _HERE.users > 0 or _HERE.ranks is None:
        return
    ranks, _HERE.ranks = _HERE.ranks, None
    if ranks.size > 1:
        import_torch().distributed.destroy_process_group()


def _met(where: str, environment: Mapping[str, str]) -> Ranks:
    size = int(environment.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if environment.get("MASTER_ADDR") in LOCAL and "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist = import_torch().distributed
    dist.init_process_group("gloo")
    return Ranks(dist.get_rank(), size, _own_gpus(where, size))


def _own_gpus(where: str, size: int) -> Any:
    """Return a group over NCCL where every rank has a GPU of its own; null where not all do."""
    torch = import_torch()
    dist = torch.distributed
    mine = None if where == "cpu" else f"{socket.gethostname()} {torch.cuda.get_device_properties(where).uuid}"
    everyones: list[str | None] = [None] * size
    dist.all_gather_object(everyones, mine)
    if None in everyones or len(set(everyones)) < size or not dist.is_nccl_available():
        return None
    group = dist.new_group(backend="nccl")
    dist.barrier(group, device_ids=[torch.device(where).index])
    return group
