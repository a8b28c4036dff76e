"""Root-mean-square norm of each row by a Triton kernel of ours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.workloads import triton_common, triton_rows
from assay.workloads.parameters import complete
from assay.workloads.problems import RmsNorm
from assay.workloads.reference import tolerance
from assay.workloads.rms_norm_torch import truth
from assay.workloads.torch_common import EPS, Work
from assay.workloads.torch_data import draw, kept_output
from assay.workloads.torch_device import open_device, torch_device
from assay.workloads.triton_common import CHOICES, Launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload


class RmsNormTriton:
    """``rms_norm@triton``. Weights have the distribution of the input; 1e-5 is added to each mean square."""

    name = "rms_norm"
    impl = "triton"
    choices = CHOICES
    device_kinds = triton_common.device_kinds()
    summary = "Root-mean-square norm of each row of a matrix by a Triton kernel"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 8192 × 4096 fill a GPU."""
        if device_kind == "cuda":
            return {"rows": 8192, "cols": 4096, "dtype": "bfloat16", "distribution": "normal"}
        return {"rows": 64, "cols": 64, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return blocks of rows and columns with warps and stages to each; 18 by default."""
        return triton_rows.configs(RmsNorm.of(params, triton_common.DTYPES))

    def launch(self, params: Params, *, device: str, seed: int) -> Launch:
        """Draw the input and the weights, and set the output aside."""
        problem, where = RmsNorm.of(params, triton_common.DTYPES), open_device(device)
        x = draw(params["distribution"], problem.shape, problem.dtype, seed, where=where, stream=0)
        weight = draw(params["distribution"], (problem.cols,), problem.dtype, seed, where=where, stream=1)
        out = kept_output(x, problem.shape)
        return Launch(
            kernel="rms_norm",
            args=(x, weight, out, problem.rows, problem.cols, EPS),
            out=out,
            fixed={},
            settings=partial(triton_rows.settings, problem),
            grid=partial(triton_rows.grid, problem),
        )

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Put the data in place; the kernel is compiled by the first call."""
        problem, launch = RmsNorm.of(params, triton_common.DTYPES), self.launch(params, device=device, seed=seed)
        x, weight = launch.args[:2]
        work = Work(
            call=launch.call(complete(config, self.configs(params)[0])),
            truth=truth(x, weight, problem),
            tolerance=tolerance(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=launch.out,
            backend=triton_common.backend_of,
        )
        return triton_common.prepared(work, where=torch_device(device), seed=seed)


WORKLOAD: Workload = RmsNormTriton()
