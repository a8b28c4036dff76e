"""Attention by PyTorch: ``scaled_dot_product_attention``, by the backend asked for, which is proved afterwards.

A backend is chosen by switching the others off around the call and on again, by the switches that
``torch.nn.attention.sdpa_kernel`` sets as well. That one takes tens of microseconds of host time, as long as some
of the kernels; the bare switches take about one. With ``auto`` nothing is switched.
"""

from __future__ import annotations

import itertools
import warnings
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot, TrialFailed
from assay.workloads import torch_reference
from assay.workloads.parameters import one_of
from assay.workloads.problems import Attention
from assay.workloads.reference import tolerance
from assay.workloads.torch_check import Truth
from assay.workloads.torch_common import DTYPES, TorchWorkload, Work
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.torch_device import Tensor

BACKENDS = ("auto", "flash", "cudnn", "efficient", "math")

_MARKS = (
    ("cudnn", ("cudnn",)),
    ("flash", ("flash_fwd", "pytorch_flash", "flashattn", "_flash_attention_for_cpu")),
    ("efficient", ("fmha_cutlass", "efficient")),
)
"""What stands in a fused backend's kernels. cuDNN comes first: its kernels have "flash" in their names too."""

_NO_KERNEL = ("No available kernel", "No viable backend", "Invalid backend")

_TITLES = {"flash": "Flash attention", "cudnn": "CuDNN attention", "efficient": "Memory efficient"}
"""How PyTorch begins the warning whose next one says why a backend was not used."""


def truth(q: Tensor, k: Tensor, v: Tensor, problem: Attention) -> Truth:
    """Return what attention must give; its rows are the queries, each of every head."""
    scores = problem.batch * problem.heads * problem.sequence
    right = partial(torch_reference.attention, q, k, v, causal=problem.causal)
    return Truth(problem.sequence, right, flop_per_row=4.0 * scores * problem.dim, elements_per_row=scores)


def queries_first(out: Tensor) -> Tensor:
    """Return (batch, head, query, dim) as (query, batch, head, dim)."""
    return out.permute(2, 0, 1, 3)


def backend_of(kernels: tuple[str, ...]) -> str | None:
    """Return the backend that kernels, or a CPU's operators, belong to; null where none were seen."""
    if not kernels:
        return None
    names = [kernel.lower() for kernel in kernels]
    for backend, marks in _MARKS:
        if any(mark in name for name in names for mark in marks):
            return backend
    return "math"


def proved(asked: str, kernels: tuple[str, ...]) -> str | None:
    """Return the backend that ran, or fail when it is another than the one asked for."""
    backend = backend_of(kernels)
    if asked != "auto" and backend not in {asked, None}:
        raise TrialFailed(f"attention was to run by backend {asked!r}, but the kernels are those of {backend!r}")
    return backend


def restricted(call: Callable[[], Tensor], backend: str) -> Callable[[], Tensor]:
    """Return the call with all backends but one switched off while it is made."""
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


def try_out(call: Callable[[], Tensor], backend: str) -> None:
    """Make one call, or say that PyTorch has no such backend for this problem and device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except RuntimeError as error:
            if not any(words in str(error) for words in _NO_KERNEL):
                raise
            why = reason([str(warning.message) for warning in caught], backend)
            raise MachineCannot(f"PyTorch has no {backend} attention for this problem here{why}.") from error


def reason(said: Sequence[str], backend: str) -> str:
    """Return why a backend was not used, out of PyTorch's warnings: ``: because``, or nothing where they are silent."""
    title = _TITLES.get(backend, backend)
    for heading, why in itertools.pairwise(said):
        if heading.startswith(title):
            return f": {why.partition('(Triggered')[0].strip().rstrip('.')}"
    return ""


class FlashAttentionTorch(TorchWorkload):
    """``flash_attention@torch``. Queries, keys and values lie in memory as batch, heads, sequence, dim."""

    name = "flash_attention"
    choices: Mapping[str, tuple[str, ...]] = {**TorchWorkload.choices, "backend": BACKENDS}
    summary = "Attention, causal or not, by PyTorch's scaled_dot_product_attention and a backend of choice"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return sizes in elements, mask, backend, dtype and distribution: 4 × 16 × 2048 × 64 fill a GPU."""
        sizes: Params = {"batch": 1, "heads": 4, "sequence": 256, "dim": 64}
        if device_kind == "cuda":
            sizes = {"batch": 4, "heads": 16, "sequence": 2048, "dim": 64}
        dtype = "bfloat16" if device_kind == "cuda" else "float32"
        return {**sizes, "causal": False, "backend": "auto", "dtype": dtype, "distribution": "normal"}

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw queries, keys and values, and try the backend out."""
        problem, where = Attention.of(params, DTYPES), open_device(device)
        backend = one_of("backend", params["backend"], BACKENDS)
        q, k, v = (
            draw(params["distribution"], problem.shape, problem.dtype, seed, where=where, stream=stream)
            for stream in range(3)
        )
        attend = import_torch().nn.functional.scaled_dot_product_attention
        call = restricted(partial(attend, q, k, v, is_causal=problem.causal), backend)
        try_out(call, backend)
        return Work(
            call=call,
            truth=truth(q, k, v, problem),
            tolerance=tolerance(problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            by_rows=queries_first,
            backend=partial(proved, backend),
        ).prepared(where=where, seed=seed)


WORKLOAD: Workload = FlashAttentionTorch()
