"""``sliding_attention`` and ``compressed_attention``, each ``@masked`` and ``@flash``.

On a CPU, where flash kernels know no window, ``@flash`` computes chunks of queries over the keys they attend to, and
reports that as its backend.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.workloads.base import UntunedWorkload
from assay.workloads.nsa import paths
from assay.workloads.nsa.branches import COMPRESSED, SLIDING, make_inputs, queries_first, read_branch, visible_mask
from assay.workloads.nsa.paths import LAYOUTS, chunked_call, flash_call, masked_call
from assay.workloads.numpy_support import DISTRIBUTIONS, tolerance_of
from assay.workloads.ops.attention import attention_backend
from assay.workloads.parameters import ITEM_BYTES, check_choice, read_size
from assay.workloads.parity import REPEATS, OutputErrors, compare_with_limits, max_error_limit, mean_error_limit
from assay.workloads.torch_device import import_torch, open_device
from assay.workloads.torch_support import TensorReference, TensorWork, spread_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.results import Parity
    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload, Workload
    from assay.workloads.nsa.branches import Branch, BranchInputs
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import RowSelection

    TensorCall = Callable[[], Tensor]
    BackendOf = Callable[[tuple[str, ...]], str | None]

_OWN_PARAMS: Mapping[str, Params] = {SLIDING: {"window": 64}, COMPRESSED: {"block": 32, "stride": 16}}
_SUMMARIES = {SLIDING: "Attention through a sliding window", COMPRESSED: "Attention to compressed blocks of keys"}


class BranchWorkload(UntunedWorkload, ABC):
    """What the ways to compute a branch have in common: parameters, data, what is right, and parity."""

    impl: str
    how: str
    device_kinds = frozenset({"cpu", "cuda"})
    choices: Mapping[str, tuple[str, ...]] = {"dtype": tuple(ITEM_BYTES), "distribution": DISTRIBUTIONS}

    def __init__(self, name: str) -> None:
        self.name = name
        self.summary = f"{_SUMMARIES[name]}, {self.how}"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return sizes in elements (``heads`` are those of one group), dtype and distribution."""
        gpu = device_kind == "cuda"
        sizes: Params = {"batch": 1, "groups": 2, "heads": 2, "head_dim": 64, "sequence": 1024 if gpu else 256}
        return {**sizes, **_OWN_PARAMS[self.name], "dtype": "float16" if gpu else "float32", "distribution": "normal"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse branches without keys, and on a GPU the dtypes that flash kernels do not support."""
        read_branch(params)
        if device_kind == "cuda" and params["dtype"] not in paths.FLASH_DTYPES:
            dtypes = " or ".join(paths.FLASH_DTYPES)
            raise BadInput(f"On a GPU {self.name} is in {dtypes}, as flash kernels are, not in {params['dtype']}.")

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw queries, keys and values, compress them where the branch does, and make the call."""
        where = open_device(device)
        self.check_params(params, where.partition(":")[0])
        branch = read_branch(params)
        inputs = make_inputs(branch, params["distribution"], where=where, seed=seed)
        call, backend = self._make_call(branch, inputs, params)
        scores, rows = branch.all_heads * branch.keys, partial(exact_output, branch, inputs)
        work = TensorWork(
            call=call,
            reference=TensorReference(
                branch.sequence, rows, 4.0 * scores * branch.head_dim, scores, by_rows=queries_first
            ),
            tolerance=tolerance_of(branch.dtype),
            flop=branch.flop,
            bytes_moved=branch.bytes_moved,
            backend=backend,
        )
        check_parity = partial(measure_parity, branch, inputs, call, seed=seed)
        return replace(work.prepare(where=where, seed=seed), parity=check_parity)

    @abstractmethod
    def _make_call(self, branch: Branch, branch_inputs: BranchInputs, params: Params) -> tuple[TensorCall, BackendOf]:
        """Return the call, and a function for the backend that its kernels show."""


class MaskedBranchWorkload(BranchWorkload):
    """A branch by PyTorch's attention with a mask."""

    impl = "masked"
    how = "by PyTorch's scaled_dot_product_attention with the mask written out"

    def _make_call(self, branch: Branch, branch_inputs: BranchInputs, params: Params) -> tuple[TensorCall, BackendOf]:
        return masked_call(branch, branch_inputs), attention_backend


class FlashBranchWorkload(BranchWorkload):
    """A branch by flash kernels; on a CPU in chunks."""

    impl = "flash"
    how = "by flash kernels of PyTorch or of flash_attn; on a CPU in chunks"
    choices: Mapping[str, tuple[str, ...]] = {**BranchWorkload.choices, "kernel": paths.KERNELS, "way": LAYOUTS}

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return those of the branch, whose kernels, and for the compressed branch in which form."""
        layout: Params = {"way": LAYOUTS[0]} if self.name == COMPRESSED else {}
        return {**super().defaults(device_kind), "kernel": paths.KERNELS[0], **layout}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse also what flash kernels do not know, and the package's on a CPU."""
        super().check_params(params, device_kind)
        if device_kind == "cuda":
            paths.check_head_dim(read_size(params, "head_dim"))
        elif params["kernel"] != "aten":
            raise BadInput(f"The kernels of {params['kernel']} run on a GPU, not on a CPU.")
        if params.get("way") == "groups" and params["kernel"] != "aten":
            raise BadInput(f"way=groups is computed by kernel=aten, not by {params['kernel']}; choose way=columns.")

    def _make_call(self, branch: Branch, branch_inputs: BranchInputs, params: Params) -> tuple[TensorCall, BackendOf]:
        kernel = check_choice("kernel", params["kernel"], paths.KERNELS)
        layout = check_choice("way", params.get("way", LAYOUTS[0]), LAYOUTS)
        if branch_inputs.q.is_cuda:
            call = flash_call(branch, branch_inputs, kernel=kernel, layout=layout)
            return call, partial(paths.check_kernel_used, kernel)

        def chunk_backend(operators: tuple[str, ...]) -> str | None:
            backend = attention_backend(operators)
            return None if backend is None else f"chunks of {backend}"

        return chunked_call(branch, branch_inputs), chunk_backend


SLIDING_ATTENTION_MASKED: Workload = MaskedBranchWorkload(SLIDING)
SLIDING_ATTENTION_FLASH: Workload = FlashBranchWorkload(SLIDING)
COMPRESSED_ATTENTION_MASKED: Workload = MaskedBranchWorkload(COMPRESSED)
COMPRESSED_ATTENTION_FLASH: Workload = FlashBranchWorkload(COMPRESSED)


def exact_output(branch: Branch, inputs: BranchInputs, which: RowSelection) -> Tensor:
    """Return the output of some queries, as (query, batch, group, head, dim); zeros for those that see nothing."""
    torch = import_torch()
    device = inputs.q.device
    chosen = which if isinstance(which, slice) else which.cpu().numpy()
    first, end = (torch.from_numpy(bounds[chosen]).to(device)[:, None] for bounds in branch.key_range())
    q = inputs.q[:, :, :, which].double()
    low, high = int(first.min()), int(end.max())
    if high <= low:
        return torch.zeros_like(q).permute(3, 0, 1, 2, 4)
    k, v = (x[:, :, None, low:high].double() for x in (inputs.k, inputs.v))
    scores = q @ k.mT / math.sqrt(branch.head_dim)
    positions = torch.arange(low, high, device=device)
    scores.masked_fill_((positions < first) | (positions >= end), -math.inf)
    most = scores.amax(-1, keepdim=True)
    powers = (scores - most.masked_fill(most == -math.inf, 0.0)).exp()
    sums = powers.sum(-1, keepdim=True)
    out = powers @ v / sums.masked_fill(sums == 0, 1.0)
    return out.permute(3, 0, 1, 2, 4)


ALL_UP_TO = 2**14  # queries
SCORES_AT_ONCE = 2**23  # 64 MiB of float64, a few of which are held
LARGEST_BLOCK = 512  # queries


@dataclass
class ErrorSums:
    """Absolute errors, summed up as they come."""

    total: float = 0.0
    largest: float = 0.0
    reference_squares: float = 0.0
    count: int = 0

    def add(self, output: Tensor, expected: Tensor) -> None:
        """Add how far some of an output is from what it must be."""
        errors = (output.double() - expected).abs()
        self.total += float(errors.sum())
        worst = float(errors.max())
        self.largest = worst if worst > self.largest or math.isnan(worst) else self.largest
        self.reference_squares += float(expected.square().sum())
        self.count += errors.numel()

    @property
    def mean(self) -> float:
        """The mean error."""
        return self.total / self.count

    @property
    def size(self) -> float:
        """The root mean square of what was to be found."""
        return math.sqrt(self.reference_squares / self.count)


def measure_parity(branch: Branch, inputs: BranchInputs, call: Callable[[], Tensor], *, seed: int) -> Parity:
    """Return how a call's output compares with float64, and with masked attention in the same dtype."""
    out = call()
    chosen = query_blocks(branch, seed)
    checked = sum(rows.stop - rows.start for rows in chosen)
    measure = f"absolute error against float64, beside masked attention in {branch.dtype}"
    if checked < branch.sequence:
        measure += f", over {checked} of {branch.sequence} queries in {len(chosen)} blocks (seed {seed})"
    own, dense = ErrorSums(), ErrorSums()
    output = queries_first(out)
    for rows in chosen:
        reference = exact_output(branch, inputs, rows)
        own.add(output[rows], reference)
        dense.add(masked_attention(branch, inputs, rows), reference)
    finite = all(bool(part.isfinite().all()) for part in output.split(LARGEST_BLOCK))
    return compare_with_limits(
        OutputErrors(own.mean, own.largest, checked, branch.sequence, finite),
        measure=measure,
        mean_limit=mean_error_limit(branch.dtype),
        max_limit=max_error_limit(branch.dtype, dense.largest, own.size),
        dense_max_error=dense.largest,
        deterministic=all(same_bits(out, call()) for _ in range(REPEATS)),
    )


def query_blocks(branch: Branch, seed: int) -> list[slice]:
    """Return the blocks of queries that are looked at, in order."""
    size = LARGEST_BLOCK
    while size > 1 and size * branch.span(size) * branch.all_heads > SCORES_AT_ONCE:
        size //= 2
    starts = range(0, branch.sequence, size)
    chosen = set(range(len(starts)))
    if branch.sequence > ALL_UP_TO:
        chosen = {0, len(starts) - 1, *spread_rows(len(starts), ALL_UP_TO // size, seed).tolist()}
    return [slice(starts[index], min(starts[index] + size, branch.sequence)) for index in sorted(chosen)]


def masked_attention(branch: Branch, inputs: BranchInputs, rows: slice) -> Tensor:
    """Return masked attention of some queries in their own dtype, as (query, batch, group, head, dim)."""
    torch = import_torch()
    first, end = (positions[rows] for positions in branch.key_range())
    keys = slice(int(first.min()), int(end.max()))
    q, k, v = inputs.by_groups()
    if keys.stop <= keys.start:
        out = torch.zeros_like(q[:, :, rows])
    else:
        mask = visible_mask(branch, rows, keys, where=str(q.device))
        out = torch.nn.functional.scaled_dot_product_attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], mask)
        out[:, :, : int((end <= first).sum())] = 0
    return queries_first(out.unflatten(0, (branch.batch, branch.groups)))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits, whichever way they lie in memory."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    as_bytes = import_torch().uint8
    return bool(one.contiguous().view(as_bytes).equal(other.contiguous().view(as_bytes)))
