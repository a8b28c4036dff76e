"""Root-mean-square norm of each row by PyTorch: ``torch.nn.functional.rms_norm``, which makes its output anew."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.workloads import torch_reference
from assay.workloads.problems import RmsNorm
from assay.workloads.reference import tolerance
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import DTYPES, EPS, TorchWorkload, Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.torch_device import Tensor


def truth(x: Tensor, weight: Tensor, problem: RmsNorm) -> Truth:
    """Return what the norm of each row must be."""
    return Truth(problem.rows, partial(torch_reference.rms_norm, x, weight, EPS), 4.0 * problem.cols, problem.cols)


class RmsNormTorch(TorchWorkload):
    """``rms_norm@torch``. Weights have the distribution of the input; 1e-5 is added to each mean square."""

    name = "rms_norm"
    summary = "Root-mean-square norm of each row of a matrix by torch.nn.functional.rms_norm"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 8192 × 4096 fill a GPU."""
        if device_kind == "cuda":
            return {"rows": 8192, "cols": 4096, "dtype": "bfloat16", "distribution": "normal"}
        return {"rows": 1024, "cols": 1024, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw the input and the weights."""
        problem, where = RmsNorm.of(params, DTYPES), open_device(device)
        x = draw(params["distribution"], problem.shape, problem.dtype, seed, where=where, stream=0)
        weight = draw(params["distribution"], (problem.cols,), problem.dtype, seed, where=where, stream=1)
        return Work(
            call=partial(import_torch().nn.functional.rms_norm, x, (problem.cols,), weight, EPS),
            truth=truth(x, weight, problem),
            tolerance=tolerance(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
        ).prepared(where=where, seed=seed)


WORKLOAD: Workload = RmsNormTorch()
