"""Row normalizations: RMS norm by PyTorch and Triton, layer norm by PyTorch.

Weights and biases have the distribution of the input; 1e-5 is added to each mean square or variance. PyTorch's
``rms_norm`` and ``layer_norm`` allocate their output in every call.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from assay.workloads.parameters import LayerNormProblem, RmsNormProblem
from assay.workloads.torch_device import import_torch
from assay.workloads.torch_support import (
    EPS,
    TensorOperator,
    TensorReference,
    TorchOperator,
    reference_layer_norm_rows,
    reference_rms_norm_rows,
)
from assay.workloads.triton_support import TritonRowOperator

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.torch_device import Tensor

GPU_PARAMS: Params = {"rows": 8192, "cols": 4096, "dtype": "bfloat16"}
CPU_PARAMS: Params = {"rows": 1024, "cols": 1024, "dtype": "float32"}


class RmsNorm(TensorOperator[RmsNormProblem]):
    """What every implementation computes."""

    name = "rms_norm"
    problem_type = RmsNormProblem
    gpu_params = GPU_PARAMS
    cpu_params = CPU_PARAMS

    def reference(self, problem: RmsNormProblem, *inputs: Tensor) -> TensorReference:
        """Return the norm of each row."""
        x, weight = inputs
        rows = partial(reference_rms_norm_rows, x, weight, EPS)
        return TensorReference(problem.rows, rows, 4.0 * problem.cols, problem.cols)


class RmsNormTorch(RmsNorm, TorchOperator[RmsNormProblem]):
    """``rms_norm@torch``."""

    summary = "Root-mean-square norm of each row of a matrix by torch.nn.functional.rms_norm"

    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return PyTorch's function on the input and the weights."""
        x, weight = inputs
        return partial(import_torch().nn.functional.rms_norm, x, x.shape[1:], weight, EPS), None


class RmsNormTriton(RmsNorm, TritonRowOperator[RmsNormProblem]):
    """``rms_norm@triton``."""

    summary = "Root-mean-square norm of each row of a matrix by a Triton kernel"
    cpu_params: ClassVar[Params] = {"rows": 64, "cols": 64, "dtype": "float32"}
    constants = (EPS,)


class LayerNormTorch(TorchOperator[LayerNormProblem]):
    """``layer_norm@torch``."""

    name = "layer_norm"
    summary = "Layer norm of each row of a matrix by torch.nn.functional.layer_norm"
    problem_type = LayerNormProblem
    gpu_params = GPU_PARAMS
    cpu_params = CPU_PARAMS

    def reference(self, problem: LayerNormProblem, *inputs: Tensor) -> TensorReference:
        """Return the norm of each row."""
        x, weight, bias = inputs
        rows = partial(reference_layer_norm_rows, x, weight, bias, EPS)
        return TensorReference(problem.rows, rows, 7.0 * problem.cols, problem.cols)

    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return PyTorch's function on the input, the weights and the biases."""
        x, weight, bias = inputs
        return partial(import_torch().nn.functional.layer_norm, x, x.shape[1:], weight, bias, EPS), None


RMS_NORM_TORCH: Workload = RmsNormTorch()
RMS_NORM_TRITON: Workload = RmsNormTriton()
LAYER_NORM_TORCH: Workload = LayerNormTorch()
