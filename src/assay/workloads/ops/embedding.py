"""The memory-bound part of a recommendation model by PyTorch: rows of a large table looked up and summed in bags.

Rows are looked up uniformly, or by Zipf's law, a few of them far more often than the rest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.numpy_support import tolerance_of
from assay.workloads.parameters import ITEM_BYTES, check_choice, read_size
from assay.workloads.torch_device import free_bytes, import_torch, open_device
from assay.workloads.torch_support import TORCH_DTYPES, TensorReference, TensorWork, TorchWorkload, draw_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload, Workload
    from assay.workloads.numpy_support import ArrayShape
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import RowSelection


INDEX_DISTRIBUTIONS = ("uniform", "zipf")
LARGEST_ALPHA = 4.0
_STREAM = 1


def check_alpha(alpha: object) -> float:
    """Return the exponent of Zipf's law, a number above 0."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= LARGEST_ALPHA:
        raise BadInput(f"alpha is a number above 0 and at most {LARGEST_ALPHA:g}, not {alpha!r}.")
    return float(alpha)


def draw_indices(indices: str, rows: int, shape: ArrayShape, seed: int, *, alpha: float, where: str) -> Tensor:
    """Return the indices of the rows to look up, drawn by the host and so the same on every device."""
    generator = np.random.default_rng([seed, _STREAM])
    if indices == "uniform":
        return import_torch().from_numpy(generator.integers(0, rows, shape, dtype=np.int64)).to(where)
    return _zipf_rows(rows, generator.random(math.prod(shape)), alpha, where).view(shape)


def _zipf_rows(rows: int, samples: np.ndarray[tuple[int], np.dtype[np.float64]], alpha: float, where: str) -> Tensor:
    """Return rows by Zipf's law: the r-th most frequent one occurs 1/r^alpha times as often as the first.

    The most frequent ones are scattered over the table, as in a hashed one.
    """
    torch = import_torch()
    cumulative = torch.arange(1, rows + 1, dtype=torch.float64, device=where).pow_(-alpha).cumsum_(0)
    ranks = torch.searchsorted(cumulative, torch.from_numpy(samples).to(where) * cumulative[-1]).clamp_(max=rows - 1)
    return ranks.mul_(_coprime_step(rows)).remainder_(rows)


def _coprime_step(rows: int) -> int:
    """Return a step near the golden section of the rows and coprime to their number, so that it visits every row."""
    step = max(1, int(rows * 0.6180339887498949))
    while math.gcd(step, rows) != 1:
        step += 1
    return step


INDEX_BYTES = 8
EXTRA_BYTES = 2**28
_GIB = 2**30


class EmbeddingTorch(TorchWorkload):
    """``embedding@torch``. Its bytes are the distinct rows read once, the indices, and the bags written.

    The bytes of all lookups, with repeated rows, are among the measured facts: caches serve the rest.
    """

    name = "embedding"
    choices: Mapping[str, tuple[str, ...]] = {**TorchWorkload.choices, "indices": INDEX_DISTRIBUTIONS}
    summary = "Bags of rows looked up in a large table and summed, as in recommendation, by torch's embedding_bag"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the table, the bags, and how rows are chosen: 4 GiB on a GPU, beyond caches on a CPU."""
        sizes: Params = {"rows": 2**19, "dim": 64, "batch": 512, "pooling": 32}
        if device_kind == "cuda":
            sizes = {"rows": 2**23, "dim": 128, "batch": 2**16, "pooling": 32}
        return {**sizes, "indices": "uniform", "alpha": 1.05, "dtype": "float32", "distribution": "normal"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an invalid exponent."""
        check_alpha(params["alpha"])

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw the table and which of its rows make each bag."""
        rows, dim, batch, pooling = (read_size(params, name) for name in ("rows", "dim", "batch", "pooling"))
        dtype = check_choice("dtype", params["dtype"], TORCH_DTYPES)
        indices, alpha = check_choice("indices", params["indices"], INDEX_DISTRIBUTIONS), check_alpha(params["alpha"])
        torch, where = import_torch(), open_device(device)
        row_bytes, lookups = dim * ITEM_BYTES[dtype], batch * pooling
        needed = rows * row_bytes + lookups * 3 * INDEX_BYTES + batch * row_bytes + rows * INDEX_BYTES
        _check_memory(needed + EXTRA_BYTES, free_bytes(where), device)
        table = draw_tensor(params["distribution"], (rows, dim), dtype, seed, where=where)
        indices_used = draw_indices(indices, rows, (batch, pooling), seed, alpha=alpha, where=where)
        starts = torch.arange(0, lookups, pooling, device=where)
        distinct = int(indices_used.unique().numel())
        work = TensorWork(
            call=partial(torch.nn.functional.embedding_bag, indices_used.view(-1), table, starts, mode="sum"),
            reference=embedding_reference(table, indices_used),
            tolerance=tolerance_of(dtype),
            flop=float(batch * (pooling - 1) * dim) or None,
            bytes_moved=float((distinct + batch) * row_bytes + (lookups + batch) * INDEX_BYTES),
        )
        lookup_counts = {
            "lookups": float(lookups),
            "distinct_rows": float(distinct),
            "gathered_mib": lookups * row_bytes / 2**20,
        }
        return replace(work.prepare(where=where, seed=seed), measured=lambda: lookup_counts)


def embedding_reference(table: Tensor, indices: Tensor) -> TensorReference:
    """Return the reference of the bags: the sums of their rows."""
    elements = float(indices.shape[1] * table.shape[1])

    def right(which: RowSelection) -> Tensor:
        return table[indices[which]].double().sum(1)

    return TensorReference(indices.shape[0], right, flop_per_row=elements, elements_per_row=elements)


def _check_memory(needed: int, free: int, device: str) -> None:
    if needed > free:
        raise MachineCannot(
            f"embedding with this table needs {needed / _GIB:.1f} GiB of memory, and {free / _GIB:.1f} GiB are free "
            f"on {device}: give it fewer rows."
        )


EMBEDDING_TORCH: Workload = EmbeddingTorch()
