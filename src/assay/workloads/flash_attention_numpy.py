"""Attention on a CPU without ever holding all its scores: online softmax over tiles of queries and keys."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np

from assay.workloads import data, reference
from assay.workloads.base import Prepared
from assay.workloads.data import CHOICES
from assay.workloads.parameters import block_sizes, complete, one_of, size
from assay.workloads.problems import Attention
from assay.workloads.sharing import shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.data import Floats

BLOCKS = (128, 32, 64, 256)
LAYOUTS = ("bhsd", "bshd")


@dataclass(frozen=True)
class Tiling:
    """Queries and keys taken at a time, and the order of the axes in memory."""

    block_q: int
    block_k: int
    layout: str

    @classmethod
    def of(cls, config: Params) -> Self:
        """Read the tiling from a complete configuration."""
        block_q, block_k = (size(config, name) for name in ("block_q", "block_k"))
        return cls(block_q, block_k, one_of("layout", config["layout"], LAYOUTS))


@dataclass(frozen=True)
class Scratch:
    """What is remembered of the queries at hand, a row each.

    Attributes:
        queries: The queries, divided by √dim.
        scores: Their products with one block of keys, then the powers of these.
        hidden: Which scores the causal mask hides.
        peak: The maximum of the scores so far.
        peak_before: The same without the latest block.
        total: The sum of powers so far, relative to the peak.
        factor: What older sums are multiplied by, for a higher peak.
        output: The weighted values so far, not yet divided by the total.
        product: The weighted values of one block.
    """

    queries: Floats
    scores: Floats
    hidden: NDArray[np.bool_]
    peak: Floats
    peak_before: Floats
    total: Floats
    factor: Floats
    output: Floats
    product: Floats

    @classmethod
    def of(cls, problem: Attention, tiling: Tiling) -> Self:
        """Set memory aside for one block of queries."""
        rows, keys = min(tiling.block_q, problem.sequence), min(tiling.block_k, problem.sequence)

        def zeros(columns: int) -> Floats:
            return np.zeros((rows, columns), problem.dtype)

        return cls(
            queries=zeros(problem.dim),
            scores=zeros(keys),
            hidden=np.zeros((rows, keys), np.bool_),
            peak=zeros(1),
            peak_before=zeros(1),
            total=zeros(1),
            factor=zeros(1),
            output=zeros(problem.dim),
            product=zeros(problem.dim),
        )

    def first(self, rows: int) -> Scratch:
        """Return the part that the first rows need."""
        return Scratch(**{name: array[:rows] for name, array in vars(self).items()})


def key_blocks(queries: slice, sequence: int, block_k: int, *, causal: bool) -> list[slice]:
    """Return the blocks of keys that these queries see; causal tiles wholly above the diagonal are left out."""
    end = queries.stop if causal else sequence
    return [slice(start, min(start + block_k, sequence)) for start in range(0, end, block_k)]


def attend(q: Floats, k: Floats, v: Floats, out: Floats, scratch: Scratch, *, tiling: Tiling, causal: bool) -> None:
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
                _hide_later(scores, part.hidden, queries, keys)
            _fold(scores, v[keys], part)
        np.divide(part.output, part.total, out=out[queries])


def _hide_later(scores: Floats, hidden: NDArray[np.bool_], queries: slice, keys: slice) -> None:
    """Take the keys that come after a query out of its scores."""
    hidden = hidden[:, : scores.shape[1]]
    np.greater(np.arange(keys.start, keys.stop), np.arange(queries.start, queries.stop)[:, None], out=hidden)
    np.copyto(scores, -np.inf, where=hidden)


def _fold(scores: Floats, v: Floats, scratch: Scratch) -> None:
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


def laid_out(values: Floats, layout: str) -> Floats:
    """Return values of (batch, heads, sequence, dim), the same shape, in the memory order the layout names."""
    if layout == "bhsd":
        return np.ascontiguousarray(values)
    return np.ascontiguousarray(values.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


class FlashAttentionNumpy:
    """``flash_attention@numpy``. The layout names the order of batch, heads, sequence and dim in memory."""

    name = "flash_attention"
    impl = "numpy"
    choices = CHOICES
    device_kinds = frozenset({"cpu"})
    summary = "Attention by online softmax over tiles, causal or not, on a CPU"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the mask, the dtype and the distribution of queries, keys and values."""
        sizes: Params = {"batch": 1, "heads": 2, "sequence": 256, "dim": 64}
        return {**sizes, "causal": False, "dtype": "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return every mix of block sizes and layouts, at most 32."""
        blocks = block_sizes(BLOCKS, Attention.of(params, data.DTYPES).sequence)
        return [
            {"block_q": block_q, "block_k": block_k, "layout": layout}
            for block_q, block_k, layout in itertools.product(blocks, blocks, LAYOUTS)
        ]

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw and lay out queries, keys and values, and set memory aside; the process's cores are the device."""
        problem = Attention.of(params, data.DTYPES)
        tiling = Tiling.of(complete(config, self.configs(params)[0]))

        def draw_input(stream: int) -> Floats:
            values = data.draw(params["distribution"], problem.shape, problem.dtype, seed, stream=stream)
            return laid_out(values, tiling.layout)

        q, k, v = (shared((stream, tiling.layout), partial(draw_input, stream)) for stream in range(3))
        out = shared(("out", tiling.layout), lambda: laid_out(np.zeros(problem.shape, problem.dtype), tiling.layout))
        scratch = Scratch.of(problem, tiling)
        heads = tuple(np.ndindex(problem.batch, problem.heads))

        def call() -> None:
            for head in heads:
                attend(q[head], k[head], v[head], out[head], scratch, tiling=tiling, causal=problem.causal)

        def check() -> Check:
            out.fill(np.nan)
            call()
            return reference.check(out, reference.attention(q, k, v, causal=problem.causal), problem.dtype)

        return Prepared(call=call, check=check, flop=problem.flop, bytes_moved=problem.bytes_moved)


WORKLOAD: Workload = FlashAttentionNumpy()
