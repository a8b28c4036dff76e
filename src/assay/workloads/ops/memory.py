"""Memory traffic by PyTorch: a copy within device memory, the STREAM triad, and copies over PCIe.

``memcpy`` is ``Tensor.copy_`` from one tensor into another, ``triad`` is a = b + s·c by ``torch.add`` into a
preallocated output, and ``pcie_copy`` moves pinned host memory to a GPU and back, in both directions at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.results import Check
from assay.workloads.base import PreparedWorkload
from assay.workloads.numpy_support import tolerance_of
from assay.workloads.parameters import VectorProblem, check_choice, read_size
from assay.workloads.torch_device import import_torch, open_device, synchronizer
from assay.workloads.torch_support import TORCH_DTYPES, TensorReference, TensorWork, TorchWorkload, draw_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import RowSelection


class MemcpyTorch(TorchWorkload):
    """``memcpy@torch``. It computes nothing, so its operations are null and its bytes are those read and written."""

    name = "memcpy"
    summary = "Copy of n elements within the device's memory by Tensor.copy_"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the elements, their dtype and distribution: 256 MiB on a GPU and 64 MiB on a CPU, beyond caches."""
        n = 2**26 if device_kind == "cuda" else 2**24
        return {"n": n, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw the source, and allocate the copy."""
        problem, where = VectorProblem.of(params, TORCH_DTYPES), open_device(device)
        x = draw_tensor(params["distribution"], (problem.n,), problem.dtype, seed, where=where)
        out = x.new_empty((problem.n,))
        return TensorWork(
            call=partial(out.copy_, x),
            reference=TensorReference(
                problem.n, lambda which: x[which].double(), flop_per_row=0.0, elements_per_row=1.0
            ),
            tolerance=0.0,
            flop=None,
            bytes_moved=problem.bytes_of(2),
            out=out,
        ).prepare(where=where, seed=seed)


MEMCPY_TORCH: Workload = MemcpyTorch()


TRIAD_SCALAR = 3.0


class TriadTorch(TorchWorkload):
    """``triad@torch``, with s = 3."""

    name = "triad"
    summary = "a = b + 3·c over n elements by torch.add"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the elements, their dtype and distribution: 256 MiB each on a GPU, 64 MiB on a CPU, beyond caches."""
        n = 2**26 if device_kind == "cuda" else 2**24
        return {"n": n, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw b and c, and allocate a."""
        problem, where = VectorProblem.of(params, TORCH_DTYPES), open_device(device)
        b, c = (
            draw_tensor(params["distribution"], (problem.n,), problem.dtype, seed, where=where, stream=stream)
            for stream in range(2)
        )
        out = b.new_empty((problem.n,))

        def right(which: RowSelection) -> Tensor:
            return b[which].double() + TRIAD_SCALAR * c[which].double()

        return TensorWork(
            call=partial(import_torch().add, b, c, alpha=TRIAD_SCALAR, out=out),
            reference=TensorReference(problem.n, right, flop_per_row=2.0, elements_per_row=1.0),
            tolerance=tolerance_of(problem.dtype),
            flop=2.0 * problem.n,
            bytes_moved=problem.bytes_of(3),
            out=out,
        ).prepare(where=where, seed=seed)


TRIAD_TORCH: Workload = TriadTorch()


DIRECTIONS = ("both", "to", "from")
COPIES_PER_CALL = {"both": 2, "to": 1, "from": 1}
DIFFERING_BYTES = "share of bytes that differ"


class PcieCopyTorch:
    """``pcie_copy@torch``. Its bytes are those that cross the bus in both directions, each counted once."""

    name = "pcie_copy"
    impl = "torch"
    device_kinds = frozenset({"cuda"})
    choices = {"direction": DIRECTIONS}  # noqa: RUF012 - never changed
    summary = "Copies pinned memory of the host to a GPU, from it, or both ways at once"

    def defaults(self, device_kind: str = "cuda") -> Params:
        """Return the MiB that a call copies in each direction, and the directions."""
        return {"mib": 64, "direction": "both"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return no configurations: there is nothing to tune."""
        return ()

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Allocate pinned and device memory, and a stream for each direction."""
        direction = check_choice("direction", params["direction"], DIRECTIONS)
        amount = read_size(params, "mib") * 2**20
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
            return Check(error=wrong / (amount * len(copies)), tolerance=0.0, measure=DIFFERING_BYTES)

        return PreparedWorkload(
            call=call,
            check=check,
            bytes_moved=float(amount * COPIES_PER_CALL[direction]),
            synchronize=synchronizer(where),
        )


PCIE_COPY_TORCH: Workload = PcieCopyTorch()
