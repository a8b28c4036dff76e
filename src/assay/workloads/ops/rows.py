"""Softmax of each row, by numpy, PyTorch, Triton and Helion.

The numpy version runs online over blocks of columns, some rows at a time so that they stay in cache; PyTorch's is
``torch.softmax`` into a preallocated output.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeVar

import numpy as np

from assay.workloads.base import shared_data
from assay.workloads.kernel_support import HelionOperator, TritonRowOperator
from assay.workloads.numpy_support import NumpyCall, NumpyOperator, reference_softmax
from assay.workloads.parameters import (
    LayerNormProblem,
    RmsNormProblem,
    RowsProblem,
    SoftmaxProblem,
    block_sizes,
    check_choice,
    read_size,
)
from assay.workloads.torch_device import import_torch
from assay.workloads.torch_support import (
    EPS,
    TensorOperator,
    TensorReference,
    TorchOperator,
    reference_layer_norm_rows,
    reference_rms_norm_rows,
    reference_softmax_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.numpy_support import ArrayShape, Floats
    from assay.workloads.torch_device import Tensor


BLOCK_ROWS = (32, 8, 128, 512)
BLOCK_COLS = (128, 512)
LAYOUTS = ("row", "column")


@dataclass(frozen=True)
class SoftmaxTiling:
    """Block sizes of rows and columns, and whether input and output are stored by rows or by columns."""

    block_rows: int
    block_cols: int
    layout: str

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        block_rows, block_cols = (read_size(config, name) for name in ("block_rows", "block_cols"))
        return cls(block_rows, block_cols, check_choice("layout", config["layout"], LAYOUTS))


@dataclass(frozen=True)
class SoftmaxScratch:
    """State of the online softmax for the current block of rows: column vectors."""

    peaks: Floats  # the maximum so far, after each block of columns: blocks × rows × 1
    total: Floats  # the sum so far, of exponentials relative to the latest maximum: rows × 1
    factor: Floats  # rescaling factor of older sums or outputs: rows × 1

    @classmethod
    def of(cls, problem: SoftmaxProblem, tiling: SoftmaxTiling) -> Self:
        """Allocate memory for one block of rows."""
        blocks = -(-problem.cols // tiling.block_cols)
        rows = min(tiling.block_rows, problem.rows)
        return cls(*(np.zeros(shape, problem.dtype) for shape in ((blocks, rows, 1), (rows, 1), (rows, 1))))

    def first(self, rows: int) -> SoftmaxScratch:
        """Return views of the first rows."""
        return SoftmaxScratch(self.peaks[:, :rows], self.total[:rows], self.factor[:rows])


def softmax_tiled(x: Floats, out: Floats, scratch: SoftmaxScratch, tiling: SoftmaxTiling) -> None:
    """Write the softmax of each row of x into ``out``."""
    columns = [slice(start, start + tiling.block_cols) for start in range(0, x.shape[1], tiling.block_cols)]
    for start in range(0, x.shape[0], tiling.block_rows):
        rows = slice(start, start + tiling.block_rows)
        part = scratch.first(len(x[rows]))
        _exponentiate(x[rows], out[rows], part, columns)
        _normalize(out[rows], part, columns)


def _exponentiate(x: Floats, out: Floats, scratch: SoftmaxScratch, columns: list[slice]) -> None:
    """Write each block's exponentials relative to the maximum so far, and store those maxima and the sum."""
    total, factor = scratch.total, scratch.factor
    total.fill(0)
    for block, span in enumerate(columns):
        peak, tile = scratch.peaks[block], out[:, span]
        np.maximum.reduce(x[:, span], axis=1, keepdims=True, out=peak)
        if block:
            before = scratch.peaks[block - 1]
            np.maximum(peak, before, out=peak)
            np.subtract(before, peak, out=factor)
            np.exp(factor, out=factor)
            np.multiply(total, factor, out=total)
        np.subtract(x[:, span], peak, out=tile)
        np.exp(tile, out=tile)
        np.add.reduce(tile, axis=1, keepdims=True, out=factor)
        np.add(total, factor, out=total)


def _normalize(out: Floats, scratch: SoftmaxScratch, columns: list[slice]) -> None:
    """Rescale each block's exponentials to the final maximum and divide them by the sum, in one step."""
    factor = scratch.factor
    for peak, span in zip(scratch.peaks, columns, strict=True):
        np.subtract(peak, scratch.peaks[-1], out=factor)
        np.exp(factor, out=factor)
        np.divide(factor, scratch.total, out=factor)
        np.multiply(out[:, span], factor, out=out[:, span])


class SoftmaxNumpy(NumpyOperator[SoftmaxProblem]):
    """``softmax@numpy``. Layout "row" stores input and output by rows, "column" by columns."""

    name = "softmax"
    problem_type = SoftmaxProblem
    summary = "Softmax of each row of a matrix, online over tiles, on a CPU"
    params: ClassVar[Params] = {"rows": 512, "cols": 1024, "dtype": "float32"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return every combination of block sizes and layouts, at most 24; whole rows are among them."""
        problem = self.read_problem(params)
        rows = block_sizes(BLOCK_ROWS, problem.rows)
        cols = block_sizes((problem.cols, *BLOCK_COLS), problem.cols)
        return [asdict(SoftmaxTiling(*sizes)) for sizes in itertools.product(rows, cols, LAYOUTS)]

    def make_call(
        self, problem: SoftmaxProblem, config: Params, draw: Callable[[ArrayShape, int], Floats]
    ) -> NumpyCall:
        """Draw and lay out the input, and allocate memory."""
        tiling = SoftmaxTiling.of(config)
        order: Literal["C", "F"] = "C" if tiling.layout == "row" else "F"
        x = shared_data(("x", order), lambda: np.asarray(draw(problem.output_shape, 0), order=order))
        out = shared_data(("out", order), lambda: np.zeros_like(x))
        scratch = SoftmaxScratch.of(problem, tiling)
        return NumpyCall(lambda: softmax_tiled(x, out, scratch, tiling), out, lambda: reference_softmax(x))


_Rows = TypeVar("_Rows", bound=RowsProblem)


class RowsOperator(TensorOperator[_Rows]):
    """What every implementation of an operator on rows computes."""

    reference_rows: Callable[..., Tensor]
    constants: tuple[float, ...] = ()

    def reference(self, problem: _Rows, *inputs: Tensor) -> TensorReference:
        """Return the operator on each row."""
        compute_rows = partial(self.reference_rows, *inputs, *self.constants)
        return TensorReference(problem.rows, compute_rows, problem.flop_per_element * problem.cols, problem.cols)


class Softmax(RowsOperator[SoftmaxProblem]):
    """What every implementation on tensors computes."""

    name = "softmax"
    problem_type = SoftmaxProblem
    reference_rows = staticmethod(reference_softmax_rows)
    cpu_params: ClassVar[Params] = {"rows": 64, "cols": 64, "dtype": "float32"}
    gpu_params: ClassVar[Params] = {"rows": 4096, "cols": 4096, "dtype": "float32"}


class SoftmaxTorch(Softmax, TorchOperator[SoftmaxProblem]):
    """``softmax@torch``."""

    summary = "Softmax of each row of a matrix by torch.softmax"
    cpu_params: ClassVar[Params] = {"rows": 1024, "cols": 1024, "dtype": "float32"}

    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return ``torch.softmax`` into an output of its own."""
        (x,) = inputs
        out = x.new_empty(x.shape)
        return partial(import_torch().softmax, x, -1, out=out), out


class SoftmaxTriton(Softmax, TritonRowOperator[SoftmaxProblem]):
    """``softmax@triton``."""

    summary = "Softmax of each row of a matrix by a Triton kernel"


class SoftmaxHelion(Softmax, HelionOperator[SoftmaxProblem]):
    """``softmax@helion``."""

    summary = "Softmax of each row of a matrix by a Helion kernel, to be tuned by Helion"


class Norm(RowsOperator[_Rows]):
    """A norm of each row, with weights and perhaps biases."""

    constants: tuple[float, ...] = (EPS,)
    cpu_params: ClassVar[Params] = {"rows": 1024, "cols": 1024, "dtype": "float32"}
    gpu_params: ClassVar[Params] = {"rows": 8192, "cols": 4096, "dtype": "bfloat16"}


class NormTorch(Norm[_Rows], TorchOperator[_Rows]):
    """A norm by PyTorch's function of the operator's name, which allocates its output."""

    name: str

    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return PyTorch's function on the input, the weights and the biases."""
        x, *weights = inputs
        return partial(getattr(import_torch().nn.functional, self.name), x, x.shape[1:], *weights, EPS), None


class RmsNorm(Norm[RmsNormProblem]):
    """What every implementation computes."""

    name = "rms_norm"
    problem_type = RmsNormProblem
    reference_rows = staticmethod(reference_rms_norm_rows)


class RmsNormTorch(RmsNorm, NormTorch[RmsNormProblem]):
    """``rms_norm@torch``."""

    summary = "Root-mean-square norm of each row of a matrix by torch.nn.functional.rms_norm"


class RmsNormTriton(RmsNorm, TritonRowOperator[RmsNormProblem]):
    """``rms_norm@triton``."""

    summary = "Root-mean-square norm of each row of a matrix by a Triton kernel"
    cpu_params: ClassVar[Params] = {"rows": 64, "cols": 64, "dtype": "float32"}


class LayerNormTorch(NormTorch[LayerNormProblem]):
    """``layer_norm@torch``."""

    name = "layer_norm"
    problem_type = LayerNormProblem
    reference_rows = staticmethod(reference_layer_norm_rows)
    summary = "Layer norm of each row of a matrix by torch.nn.functional.layer_norm"


SOFTMAX_NUMPY: Workload = SoftmaxNumpy()
SOFTMAX_TORCH: Workload = SoftmaxTorch()
SOFTMAX_TRITON: Workload = SoftmaxTriton()
SOFTMAX_HELION: Workload = SoftmaxHelion()
RMS_NORM_TORCH: Workload = RmsNormTorch()
RMS_NORM_TRITON: Workload = RmsNormTriton()
LAYER_NORM_TORCH: Workload = LayerNormTorch()
