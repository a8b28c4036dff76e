"""Softmax of each row by a Triton kernel of ours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.workloads import triton_common, triton_rows
from assay.workloads.parameters import complete
from assay.workloads.problems import Softmax
from assay.workloads.reference import tolerance
from assay.workloads.softmax_torch import truth
from assay.workloads.torch_common import Work
from assay.workloads.torch_data import draw, kept_output
from assay.workloads.torch_device import open_device, torch_device
from assay.workloads.triton_common import CHOICES, Launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload


class SoftmaxTriton:
    """``softmax@triton``."""

    name = "softmax"
    impl = "triton"
    choices = CHOICES
    device_kinds = triton_common.device_kinds()
    summary = "Softmax of each row of a matrix by a Triton kernel"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 4096² fills a GPU."""
        side = 4096 if device_kind == "cuda" else 64
        return {"rows": side, "cols": side, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return blocks of rows and columns with warps and stages to each; 18 by default."""
        return triton_rows.configs(Softmax.of(params, triton_common.DTYPES))

    def launch(self, params: Params, *, device: str, seed: int) -> Launch:
        """Draw the input, and set the output aside."""
        problem, where = Softmax.of(params, triton_common.DTYPES), open_device(device)
        x = draw(params["distribution"], problem.shape, problem.dtype, seed, where=where)
        out = kept_output(x, problem.shape)
        return Launch(
            kernel="softmax",
            args=(x, out, problem.rows, problem.cols),
            out=out,
            fixed={},
            settings=partial(triton_rows.settings, problem),
            grid=partial(triton_rows.grid, problem),
        )

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Put the data in place; the kernel is compiled by the first call."""
        problem, launch = Softmax.of(params, triton_common.DTYPES), self.launch(params, device=device, seed=seed)
        work = Work(
            call=launch.call(complete(config, self.configs(params)[0])),
            truth=truth(launch.args[0], problem),
            tolerance=tolerance(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=launch.out,
            backend=triton_common.backend_of,
        )
        return triton_common.prepared(work, where=torch_device(device), seed=seed)


WORKLOAD: Workload = SoftmaxTriton()
