"""Softmax of each row, by numpy, PyTorch, Triton and Helion.

The numpy version runs online over blocks of columns, some rows at a time so that they stay in cache; PyTorch's is
``torch.softmax`` into a preallocated output.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from assay.workloads import helion_support as helion_common
from assay.workloads import numpy_support as data
from assay.workloads import numpy_support as reference
from assay.workloads import torch_support as torch_reference
from assay.workloads import triton_support as triton_common
from assay.workloads import triton_support as triton_rows
from assay.workloads.base import PreparedWorkload, shared_data
from assay.workloads.helion_support import HELION_CHOICES, HelionProblem
from assay.workloads.numpy_support import NUMPY_CHOICES, tolerance_of
from assay.workloads.parameters import SoftmaxProblem, block_sizes, check_choice, complete_config, read_size
from assay.workloads.torch_device import import_torch, open_device, torch_device
from assay.workloads.torch_support import (
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

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.numpy_support import Floats
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

    @property
    def order(self) -> Literal["C", "F"]:
        """Numpy's name of the layout."""
        return "C" if self.layout == "row" else "F"


@dataclass(frozen=True)
class SoftmaxScratch:
    """State of the online softmax for the current block of rows: column vectors.

    Attributes:
        peaks: The maximum so far, after each block of columns: blocks × rows × 1.
        total: The sum so far, of exponentials relative to the latest maximum: rows × 1.
        factor: Rescaling factor of older sums or outputs: rows × 1.
    """

    peaks: Floats
    total: Floats
    factor: Floats

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


class SoftmaxNumpy:
    """``softmax@numpy``. Layout "row" stores input and output by rows, "column" by columns."""

    name = "softmax"
    impl = "numpy"
    choices = NUMPY_CHOICES
    device_kinds = frozenset({"cpu"})
    summary = "Softmax of each row of a matrix, online over tiles, on a CPU"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input."""
        return {"rows": 512, "cols": 1024, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return every combination of block sizes and layouts, at most 24; whole rows are among them."""
        problem = SoftmaxProblem.of(params, data.NUMPY_DTYPES)
        block_rows = block_sizes(BLOCK_ROWS, problem.rows)
        block_cols = block_sizes((problem.cols, *BLOCK_COLS), problem.cols)
        return [
            {"block_rows": rows, "block_cols": cols, "layout": layout}
            for rows, cols, layout in itertools.product(block_rows, block_cols, LAYOUTS)
        ]

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw and lay out the input, and allocate memory; the process's cores are the device."""
        problem = SoftmaxProblem.of(params, data.NUMPY_DTYPES)
        tiling = SoftmaxTiling.of(complete_config(config, self.configs(params)[0]))
        x = data.draw_array(params["distribution"], (problem.rows, problem.cols), problem.dtype, seed)
        x = shared_data(("x", tiling.order), lambda: np.asarray(x, order=tiling.order))
        out = shared_data(("out", tiling.order), lambda: np.zeros_like(x))
        scratch = SoftmaxScratch.of(problem, tiling)

        def call() -> None:
            softmax_tiled(x, out, scratch, tiling)

        def check() -> Check:
            out.fill(np.nan)
            call()
            return reference.check_output(out, reference.reference_softmax(x), problem.dtype)

        return PreparedWorkload(call=call, check=check, flop=problem.flop, bytes_moved=problem.bytes_moved)


SOFTMAX_NUMPY: Workload = SoftmaxNumpy()


def softmax_reference(x: Tensor, problem: SoftmaxProblem) -> TensorReference:
    """Return the reference of the softmax of each row."""
    return TensorReference(
        problem.rows, partial(torch_reference.reference_softmax_rows, x), 5.0 * problem.cols, problem.cols
    )


class SoftmaxTorch(TorchWorkload):
    """``softmax@torch``."""

    name = "softmax"
    summary = "Softmax of each row of a matrix by torch.softmax"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 4096² fills a GPU."""
        side = 4096 if device_kind == "cuda" else 1024
        return {"rows": side, "cols": side, "dtype": "float32", "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw the input, and allocate the output."""
        problem, where = SoftmaxProblem.of(params, TORCH_DTYPES), open_device(device)
        x = draw_tensor(params["distribution"], problem.shape, problem.dtype, seed, where=where)
        out = x.new_empty(problem.shape)
        return TensorWork(
            call=partial(import_torch().softmax, x, -1, out=out),
            reference=softmax_reference(x, problem),
            tolerance=tolerance_of(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=out,
        ).prepare(where=where, seed=seed)


SOFTMAX_TORCH: Workload = SoftmaxTorch()


class SoftmaxTriton:
    """``softmax@triton``."""

    name = "softmax"
    impl = "triton"
    choices = TRITON_CHOICES
    device_kinds = triton_common.triton_device_kinds()
    summary = "Softmax of each row of a matrix by a Triton kernel"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 4096² fills a GPU."""
        side = 4096 if device_kind == "cuda" else 64
        return {"rows": side, "cols": side, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return blocks of rows and columns with warps and stages for each; 18 by default."""
        return triton_rows.row_configs(SoftmaxProblem.of(params, triton_common.TRITON_DTYPES))

    def launch(self, params: Params, *, device: str, seed: int) -> TritonLaunch:
        """Draw the input, and allocate the output."""
        problem, where = SoftmaxProblem.of(params, triton_common.TRITON_DTYPES), open_device(device)
        x = draw_tensor(params["distribution"], problem.shape, problem.dtype, seed, where=where)
        out = empty_output(x, problem.shape)
        return TritonLaunch(
            kernel="softmax",
            args=(x, out, problem.rows, problem.cols),
            out=out,
            fixed={},
            settings=partial(triton_rows.row_settings, problem),
            grid=partial(triton_rows.row_grid, problem),
        )

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the data; the first call compiles the kernel."""
        problem, launch = (
            SoftmaxProblem.of(params, triton_common.TRITON_DTYPES),
            self.launch(params, device=device, seed=seed),
        )
        work = TensorWork(
            call=launch.call(complete_config(config, self.configs(params)[0])),
            reference=softmax_reference(launch.args[0], problem),
            tolerance=tolerance_of(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=launch.out,
            backend=triton_common.triton_backend,
        )
        return triton_common.prepare_triton_work(work, where=torch_device(device), seed=seed)


SOFTMAX_TRITON: Workload = SoftmaxTriton()


class SoftmaxHelion:
    """``softmax@helion``. Configurations are Helion settings as JSON text; the default is Helion's."""

    name = "softmax"
    impl = "helion"
    choices = HELION_CHOICES
    device_kinds = helion_common.helion_device_kinds()
    summary = "Softmax of each row of a matrix by a Helion kernel, to be tuned by Helion"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the input: 4096² fills a GPU."""
        side = 4096 if device_kind == "cuda" else 64
        return {"rows": side, "cols": side, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return no configurations: Helion's tuner has its own search space."""
        return ()

    def problem(self, params: Params, *, device: str, seed: int) -> HelionProblem:
        """Draw the input; a call allocates the output."""
        problem, where = SoftmaxProblem.of(params, helion_common.HELION_DTYPES), open_device(device)
        x = draw_tensor(params["distribution"], problem.shape, problem.dtype, seed, where=where)
        return HelionProblem("softmax", (x,), {"static_shapes": True})

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the data; the first call compiles the kernel."""
        problem, kernel = (
            SoftmaxProblem.of(params, helion_common.HELION_DTYPES),
            self.problem(params, device=device, seed=seed),
        )
        work = TensorWork(
            call=kernel.call(config),
            reference=softmax_reference(kernel.args[0], problem),
            tolerance=tolerance_of(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            backend=helion_common.helion_backend,
        )
        return helion_common.prepare_helion_work(work, where=torch_device(device), seed=seed)


SOFTMAX_HELION: Workload = SoftmaxHelion()
