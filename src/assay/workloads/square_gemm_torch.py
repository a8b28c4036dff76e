"""Square matrix products by PyTorch, which is cuBLAS on a GPU: ``sgemm``, ``hgemm`` and ``dgemm``.

They are the base load of a study of power: one large kernel a call, the same every time, that fills the whole card.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from assay.workloads import square_sizes
from assay.workloads.data import DISTRIBUTIONS
from assay.workloads.gemm_torch import multiplier
from assay.workloads.parameters import size
from assay.workloads.problems import Gemm
from assay.workloads.reference import tolerance
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import TorchWorkload, Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch, open_device
from assay.workloads.torch_memory import free_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_reference import Which


def card(where: str) -> square_sizes.Card:
    """Return what of a GPU decides which size fills it."""
    properties = import_torch().cuda.get_device_properties(where)
    return square_sizes.Card(
        properties.multi_processor_count, properties.total_memory, (properties.major, properties.minor)
    )


def truth(a: Tensor, b: Tensor) -> Truth:
    """Return what the product must be, summed over two or more parts of the depth.

    So little of b is held in float64, and for float64 it is not the very call that is checked.
    """
    n = a.shape[0]
    deep = max(1, min(square_sizes.CHECKED_AT_ONCE // n, (n + 1) // 2))

    def right(which: Which) -> Tensor:
        rows = a[which].double()
        out = rows.new_zeros((rows.shape[0], n))
        for start in range(0, n, deep):
            out.addmm_(rows[:, start : start + deep], b[start : start + deep].double())
        return out

    return Truth(n, right, flop_per_row=2.0 * n * n, elements_per_row=3.0 * n)


class SquareGemmTorch(TorchWorkload):
    """A product of two n × n matrices into a kept third, ``repetitions`` times a call, one after another.

    ``n`` is the word ``fill`` or a number. TF32 is off, always; a result that was rounded to it would not pass the
    check. The n that ``fill`` came to stands among what was measured.
    """

    choices: Mapping[str, tuple[str, ...]] = {"distribution": DISTRIBUTIONS}

    def __init__(self, name: str, dtype: str, title: str) -> None:
        self.name, self._dtype = name, dtype
        self.summary = f"Square product C = A·B in {title} by cuBLAS, of a size that fills the GPU unless told"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the size, the products of one call, and the distribution of A and B."""
        return {"n": square_sizes.FILL, "repetitions": 1, "distribution": "normal"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an n that is neither a size nor the word for one."""
        square_sizes.read(params["n"])

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Find the size, make sure that it fits, draw A and B, and set C aside."""
        requested, repetitions, where = square_sizes.read(params["n"]), size(params, "repetitions"), open_device(device)
        n = requested or (square_sizes.ON_CPU if where == "cpu" else square_sizes.filling(card(where), self._dtype))
        square_sizes.make_sure_it_fits(n, self._dtype, free_bytes(where), name=self.name, device=device)
        problem = Gemm(n, n, n, self._dtype)
        a, b = (
            draw(params["distribution"], (n, n), self._dtype, seed, where=where, stream=stream) for stream in range(2)
        )
        out = a.new_empty((n, n))
        multiply = multiplier(a, b, out, tf32=False)

        def call() -> Tensor:
            for _ in range(repetitions):
                multiply()
            return out

        work = Work(
            call=multiply if repetitions == 1 else call,
            truth=truth(a, b),
            tolerance=tolerance(self._dtype),
            flop=problem.flop * repetitions,
            bytes_moved=problem.bytes_moved * repetitions,
            out=out,
        )
        return replace(work.prepared(where=where, seed=seed), measured=lambda: {"n": float(n)})


SGEMM: Workload = SquareGemmTorch("sgemm", "float32", "float32 (TF32 off)")
HGEMM: Workload = SquareGemmTorch("hgemm", "float16", "float16")
DGEMM: Workload = SquareGemmTorch("dgemm", "float64", "float64")
