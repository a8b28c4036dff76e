"""Softmax of each row by a Helion kernel of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.workloads import helion_common
from assay.workloads.helion_common import CHOICES, Problem
from assay.workloads.problems import Softmax
from assay.workloads.reference import tolerance
from assay.workloads.softmax_torch import truth
from assay.workloads.torch_common import Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import open_device, torch_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload


class SoftmaxHelion:
    """``softmax@helion``. A configuration is Helion's, each setting as JSON text; without one, Helion's default."""

    name = "softmax"
    impl = "helion"
    choices = CHOICES
    device_kinds = helion_common.device_kinds()
    summary = "Softmax of each row of a matrix by a Helion kernel, to be tuned by Helion"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 4096² fills a GPU."""
        side = 4096 if device_kind == "cuda" else 64
        return {"rows": side, "cols": side, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: Helion's tuner draws configurations from a space of its own."""
        return ()

    def problem(self, params: Params, *, device: str, seed: int) -> Problem:
        """Draw the input; a call makes its output."""
        problem, where = Softmax.of(params, helion_common.DTYPES), open_device(device)
        x = draw(params["distribution"], problem.shape, problem.dtype, seed, where=where)
        return Problem("softmax", (x,), {"static_shapes": True})

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Put the data in place; the kernel is compiled by the first call."""
        problem, kernel = Softmax.of(params, helion_common.DTYPES), self.problem(params, device=device, seed=seed)
        work = Work(
            call=kernel.call(config),
            truth=truth(kernel.args[0], problem),
            tolerance=tolerance(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            backend=helion_common.backend_of,
        )
        return helion_common.prepared(work, where=torch_device(device), seed=seed)


WORKLOAD: Workload = SoftmaxHelion()
