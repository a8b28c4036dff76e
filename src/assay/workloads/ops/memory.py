"""Memory traffic by PyTorch: a copy within device memory, the STREAM triad, and copies over PCIe.

``memcpy`` is ``Tensor.copy_`` from one tensor into another, ``triad`` is a = b + s·c by ``torch.add`` into a
preallocated output, and ``pcie_copy`` moves pinned host memory to a GPU and back, in both directions at once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.core.results import Check
from assay.workloads.base import PreparedWorkload, UntunedWorkload
from assay.workloads.numpy_support import tolerance_of
from assay.workloads.parameters import ITEM_BYTES, TriadProblem, VectorProblem, check_choice, read_size
from assay.workloads.torch_device import free_bytes, import_torch, open_device, synchronizer
from assay.workloads.torch_support import (
    TORCH_DTYPES,
    TensorReference,
    TensorWork,
    TorchOperator,
    TorchWorkload,
    draw_tensor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.numpy_support import ArrayShape
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


DIRECTIONS = ("both", "to", "from")


class PcieCopyTorch(UntunedWorkload):
    """``pcie_copy@torch``. Its bytes are those that cross the bus in both directions, each counted once."""

    name = "pcie_copy"
    impl = "torch"
    device_kinds = frozenset({"cuda"})
    choices = {"direction": DIRECTIONS}  # noqa: RUF012 - never changed
    summary = "Copies pinned memory of the host to a GPU, from it, or both ways at once"

    def defaults(self, device_kind: str = "cuda") -> Params:
        """Return the MiB that a call copies in each direction, and the directions."""
        return {"mib": 64, "direction": "both"}

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
            share = wrong / (amount * len(copies))
            return Check(error=share, tolerance=0.0, measure="share of bytes that differ")

        return PreparedWorkload(
            call=call, check=check, bytes_moved=float(amount * len(copies)), synchronize=synchronizer(where)
        )


INDEX_DISTRIBUTIONS = ("uniform", "zipf")
LARGEST_ALPHA = 4.0
_STREAM = 1


def check_alpha(alpha: object) -> float:
    """Return the exponent of Zipf's law, a number above 0."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= LARGEST_ALPHA:
        raise BadInput(f"alpha is a number above 0 and at most {LARGEST_ALPHA:g}, not {alpha!r}.")
    return float(alpha)


def draw_indices(indices: str, rows: int, shape: ArrayShape, seed: int, *, alpha: float, where: str) -> Tensor:
    """Return the indices of the rows to look up, drawn by the host and so the same on every device."""
    generator = np.random.default_rng([seed, _STREAM])
    if indices == "uniform":
        return import_torch().from_numpy(generator.integers(0, rows, shape, dtype=np.int64)).to(where)
    return _zipf_rows(rows, generator.random(math.prod(shape)), alpha, where).view(shape)


def _zipf_rows(rows: int, samples: np.ndarray[tuple[int], np.dtype[np.float64]], alpha: float, where: str) -> Tensor:
    """Return rows by Zipf's law: the r-th most frequent one occurs 1/r^alpha times as often as the first.

    The most frequent ones are scattered over the table, as in a hashed one.
    """
    torch = import_torch()
    cumulative = torch.arange(1, rows + 1, dtype=torch.float64, device=where).pow_(-alpha).cumsum_(0)
    ranks = torch.searchsorted(cumulative, torch.from_numpy(samples).to(where) * cumulative[-1]).clamp_(max=rows - 1)
    return ranks.mul_(_coprime_step(rows)).remainder_(rows)


def _coprime_step(rows: int) -> int:
    """Return a step near the golden section of the rows and coprime to their number, so that it visits every row."""
    step = max(1, int(rows * 0.6180339887498949))
    while math.gcd(step, rows) != 1:
        step += 1
    return step


INDEX_BYTES = 8
EXTRA_BYTES = 2**28


class EmbeddingTorch(TorchWorkload):
    """``embedding@torch``. Its bytes are the distinct rows read once, the indices, and the bags written.

    The bytes of all lookups, with repeated rows, are among the measured facts: caches serve the rest.
    """

    name = "embedding"
    choices: Mapping[str, tuple[str, ...]] = {**TorchWorkload.choices, "indices": INDEX_DISTRIBUTIONS}
    summary = "Bags of rows looked up in a large table and summed, as in recommendation, by torch's embedding_bag"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the table, the bags, and how rows are chosen: 4 GiB on a GPU, beyond caches on a CPU."""
        sizes: Params = {"rows": 2**19, "dim": 64, "batch": 512, "pooling": 32}
        if device_kind == "cuda":
            sizes = {"rows": 2**23, "dim": 128, "batch": 2**16, "pooling": 32}
        return {**sizes, "indices": "uniform", "alpha": 1.05, "dtype": "float32", "distribution": "normal"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an invalid exponent."""
        check_alpha(params["alpha"])

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw the table and which of its rows make each bag."""
        rows, dim, batch, pooling = (read_size(params, name) for name in ("rows", "dim", "batch", "pooling"))
        dtype = check_choice("dtype", params["dtype"], TORCH_DTYPES)
        indices, alpha = check_choice("indices", params["indices"], INDEX_DISTRIBUTIONS), check_alpha(params["alpha"])
        torch, where = import_torch(), open_device(device)
        row_bytes, lookups = dim * ITEM_BYTES[dtype], batch * pooling
        needed = rows * row_bytes + lookups * 3 * INDEX_BYTES + batch * row_bytes + rows * INDEX_BYTES
        needed_gib, free_gib = (needed + EXTRA_BYTES) / 2**30, free_bytes(where) / 2**30
        if needed_gib > free_gib:
            raise MachineCannot(
                f"embedding with this table needs {needed_gib:.1f} GiB of memory, and {free_gib:.1f} GiB are free on "
                f"{device}: give it fewer rows."
            )
        table = draw_tensor(params["distribution"], (rows, dim), dtype, seed, where=where)
        indices_used = draw_indices(indices, rows, (batch, pooling), seed, alpha=alpha, where=where)
        starts = torch.arange(0, lookups, pooling, device=where)
        distinct = int(indices_used.unique().numel())
        work = TensorWork(
            call=partial(torch.nn.functional.embedding_bag, indices_used.view(-1), table, starts, mode="sum"),
            reference=embedding_reference(table, indices_used),
            tolerance=tolerance_of(dtype),
            flop=float(batch * (pooling - 1) * dim) or None,
            bytes_moved=float((distinct + batch) * row_bytes + (lookups + batch) * INDEX_BYTES),
        )
        lookup_counts = {
            "lookups": float(lookups),
            "distinct_rows": float(distinct),
            "gathered_mib": lookups * row_bytes / 2**20,
        }
        return replace(work.prepare(where=where, seed=seed), measured=lambda: lookup_counts)


def embedding_reference(table: Tensor, indices: Tensor) -> TensorReference:
    """Return the reference of the bags: the sums of their rows."""
    elements = float(indices.shape[1] * table.shape[1])

    def right(which: RowSelection) -> Tensor:
        return table[indices[which]].double().sum(1)

    return TensorReference(indices.shape[0], right, flop_per_row=elements, elements_per_row=elements)


MEMCPY_TORCH: Workload = MemcpyTorch()
TRIAD_TORCH: Workload = TriadTorch()
PCIE_COPY_TORCH: Workload = PcieCopyTorch()
EMBEDDING_TORCH: Workload = EmbeddingTorch()
