"""What tells the ranks of a role who they are."""

from __future__ import annotations

import socket

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_GROUP_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_", "TORCH_NCCL_ASYNC")


def free_port() -> int:
    """Return a TCP port that nobody listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def rank_environment(
    rank: int,
    ranks: int,
    *,
    address: str = "127.0.0.1",
    port: int,
    local_rank: int | None = None,
    local_ranks: int | None = None,
) -> dict[str, str]:
    """Return the variables that torch.distributed and its kin read; on one machine, all ranks are local ones."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "LOCAL_WORLD_SIZE": str(ranks if local_ranks is None else local_ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def is_torchrun_variable(name: str) -> bool:
    """Return whether a variable belongs to an enclosing torchrun and must not reach our own ranks."""
    return name in TORCHRUN_VARIABLES or name.startswith(_GROUP_PREFIXES)
