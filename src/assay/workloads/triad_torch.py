"""The triad of the STREAM benchmark by PyTorch, a = b + s·c: ``torch.add`` into a kept output."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.workloads.problems import Vector
from assay.workloads.reference import tolerance
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import DTYPES, TorchWorkload, Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_reference import Which

S = 3.0


class TriadTorch(TorchWorkload):
    """``triad@torch``, with s = 3."""

    name = "triad"
    summary = "a = b + 3·c over n elements by torch.add"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the elements, their dtype and distribution: 256 MiB each on a GPU, 64 MiB on a CPU, beyond caches."""
        n = 2**26 if device_kind == "cuda" else 2**24
        return {"n": n, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw b and c, and set a aside."""
        problem, where = Vector.of(params, DTYPES), open_device(device)
        b, c = (
            draw(params["distribution"], (problem.n,), problem.dtype, seed, where=where, stream=stream)
            for stream in range(2)
        )
        out = b.new_empty((problem.n,))

        def right(which: Which) -> Tensor:
            return b[which].double() + S * c[which].double()

        return Work(
            call=partial(import_torch().add, b, c, alpha=S, out=out),
            truth=Truth(problem.n, right, flop_per_row=2.0, elements_per_row=1.0),
            tolerance=tolerance(problem.dtype),
            flop=2.0 * problem.n,
            bytes_moved=problem.bytes_of(3),
            out=out,
        ).prepared(where=where, seed=seed)


WORKLOAD: Workload = TriadTorch()
