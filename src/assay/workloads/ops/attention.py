"""Attention: PyTorch's ``scaled_dot_product_attention``, and tiled online softmax by numpy and by Triton.

A PyTorch backend is selected by switching the others off around the call and on again, with the switches that
``torch.nn.attention.sdpa_kernel`` sets as well. That context manager takes tens of microseconds of host time, as long
as some of the kernels; the bare switches take about one. With ``auto`` nothing is switched. Which backend ran is
verified afterwards from the kernels.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.workloads.base import shared_data
from assay.workloads.kernel_support import (
    MOST_SHARED_BYTES,
    TritonLaunch,
    TritonOperator,
    is_triton_interpreted,
    launch_options,
    multiply_unit,
    next_power_of_two,
    tile_side,
)
from assay.workloads.numpy_support import NumpyCall, NumpyOperator, reference_attention
from assay.workloads.parameters import ITEM_BYTES, AttentionProblem, block_sizes, check_choice, read_size
from assay.workloads.torch_device import import_torch
from assay.workloads.torch_support import (
    TensorOperator,
    TensorReference,
    TorchOperator,
    TorchWorkload,
    reference_attention_rows,
    uses_tf32,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.numpy_support import ArrayShape, Floats
    from assay.workloads.torch_device import Tensor

SDPA_BACKENDS = ("auto", "flash", "cudnn", "efficient", "math")

_KERNEL_MARKS = (
    ("cudnn", ("cudnn",)),
    ("flash", ("flash_fwd", "pytorch_flash", "flashattn", "_flash_attention_for_cpu")),
    ("efficient", ("fmha_cutlass", "efficient")),
)
"""Parts of the kernel names of fused backends. cuDNN comes first: its kernels have "flash" in their names too."""

_NO_KERNEL = ("No available kernel", "No viable backend", "Invalid backend")

_WARNING_TITLES = {"flash": "Flash attention", "cudnn": "CuDNN attention", "efficient": "Memory efficient"}
"""Start of the PyTorch warning before the one with the reason why a backend was not used."""


def queries_first(out: Tensor) -> Tensor:
    """Return (batch, head, query, dim) as (query, batch, head, dim)."""
    return out.permute(2, 0, 1, 3)


def attention_backend(kernels: tuple[str, ...]) -> str | None:
    """Return the backend of kernels, or of a CPU's operators; null where none were recorded."""
    names = " ".join(kernels).lower()
    fused = (backend for backend, marks in _KERNEL_MARKS if any(mark in names for mark in marks))
    return next(fused, "math") if kernels else None


def check_backend_used(requested: str, kernels: tuple[str, ...]) -> str | None:
    """Return the backend that ran; raise if it is not the requested one."""
    backend = attention_backend(kernels)
    if requested != "auto" and backend not in {requested, None}:
        raise TrialFailed(f"attention was to run by backend {requested!r}, but the kernels are those of {backend!r}")
    return backend


def restrict_backend(call: Callable[[], Tensor], backend: str) -> Callable[[], Tensor]:
    """Return a call that runs with all other backends switched off."""
    if backend == "auto":
        return call
    switches = import_torch().backends.cuda
    all_of_them = {
        "flash": switches.enable_flash_sdp,
        "cudnn": switches.enable_cudnn_sdp,
        "efficient": switches.enable_mem_efficient_sdp,
        "math": switches.enable_math_sdp,
    }
    others = [switch for name, switch in all_of_them.items() if name != backend]

    def by_one_backend() -> Tensor:
        for switch in others:
            switch(False)
        try:
            return call()
        finally:
            for switch in others:
                switch(True)

    return by_one_backend


def try_backend(call: Callable[[], Tensor], backend: str) -> None:
    """Make one call; raise if PyTorch has no such backend for this problem and device.

    PyTorch reports a missing backend, and the reasons, in words only.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except RuntimeError as error:
            if not any(text in str(error) for text in _NO_KERNEL):
                raise
            why = find_warning_reason([str(warning.message) for warning in caught], backend)
            raise MachineCannot(f"PyTorch has no {backend} attention for this problem here{why}.") from error


def find_warning_reason(messages: Sequence[str], backend: str) -> str:
    """Return why a backend was not used from PyTorch's warnings: ``: because``, or nothing where there are none."""
    title = _WARNING_TITLES.get(backend, backend)
    for heading, why in itertools.pairwise(messages):
        if heading.startswith(title):
            return f": {why.partition('(Triggered')[0].strip().rstrip('.')}"
    return ""


GPU_SIZES: Params = {"batch": 4, "heads": 16, "sequence": 2048, "dim": 64}


class FlashAttention(TensorOperator[AttentionProblem]):
    """What every implementation on tensors computes, with the positions of a head one after another in memory."""

    name = "flash_attention"
    problem_type = AttentionProblem

    def reference(self, problem: AttentionProblem, *inputs: Tensor) -> TensorReference:
        """Return the attention; its rows are the queries, each over all heads."""
        scores = problem.batch * problem.heads * problem.sequence
        rows = partial(reference_attention_rows, *inputs, causal=problem.causal)
        return TensorReference(problem.sequence, rows, 4.0 * scores * problem.dim, scores, by_rows=queries_first)


class FlashAttentionTorch(FlashAttention, TorchOperator[AttentionProblem]):
    """``flash_attention@torch``."""

    choices: Mapping[str, tuple[str, ...]] = {**TorchWorkload.choices, "backend": SDPA_BACKENDS}
    summary = "Attention, causal or not, by PyTorch's scaled_dot_product_attention and a backend of choice"
    cpu_params: ClassVar[Params] = {
        "batch": 1, "heads": 4, "sequence": 256, "dim": 64, "causal": False, "backend": "auto", "dtype": "float32",
    }  # fmt: skip
    gpu_params: ClassVar[Params] = {**GPU_SIZES, "causal": False, "backend": "auto", "dtype": "bfloat16"}

    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return PyTorch's function with the backend, once that has been tried."""
        backend = check_choice("backend", params["backend"], SDPA_BACKENDS)
        attend = import_torch().nn.functional.scaled_dot_product_attention
        call = restrict_backend(partial(attend, *inputs, is_causal=params["causal"]), backend)
        try_backend(call, backend)
        return call, None

    def backend(self, params: Params, kernels: tuple[str, ...]) -> str | None:
        """Return the backend that ran; raise if it is not the requested one."""
        return check_backend_used(str(params["backend"]), kernels)


BLOCKS = (128, 32, 64, 256)
LAYOUTS = ("bhsd", "bshd")


@dataclass(frozen=True)
class NumpyAttentionTiling:
    """Block sizes of queries and keys, and the order of the axes in memory."""

    block_q: int
    block_k: int
    layout: str

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        block_q, block_k = (read_size(config, name) for name in ("block_q", "block_k"))
        return cls(block_q, block_k, check_choice("layout", config["layout"], LAYOUTS))


@dataclass(frozen=True)
class AttentionScratch:
    """State of the online softmax for the current block of queries, one row per query."""

    queries: Floats  # the queries, divided by √dim
    scores: Floats  # their products with one block of keys, then the exponentials of these
    hidden: NDArray[np.bool_]  # scores that the causal mask hides
    peak: Floats  # the maximum of the scores so far
    peak_before: Floats  # the maximum before the latest block
    total: Floats  # the sum of exponentials so far, relative to the peak
    factor: Floats  # rescaling factor of older sums for a higher peak
    output: Floats  # the weighted values so far, not yet divided by the total
    product: Floats  # the weighted values of one block

    @classmethod
    def of(cls, problem: AttentionProblem, tiling: NumpyAttentionTiling) -> Self:
        """Allocate memory for one block of queries."""
        rows, keys = min(tiling.block_q, problem.sequence), min(tiling.block_k, problem.sequence)
        columns = {"queries": problem.dim, "scores": keys, "output": problem.dim, "product": problem.dim}
        columns |= dict.fromkeys(("peak", "peak_before", "total", "factor"), 1)
        arrays: dict[str, Any] = {name: np.zeros((rows, count), problem.dtype) for name, count in columns.items()}
        return cls(**arrays, hidden=np.zeros((rows, keys), np.bool_))

    def first(self, rows: int) -> AttentionScratch:
        """Return views of the first rows."""
        return AttentionScratch(**{name: array[:rows] for name, array in vars(self).items()})


def key_blocks(queries: slice, sequence: int, block_k: int, *, causal: bool) -> list[slice]:
    """Return the blocks of keys that these queries attend to, without causal tiles wholly above the diagonal."""
    end = queries.stop if causal else sequence
    return [slice(start, min(start + block_k, sequence)) for start in range(0, end, block_k)]


def attend_tiled(
    q: Floats,
    k: Floats,
    v: Floats,
    out: Floats,
    scratch: AttentionScratch,
    *,
    tiling: NumpyAttentionTiling,
    causal: bool,
) -> None:
    """Write the attention of one head, all arrays sequence × dim, into ``out``."""
    sequence = len(q)
    for start in range(0, sequence, tiling.block_q):
        queries = slice(start, min(start + tiling.block_q, sequence))
        part = scratch.first(queries.stop - start)
        np.multiply(q[queries], 1 / math.sqrt(q.shape[1]), out=part.queries)
        part.peak.fill(-np.inf)
        part.total.fill(0)
        part.output.fill(0)
        for keys in key_blocks(queries, sequence, tiling.block_k, causal=causal):
            scores = part.scores[:, : keys.stop - keys.start]
            np.matmul(part.queries, k[keys].T, out=scores)
            if causal and keys.stop > start + 1:
                _mask_later_keys(scores, part.hidden, queries, keys)
            _accumulate_block(scores, v[keys], part)
        np.divide(part.output, part.total, out=out[queries])


def _mask_later_keys(scores: Floats, hidden: NDArray[np.bool_], queries: slice, keys: slice) -> None:
    """Mask the keys after a query in its scores."""
    hidden = hidden[:, : scores.shape[1]]
    np.greater(np.arange(keys.start, keys.stop), np.arange(queries.start, queries.stop)[:, None], out=hidden)
    np.copyto(scores, -np.inf, where=hidden)


def _accumulate_block(scores: Floats, v: Floats, scratch: AttentionScratch) -> None:
    """Add one block of keys and values to the sums, all relative to the maximum so far."""
    peak, factor = scratch.peak, scratch.factor
    np.copyto(scratch.peak_before, peak)
    np.maximum.reduce(scores, axis=1, keepdims=True, out=peak)
    np.maximum(peak, scratch.peak_before, out=peak)
    np.subtract(scratch.peak_before, peak, out=factor)
    np.exp(factor, out=factor)
    np.multiply(scratch.total, factor, out=scratch.total)
    np.multiply(scratch.output, factor, out=scratch.output)
    np.subtract(scores, peak, out=scores)
    np.exp(scores, out=scores)
    np.add.reduce(scores, axis=1, keepdims=True, out=factor)
    np.add(scratch.total, factor, out=scratch.total)
    np.matmul(scores, v, out=scratch.product)
    np.add(scratch.output, scratch.product, out=scratch.output)


def arrange_layout(values: Floats, layout: str) -> Floats:
    """Return values of (batch, heads, sequence, dim), the same shape, in the memory order the layout names."""
    if layout == "bhsd":
        return np.ascontiguousarray(values)
    return np.ascontiguousarray(values.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


class FlashAttentionNumpy(NumpyOperator[AttentionProblem]):
    """``flash_attention@numpy``. The layout names the order of batch, heads, sequence and dim in memory."""

    name = "flash_attention"
    problem_type = AttentionProblem
    summary = "Attention by online softmax over tiles, causal or not, on a CPU"
    params: ClassVar[Params] = {
        "batch": 1, "heads": 2, "sequence": 256, "dim": 64, "causal": False, "dtype": "float32",
    }  # fmt: skip

    def configs(self, params: Params) -> Sequence[Params]:
        """Return every combination of block sizes and layouts, at most 32."""
        blocks = block_sizes(BLOCKS, self.read_problem(params).sequence)
        return [asdict(NumpyAttentionTiling(*sizes)) for sizes in itertools.product(blocks, blocks, LAYOUTS)]

    def make_call(
        self, problem: AttentionProblem, config: Params, draw: Callable[[ArrayShape, int], Floats]
    ) -> NumpyCall:
        """Draw and lay out queries, keys and values, and allocate memory."""
        tiling, shape = NumpyAttentionTiling.of(config), problem.output_shape

        def arranged(key: object, make: Callable[[], Floats]) -> Floats:
            return shared_data((key, tiling.layout), lambda: arrange_layout(make(), tiling.layout))

        q, k, v = (arranged(stream, partial(draw, shape, stream)) for stream in range(3))
        out = arranged("out", lambda: np.zeros(shape, problem.dtype))
        scratch, heads = AttentionScratch.of(problem, tiling), tuple(np.ndindex(problem.batch, problem.heads))

        def call() -> None:
            for head in heads:
                attend_tiled(q[head], k[head], v[head], out[head], scratch, tiling=tiling, causal=problem.causal)

        return NumpyCall(call, out, lambda: reference_attention(q, k, v, causal=problem.causal))


BLOCK_Q = {"tensor cores": (128, 64), "threads": (64, 32, 16)}
BLOCK_K = {"tensor cores": (64, 128, 32), "threads": (32, 16, 64)}
MOST_SUMS_PER_THREAD = {"tensor cores": 160, "threads": 28}
"""Float32 scores and outputs that a thread keeps in registers, by the unit that multiplies; a thread has 255."""

WARPS_STAGES = ((8, 3), (4, 3), (8, 2), (4, 2), (4, 4))
MOST_DIM = 256  # largest head dimension for which a tile fits


@dataclass(frozen=True)
class TritonAttentionTiling:
    """Queries and keys per tile, warps, and pipeline stages."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        block_q, block_k = (tile_side(config, name) for name in ("block_q", "block_k"))
        return cls(block_q, block_k, **launch_options(config))

    def fits(self, dim: int, dtype: str, multiplied_by: str) -> bool:
        """Return whether it should fit the shared memory and registers of a large GPU."""
        block_d = next_power_of_two(dim)
        shared = block_d * (self.block_q + 2 * self.num_stages * self.block_k) * ITEM_BYTES[dtype]
        sums = self.block_q * (self.block_k + block_d) / (32 * self.num_warps)
        return shared <= MOST_SHARED_BYTES and sums <= MOST_SUMS_PER_THREAD[multiplied_by]


class FlashAttentionTriton(FlashAttention, TritonOperator[AttentionProblem]):
    """``flash_attention@triton``. With ``tf32`` float32 is rounded to TF32 before products."""

    summary = "Attention by online softmax over tiles, causal or not, by a Triton kernel"
    cpu_params: ClassVar[Params] = {
        "batch": 1, "heads": 2, "sequence": 64, "dim": 32, "causal": False, "dtype": "float32", "tf32": False,
    }  # fmt: skip
    gpu_params: ClassVar[Params] = {**GPU_SIZES, "causal": False, "dtype": "bfloat16", "tf32": False}

    def read_problem(self, params: Params) -> AttentionProblem:
        """Return the problem; refuse a head dimension for which no tile fits."""
        problem = super().read_problem(params)
        if problem.dim > MOST_DIM:
            raise BadInput(f"dim is at most {MOST_DIM} for flash_attention@triton, not {problem.dim}.")
        return problem

    def configs(self, params: Params) -> Sequence[Params]:
        """Return tiles with warps and stages for each, no longer than the sequence: 27 by default."""
        problem = self.read_problem(params)
        by = multiply_unit(params, problem.dtype)
        most = next_power_of_two(problem.sequence)
        tilings = (
            TritonAttentionTiling(min(block_q, most), min(block_k, most), warps, stages)
            for block_q, block_k, (warps, stages) in itertools.product(BLOCK_Q[by], BLOCK_K[by], WARPS_STAGES)
        )
        return [asdict(tiling) for tiling in dict.fromkeys(tilings) if tiling.fits(problem.dim, problem.dtype, by)]

    def launch_on(self, params: Params, inputs: tuple[Tensor, ...], out: Tensor) -> TritonLaunch:
        """Return the launch on queries, keys, values and output."""
        problem = self.read_problem(params)

        def settings(config: Params) -> dict[str, int]:
            tiling = TritonAttentionTiling.of(config)
            return {"block_q": tiling.block_q, "block_k": tiling.block_k}

        def grid(settings: Mapping[str, Any]) -> tuple[int]:
            return (problem.batch * problem.heads * -(-problem.sequence // settings["block_q"]),)

        fixed = {
            "dim": problem.dim,
            "block_d": next_power_of_two(problem.dim),
            "causal": problem.causal,
            "precision": "tf32" if uses_tf32(params, problem.dtype) else "ieee",
            "widen": is_triton_interpreted(),
        }
        args = (*inputs, out, problem.sequence, math.log2(math.e) / math.sqrt(problem.dim))
        return TritonLaunch("flash_attention", args, out, fixed, settings, grid)


FLASH_ATTENTION_NUMPY: Workload = FlashAttentionNumpy()
FLASH_ATTENTION_TORCH: Workload = FlashAttentionTorch()
FLASH_ATTENTION_TRITON: Workload = FlashAttentionTriton()
