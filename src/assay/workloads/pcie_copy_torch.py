"""A busy bus: pinned memory of the host copied to a GPU and back, both ways at once, by PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.results import Check
from assay.workloads.base import Prepared
from assay.workloads.parameters import one_of, size
from assay.workloads.torch_device import import_torch, open_device, synchronizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload

DIRECTIONS = ("both", "to", "from")
WAYS = {"both": 2, "to": 1, "from": 1}
MEASURE = "share of bytes that differ"


class PcieCopyTorch:
    """``pcie_copy@torch``. Its bytes are those that cross the bus, each counted once, both ways together."""

    name = "pcie_copy"
    impl = "torch"
    device_kinds = frozenset({"cuda"})
    choices = {"direction": DIRECTIONS}  # noqa: RUF012 - nobody changes it
    summary = "Copies pinned memory of the host to a GPU, from it, or both ways at once"

    def defaults(self, device_kind: str = "cuda") -> Params:
        """Return the MiB that a call copies each way, and which ways."""
        return {"mib": 64, "direction": "both"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: there is nothing to tune."""
        return ()

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Set pinned and device memory aside, a stream for each way."""
        direction = one_of("direction", params["direction"], DIRECTIONS)
        amount = size(params, "mib") * 2**20
        where = open_device(device)
        if where == "cpu":
            raise BadInput(f"pcie_copy@torch copies between the host and a GPU, and {device} is none.")
        torch = import_torch()
        pattern = torch.arange(256, dtype=torch.uint8).repeat(amount // 256)
        copies = [
            (torch.empty(amount, dtype=torch.uint8, device=where), pattern.pin_memory()),
            (torch.empty(amount, dtype=torch.uint8, pin_memory=True), pattern.to(where)),
        ]
        copies = {"both": copies, "to": copies[:1], "from": copies[1:]}[direction]
        streams = [torch.cuda.Stream(where) for _ in copies]

        def call() -> None:
            current = torch.cuda.current_stream(where)
            for (target, source), stream in zip(copies, streams, strict=True):
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    target.copy_(source, non_blocking=True)
            for stream in streams:
                current.wait_stream(stream)

        def check() -> Check:
            for target, _ in copies:
                target.fill_(255)
            call()
            torch.cuda.synchronize(where)
            wrong = sum(int((target.cpu() != pattern).sum()) for target, _ in copies)
            return Check(error=wrong / (amount * len(copies)), tolerance=0.0, measure=MEASURE)

        return Prepared(
            call=call, check=check, bytes_moved=float(amount * WAYS[direction]), synchronize=synchronizer(where)
        )


WORKLOAD: Workload = PcieCopyTorch()
