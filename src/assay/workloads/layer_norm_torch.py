"""Layer norm of each row by PyTorch: ``torch.nn.functional.layer_norm``, which makes its output anew."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.workloads import torch_reference
from assay.workloads.problems import LayerNorm
from assay.workloads.reference import tolerance
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import DTYPES, EPS, TorchWorkload, Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload


class LayerNormTorch(TorchWorkload):
    """``layer_norm@torch``. Weights and biases have the distribution of the input; 1e-5 is added to each variance."""

    name = "layer_norm"
    summary = "Layer norm of each row of a matrix by torch.nn.functional.layer_norm"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 8192 × 4096 fill a GPU."""
        if device_kind == "cuda":
            return {"rows": 8192, "cols": 4096, "dtype": "bfloat16", "distribution": "normal"}
        return {"rows": 1024, "cols": 1024, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw the input, the weights and the biases."""
        problem, where = LayerNorm.of(params, DTYPES), open_device(device)
        x, weight, bias = (
            draw(params["distribution"], shape, problem.dtype, seed, where=where, stream=stream)
            for stream, shape in enumerate((problem.shape, (problem.cols,), (problem.cols,)))
        )
        right = partial(torch_reference.layer_norm, x, weight, bias, EPS)
        return Work(
            call=partial(import_torch().nn.functional.layer_norm, x, (problem.cols,), weight, bias, EPS),
            truth=Truth(problem.rows, right, 7.0 * problem.cols, problem.cols),
            tolerance=tolerance(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
        ).prepared(where=where, seed=seed)


WORKLOAD: Workload = LayerNormTorch()
