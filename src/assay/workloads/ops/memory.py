"""Memory traffic by PyTorch: a copy within device memory, the STREAM triad, and copies over PCIe.

``memcpy`` is ``Tensor.copy_`` from one tensor into another, ``triad`` is a = b + s·c by ``torch.add`` into a
preallocated output, and ``pcie_copy`` moves pinned host memory to a GPU and back, in both directions at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from assay.core.errors import BadInput
from assay.core.results import Check
from assay.workloads.base import PreparedWorkload
from assay.workloads.parameters import TriadProblem, VectorProblem, check_choice, read_size
from assay.workloads.torch_device import import_torch, open_device, synchronizer
from assay.workloads.torch_support import TensorReference, TorchOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import RowSelection

_Vectors = TypeVar("_Vectors", bound=VectorProblem)


class VectorTorch(TorchOperator[_Vectors]):
    """An elementwise operator: vectors of 256 MiB on a GPU and 64 MiB on a CPU, beyond caches."""

    cpu_params: ClassVar[Params] = {"n": 2**24, "dtype": "float32"}
    gpu_params: ClassVar[Params] = {"n": 2**26, "dtype": "float32"}


class MemcpyTorch(VectorTorch[VectorProblem]):
    """``memcpy@torch``."""

    name = "memcpy"
    summary = "Copy of n elements within the device's memory by Tensor.copy_"
    problem_type = VectorProblem

    def reference(self, problem: VectorProblem, *inputs: Tensor) -> TensorReference:
        """Return the source."""
        (x,) = inputs
        return TensorReference(problem.n, lambda which: x[which].double(), flop_per_row=0.0, elements_per_row=1.0)

    def tolerance(self, params: Params, dtype: str) -> float:
        """Return 0: a copy is exact."""
        return 0.0

    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return the copy of the source."""
        (x,) = inputs
        out = x.new_empty(x.shape)
        return partial(out.copy_, x), out


TRIAD_SCALAR = 3.0


class TriadTorch(VectorTorch[TriadProblem]):
    """``triad@torch``, with s = 3."""

    name = "triad"
    summary = "a = b + 3·c over n elements by torch.add"
    problem_type = TriadProblem

    def reference(self, problem: TriadProblem, *inputs: Tensor) -> TensorReference:
        """Return b + s·c."""
        b, c = inputs

        def compute_rows(which: RowSelection) -> Tensor:
            return b[which].double() + TRIAD_SCALAR * c[which].double()

        return TensorReference(problem.n, compute_rows, flop_per_row=2.0, elements_per_row=1.0)

    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return ``torch.add`` into an output of its own."""
        b, c = inputs
        out = b.new_empty(b.shape)
        return partial(import_torch().add, b, c, alpha=TRIAD_SCALAR, out=out), out


MEMCPY_TORCH: Workload = MemcpyTorch()
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
