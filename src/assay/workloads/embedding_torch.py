"""The memory-bound part of a recommendation model by PyTorch: rows of a large table looked up and summed in bags."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.workloads.lookups import INDICES, check_alpha, look_up
from assay.workloads.parameters import one_of, size
from assay.workloads.problems import ITEM_BYTES
from assay.workloads.reference import tolerance
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import DTYPES, TorchWorkload, Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch, open_device
from assay.workloads.torch_memory import free_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_reference import Which

INDEX_BYTES = 8
BESIDE_BYTES = 2**28
_GIB = 2**30


class EmbeddingTorch(TorchWorkload):
    """``embedding@torch``. Its bytes are the distinct rows read once, the indices, and the bags written.

    How much was looked up in all, repeated rows again, stands among what was measured: caches give the rest.
    """

    name = "embedding"
    choices: Mapping[str, tuple[str, ...]] = {**TorchWorkload.choices, "indices": INDICES}
    summary = "Bags of rows looked up in a large table and summed, as in recommendation, by torch's embedding_bag"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the table, the bags, and how rows are chosen: 4 GiB on a GPU, beyond caches on a CPU."""
        sizes: Params = {"rows": 2**19, "dim": 64, "batch": 512, "pooling": 32}
        if device_kind == "cuda":
            sizes = {"rows": 2**23, "dim": 128, "batch": 2**16, "pooling": 32}
        return {**sizes, "indices": "uniform", "alpha": 1.05, "dtype": "float32", "distribution": "normal"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an exponent that is none."""
        check_alpha(params["alpha"])

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw the table and which of its rows make each bag."""
        rows, dim, batch, pooling = (size(params, name) for name in ("rows", "dim", "batch", "pooling"))
        dtype = one_of("dtype", params["dtype"], DTYPES)
        indices, alpha = one_of("indices", params["indices"], INDICES), check_alpha(params["alpha"])
        torch, where = import_torch(), open_device(device)
        row_bytes, lookups = dim * ITEM_BYTES[dtype], batch * pooling
        needed = rows * row_bytes + lookups * 3 * INDEX_BYTES + batch * row_bytes + rows * INDEX_BYTES
        _make_sure_it_fits(needed + BESIDE_BYTES, free_bytes(where), device)
        table = draw(params["distribution"], (rows, dim), dtype, seed, where=where)
        indices_used = look_up(indices, rows, (batch, pooling), seed, alpha=alpha, where=where)
        starts = torch.arange(0, lookups, pooling, device=where)
        distinct = int(indices_used.unique().numel())
        work = Work(
            call=partial(torch.nn.functional.embedding_bag, indices_used.view(-1), table, starts, mode="sum"),
            truth=truth(table, indices_used),
            tolerance=tolerance(dtype),
            flop=float(batch * (pooling - 1) * dim) or None,
            bytes_moved=float((distinct + batch) * row_bytes + (lookups + batch) * INDEX_BYTES),
        )
        lookup_counts = {
            "lookups": float(lookups),
            "distinct_rows": float(distinct),
            "gathered_mib": lookups * row_bytes / 2**20,
        }
        return replace(work.prepared(where=where, seed=seed), measured=lambda: lookup_counts)


def truth(table: Tensor, wanted: Tensor) -> Truth:
    """Return what the bags must be: the sums of their rows."""
    elements = float(wanted.shape[1] * table.shape[1])

    def right(which: Which) -> Tensor:
        return table[wanted[which]].double().sum(1)

    return Truth(wanted.shape[0], right, flop_per_row=elements, elements_per_row=elements)


def _make_sure_it_fits(needed: int, free: int, device: str) -> None:
    if needed > free:
        raise MachineCannot(
            f"embedding with this table needs {needed / _GIB:.1f} GiB of memory, and {free / _GIB:.1f} GiB are free "
            f"on {device}: give it fewer rows."
        )


WORKLOAD: Workload = EmbeddingTorch()
