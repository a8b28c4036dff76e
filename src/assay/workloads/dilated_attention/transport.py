"""How a message gets from rank to rank: over the group, through host memory where gloo needs that, or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.torch_device import Tensor


@dataclass(frozen=True)
class Still:
    """Stands for the group where nothing is sent: what would arrive is there already, drawn once and kept."""

    _kept: dict[Any, Tensor] = field(default_factory=dict)

    def arrived(self, shape: tuple[int, ...], dtype: Any, device: Any) -> Tensor:
        """Return what would have arrived: numbers as good as any."""
        key = shape, dtype, str(device)
        if key not in self._kept:
            torch = import_torch()
            self._kept[key] = torch.randn(shape, dtype=torch.float32, device=device).to(dtype)
        return self._kept[key]


@dataclass(frozen=True)
class Landing:
    """A message that comes to the host, and from there to where it is wanted as soon as it is waited for."""

    work: Any
    host: Tensor
    target: Tensor

    def wait(self) -> None:
        """Wait for the message, and put it where it is wanted."""
        self.work.wait()
        self.target.copy_(self.host)


def through_host(group: Any, tensor: Tensor) -> bool:
    """Return whether a tensor can only be sent from host memory: gloo takes no others from one rank to another."""
    return bool(tensor.is_cuda) and import_torch().distributed.get_backend(group) == "gloo"


def begin(
    group: Any, send: Tensor | None, send_to: int | None, receive: Tensor | None, receive_from: int | None
) -> list[Any]:
    """Begin to send and to receive, where there is someone to; return what to wait for."""
    dist = import_torch().distributed
    operations, host = [], None
    if send_to is not None and send is not None:
        staged = send.to("cpu", copy=True) if through_host(group, send) else send
        operations.append(dist.P2POp(dist.isend, staged, group=group, group_peer=send_to))
    if receive_from is not None and receive is not None:
        host = import_torch().empty_like(receive, device="cpu") if through_host(group, receive) else None
        landing = receive if host is None else host
        operations.append(dist.P2POp(dist.irecv, landing, group=group, group_peer=receive_from))
    works = list(dist.batch_isend_irecv(operations)) if operations else []
    if host is not None:
        works[-1] = Landing(works[-1], host, receive)
    return works
