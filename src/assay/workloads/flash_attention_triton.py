"""Attention by a Triton kernel of ours, forward, in a choice of tiles, warps and stages."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from assay.core.errors import BadInput
from assay.workloads import triton_common
from assay.workloads.flash_attention_torch import queries_first, truth
from assay.workloads.parameters import complete, size
from assay.workloads.problems import ITEM_BYTES, Attention
from assay.workloads.reference import tolerance
from assay.workloads.torch_common import Work, reads_tf32
from assay.workloads.torch_data import draw, kept_output
from assay.workloads.torch_device import open_device, torch_device
from assay.workloads.triton_common import CHOICES, MOST_SHARED_BYTES, Launch, power_of_two, tile_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload

BLOCK_Q = {"tensor cores": (128, 64), "threads": (64, 32, 16)}
BLOCK_K = {"tensor cores": (64, 128, 32), "threads": (32, 16, 64)}
MOST_SUMS_PER_THREAD = {"tensor cores": 160, "threads": 28}
"""Float32 scores and outputs that a thread keeps in registers, by what multiplies; it has 255."""

WARPS_STAGES = ((8, 3), (4, 3), (8, 2), (4, 2), (4, 4))
MOST_DIM = 256
"""Elements of a head; beyond, no tile fits."""


@dataclass(frozen=True)
class Tiling:
    """Queries and keys to a tile, the warps that work on it, and how many are loaded ahead."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        block_q, block_k = (tile_side(config, name) for name in ("block_q", "block_k"))
        return cls(block_q, block_k, size(config, "num_warps"), size(config, "num_stages"))

    def fits(self, dim: int, dtype: str, multiplied_by: str) -> bool:
        """Return whether it is likely to fit a large GPU's shared memory and registers."""
        block_d = power_of_two(dim)
        shared = block_d * (self.block_q + 2 * self.num_stages * self.block_k) * ITEM_BYTES[dtype]
        sums = self.block_q * (self.block_k + block_d) / (32 * self.num_warps)
        return shared <= MOST_SHARED_BYTES and sums <= MOST_SUMS_PER_THREAD[multiplied_by]


def _problem(params: Params) -> Attention:
    problem = Attention.of(params, triton_common.DTYPES)
    if problem.dim > MOST_DIM:
        raise BadInput(f"dim is at most {MOST_DIM} for flash_attention@triton, not {problem.dim}.")
    return problem


def _settings(config: Params) -> dict[str, int]:
    tiling = Tiling.of(config)
    return {"block_q": tiling.block_q, "block_k": tiling.block_k}


def _grid(problem: Attention, settings: Mapping[str, Any]) -> tuple[int]:
    return (problem.batch * problem.heads * -(-problem.sequence // settings["block_q"]),)


class FlashAttentionTriton:
    """``flash_attention@triton``. Arrays lie in memory as batch, heads, sequence, dim.

    With ``tf32`` float32 is rounded to TF32 before products.
    """

    name = "flash_attention"
    impl = "triton"
    choices = CHOICES
    device_kinds = triton_common.device_kinds()
    summary = "Attention by online softmax over tiles, causal or not, by a Triton kernel"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return sizes in elements, mask, dtype and distribution: 4 × 16 × 2048 × 64 fill a GPU."""
        sizes: Params = {"batch": 1, "heads": 2, "sequence": 64, "dim": 32}
        if device_kind == "cuda":
            sizes = {"batch": 4, "heads": 16, "sequence": 2048, "dim": 64}
        dtype = "bfloat16" if device_kind == "cuda" else "float32"
        return {**sizes, "causal": False, "dtype": dtype, "distribution": "normal", "tf32": False}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return tiles with warps and stages to each, no longer than the sequence: 27 by default."""
        problem = _problem(params)
        by = triton_common.multiplied_by(params, problem.dtype)
        most = power_of_two(problem.sequence)
        tilings = (
            Tiling(min(block_q, most), min(block_k, most), warps, stages)
            for block_q, block_k, (warps, stages) in itertools.product(BLOCK_Q[by], BLOCK_K[by], WARPS_STAGES)
        )
        return [asdict(tiling) for tiling in dict.fromkeys(tilings) if tiling.fits(problem.dim, problem.dtype, by)]

    def launch(self, params: Params, *, device: str, seed: int) -> Launch:
        """Draw queries, keys and values, and set the output aside."""
        problem, where = _problem(params), open_device(device)
        q, k, v = (
            draw(params["distribution"], problem.shape, problem.dtype, seed, where=where, stream=stream)
            for stream in range(3)
        )
        out = kept_output(q, problem.shape)
        return Launch(
            kernel="flash_attention",
            args=(q, k, v, out, problem.sequence, math.log2(math.e) / math.sqrt(problem.dim)),
            out=out,
            fixed={
                "dim": problem.dim,
                "block_d": power_of_two(problem.dim),
                "causal": problem.causal,
                "precision": "tf32" if reads_tf32(params, problem.dtype) else "ieee",
                "widen": triton_common.interpreted(),
            },
            settings=_settings,
            grid=partial(_grid, problem),
        )

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Put the data in place; the kernel is compiled by the first call."""
        problem, launch = _problem(params), self.launch(params, device=device, seed=seed)
        tf32 = reads_tf32(params, problem.dtype)
        q, k, v = launch.args[:3]
        work = Work(
            call=launch.call(complete(config, self.configs(params)[0])),
            truth=truth(q, k, v, problem),
            tolerance=tolerance("tf32" if tf32 else problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=launch.out,
            by_rows=queries_first,
            backend=triton_common.backend_of,
        )
        return triton_common.prepared(work, where=torch_device(device), seed=seed)


WORKLOAD: Workload = FlashAttentionTriton()
