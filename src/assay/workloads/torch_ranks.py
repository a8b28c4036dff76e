"""The process group of a role's ranks: created once per worker, shared by its subjects, closed with the last of them.

Ranks rendezvous over gloo, which needs only the host. Where each rank has its own GPU, tensors go over NCCL; ranks that
share a GPU, which NCCL refuses, use gloo for tensors too.
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
    """This process's rank; ``group`` is the group for tensors, null for the default gloo group."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def align(self) -> None:
        """Wait until all ranks have reached this point."""
        if self.size > 1:
            import_torch().distributed.barrier()


@dataclass
class _GroupState:
    """The ranks of this process and their number of users."""

    ranks: Ranks | None = None
    users: int = 0


_GROUP = _GroupState()


def join_ranks(where: str) -> Ranks:
    """Return the ranks, after a rendezvous at the first call; ``where`` is PyTorch's name of this rank's device."""
    if _GROUP.ranks is None:
        _GROUP.ranks = _init_ranks(where, os.environ)
    _GROUP.users += 1
    return _GROUP.ranks


def leave_ranks() -> None:
    """Stop using the ranks; the last user closes the group."""
    _GROUP.users -= 1
    if _GROUP.users > 0 or _GROUP.ranks is None:
        return
    ranks, _GROUP.ranks = _GROUP.ranks, None
    if ranks.size > 1:
        import_torch().distributed.destroy_process_group()


def _init_ranks(where: str, environment: Mapping[str, str]) -> Ranks:
    size = int(environment.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if environment.get("MASTER_ADDR") in LOCAL and "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist = import_torch().distributed
    dist.init_process_group("gloo")
    return Ranks(dist.get_rank(), size, _nccl_group(where, size))


def _nccl_group(where: str, size: int) -> Any:
    """Return an NCCL group if every rank has its own GPU, else null."""
    torch = import_torch()
    dist = torch.distributed
    gpu_id = None if where == "cpu" else f"{socket.gethostname()} {torch.cuda.get_device_properties(where).uuid}"
    gpu_ids: list[str | None] = [None] * size
    dist.all_gather_object(gpu_ids, gpu_id)
    if None in gpu_ids or len(set(gpu_ids)) < size or not dist.is_nccl_available():
        return None
    group = dist.new_group(backend="nccl")
    dist.barrier(group, device_ids=[torch.device(where).index])
    return group
