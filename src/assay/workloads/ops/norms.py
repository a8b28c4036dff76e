"""Row normalizations: RMS norm by PyTorch and Triton, layer norm by PyTorch.

PyTorch's ``rms_norm`` and ``layer_norm`` allocate their output in every call.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.workloads import torch_support as torch_reference
from assay.workloads import triton_support as triton_common
from assay.workloads import triton_support as triton_rows
from assay.workloads.numpy_support import tolerance_of
from assay.workloads.parameters import LayerNormProblem, RmsNormProblem, complete_config
from assay.workloads.torch_device import import_torch, open_device, torch_device
from assay.workloads.torch_support import (
    EPS,
    TORCH_DTYPES,
    TensorReference,
    TensorWork,
    TorchWorkload,
    draw_tensor,
    empty_output,
)
from assay.workloads.triton_support import TRITON_CHOICES, TritonLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload, Workload
    from assay.workloads.torch_device import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, problem: RmsNormProblem) -> TensorReference:
    """Return the reference of the norm of each row."""
    return TensorReference(
        problem.rows, partial(torch_reference.reference_rms_norm_rows, x, weight, EPS), 4.0 * problem.cols, problem.cols
    )


class RmsNormTorch(TorchWorkload):
    """``rms_norm@torch``. Weights have the distribution of the input; 1e-5 is added to each mean square."""

    name = "rms_norm"
    summary = "Root-mean-square norm of each row of a matrix by torch.nn.functional.rms_norm"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 8192 × 4096 fill a GPU."""
        if device_kind == "cuda":
            return {"rows": 8192, "cols": 4096, "dtype": "bfloat16", "distribution": "normal"}
        return {"rows": 1024, "cols": 1024, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw the input and the weights."""
        problem, where = RmsNormProblem.of(params, TORCH_DTYPES), open_device(device)
        x = draw_tensor(params["distribution"], problem.shape, problem.dtype, seed, where=where, stream=0)
        weight = draw_tensor(params["distribution"], (problem.cols,), problem.dtype, seed, where=where, stream=1)
        return TensorWork(
            call=partial(import_torch().nn.functional.rms_norm, x, (problem.cols,), weight, EPS),
            reference=rms_norm_reference(x, weight, problem),
            tolerance=tolerance_of(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
        ).prepare(where=where, seed=seed)


RMS_NORM_TORCH: Workload = RmsNormTorch()


class RmsNormTriton:
    """``rms_norm@triton``. Weights have the distribution of the input; 1e-5 is added to each mean square."""

    name = "rms_norm"
    impl = "triton"
    choices = TRITON_CHOICES
    device_kinds = triton_common.triton_device_kinds()
    summary = "Root-mean-square norm of each row of a matrix by a Triton kernel"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 8192 × 4096 fill a GPU."""
        if device_kind == "cuda":
            return {"rows": 8192, "cols": 4096, "dtype": "bfloat16", "distribution": "normal"}
        return {"rows": 64, "cols": 64, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return blocks of rows and columns with warps and stages for each; 18 by default."""
        return triton_rows.row_configs(RmsNormProblem.of(params, triton_common.TRITON_DTYPES))

    def launch(self, params: Params, *, device: str, seed: int) -> TritonLaunch:
        """Draw the input and the weights, and allocate the output."""
        problem, where = RmsNormProblem.of(params, triton_common.TRITON_DTYPES), open_device(device)
        x = draw_tensor(params["distribution"], problem.shape, problem.dtype, seed, where=where, stream=0)
        weight = draw_tensor(params["distribution"], (problem.cols,), problem.dtype, seed, where=where, stream=1)
        out = empty_output(x, problem.shape)
        return TritonLaunch(
            kernel="rms_norm",
            args=(x, weight, out, problem.rows, problem.cols, EPS),
            out=out,
            fixed={},
            settings=partial(triton_rows.row_settings, problem),
            grid=partial(triton_rows.row_grid, problem),
        )

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the data; the first call compiles the kernel."""
        problem, launch = (
            RmsNormProblem.of(params, triton_common.TRITON_DTYPES),
            self.launch(params, device=device, seed=seed),
        )
        x, weight = launch.args[:2]
        work = TensorWork(
            call=launch.call(complete_config(config, self.configs(params)[0])),
            reference=rms_norm_reference(x, weight, problem),
            tolerance=tolerance_of(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=launch.out,
            backend=triton_common.triton_backend,
        )
        return triton_common.prepare_triton_work(work, where=torch_device(device), seed=seed)


RMS_NORM_TRITON: Workload = RmsNormTriton()


class LayerNormTorch(TorchWorkload):
    """``layer_norm@torch``. Weights and biases have the distribution of the input; 1e-5 is added to each variance."""

    name = "layer_norm"
    summary = "Layer norm of each row of a matrix by torch.nn.functional.layer_norm"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 8192 × 4096 fill a GPU."""
        if device_kind == "cuda":
            return {"rows": 8192, "cols": 4096, "dtype": "bfloat16", "distribution": "normal"}
        return {"rows": 1024, "cols": 1024, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw the input, the weights and the biases."""
        problem, where = LayerNormProblem.of(params, TORCH_DTYPES), open_device(device)
        x, weight, bias = (
            draw_tensor(params["distribution"], shape, problem.dtype, seed, where=where, stream=stream)
            for stream, shape in enumerate((problem.shape, (problem.cols,), (problem.cols,)))
        )
        right = partial(torch_reference.reference_layer_norm_rows, x, weight, bias, EPS)
        return TensorWork(
            call=partial(import_torch().nn.functional.layer_norm, x, (problem.cols,), weight, bias, EPS),
            reference=TensorReference(problem.rows, right, 7.0 * problem.cols, problem.cols),
            tolerance=tolerance_of(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
        ).prepare(where=where, seed=seed)


LAYER_NORM_TORCH: Workload = LayerNormTorch()
