"""``sliding_attention`` and ``compressed_attention``, each ``@masked`` and ``@flash``.

On a CPU, where flash kernels know no window, ``@flash`` computes chunks of queries over the keys they attend to, and
reports that as its backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import BadInput
from assay.workloads.nsa import flash_kernels, verify
from assay.workloads.nsa.branches import (
    COMPRESSED,
    SLIDING,
    CompressedBranch,
    SlidingBranch,
    make_inputs,
    queries_first,
)
from assay.workloads.nsa.paths import LAYOUTS, chunked_call, flash_call, masked_call
from assay.workloads.nsa.verify import branch_reference
from assay.workloads.numpy_support import DISTRIBUTIONS, tolerance_of
from assay.workloads.ops.attention import attention_backend
from assay.workloads.parameters import ITEM_BYTES, check_choice
from assay.workloads.torch_device import open_device
from assay.workloads.torch_support import TensorWork

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload, Workload
    from assay.workloads.nsa.branches import Branch, BranchInputs
    from assay.workloads.torch_device import Tensor

_BRANCHES: Mapping[str, type[SlidingBranch | CompressedBranch]] = {SLIDING: SlidingBranch, COMPRESSED: CompressedBranch}
_OWN_PARAMS: Mapping[str, Params] = {SLIDING: {"window": 64}, COMPRESSED: {"block": 32, "stride": 16}}
_SUMMARIES = {SLIDING: "Attention through a sliding window", COMPRESSED: "Attention to compressed blocks of keys"}


class BranchPath(NamedTuple):
    """A way to compute a branch, and which backend its kernels show."""

    call: Callable[[], Tensor]
    backend: Callable[[tuple[str, ...]], str | None]


class BranchWorkload(ABC):
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

    def configs(self, params: Params) -> Sequence[Params]:
        """Return no configurations: there is nothing to tune."""
        return ()

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse what no query sees anything of, and on a GPU the dtypes that flash kernels do not know."""
        _BRANCHES[self.name].of(params)
        if device_kind == "cuda" and params["dtype"] not in flash_kernels.FLASH_DTYPES:
            dtypes = " or ".join(flash_kernels.FLASH_DTYPES)
            raise BadInput(f"On a GPU {self.name} is in {dtypes}, as flash kernels are, not in {params['dtype']}.")

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw queries, keys and values, compress them where the branch does, and put the path in place."""
        where = open_device(device)
        self.check_params(params, where.partition(":")[0])
        branch = _BRANCHES[self.name].of(params)
        branch_inputs = make_inputs(branch, params["distribution"], where=where, seed=seed)
        path = self._path(branch, branch_inputs, params)
        work = TensorWork(
            call=path.call,
            reference=replace(branch_reference(branch, branch_inputs), by_rows=queries_first),
            tolerance=tolerance_of(branch.dtype),
            flop=branch.flop,
            bytes_moved=branch.bytes_moved,
            backend=path.backend,
        )
        check_parity = partial(verify.measure_parity, branch, branch_inputs, path.call, seed=seed)
        return replace(work.prepare(where=where, seed=seed), parity=check_parity)

    @abstractmethod
    def _path(self, branch: Branch, branch_inputs: BranchInputs, params: Params) -> BranchPath:
        """Return the way to compute the branch."""


class MaskedBranchWorkload(BranchWorkload):
    """A branch by PyTorch's attention with a mask."""

    impl = "masked"
    how = "by PyTorch's scaled_dot_product_attention with the mask written out"

    def _path(self, branch: Branch, branch_inputs: BranchInputs, params: Params) -> BranchPath:
        return BranchPath(masked_call(branch, branch_inputs), attention_backend)


class FlashBranchWorkload(BranchWorkload):
    """A branch by flash kernels; on a CPU in chunks."""

    impl = "flash"
    how = "by flash kernels of PyTorch or of flash_attn; on a CPU in chunks"
    choices: Mapping[str, tuple[str, ...]] = {**BranchWorkload.choices, "kernel": flash_kernels.KERNELS, "way": LAYOUTS}

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return those of the branch, whose kernels, and for the compressed branch in which form."""
        layout: Params = {"way": LAYOUTS[0]} if self.name == COMPRESSED else {}
        return {**super().defaults(device_kind), "kernel": flash_kernels.KERNELS[0], **layout}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse also what flash kernels do not know, and the package's on a CPU."""
        super().check_params(params, device_kind)
        if device_kind == "cuda":
            flash_kernels.check_head_dim(_BRANCHES[self.name].of(params).head_dim)
        elif params["kernel"] != "aten":
            raise BadInput(f"The kernels of {params['kernel']} run on a GPU, not on a CPU.")
        if params.get("way") == "groups" and params["kernel"] != "aten":
            raise BadInput(f"way=groups is computed by kernel=aten, not by {params['kernel']}; choose way=columns.")

    def _path(self, branch: Branch, branch_inputs: BranchInputs, params: Params) -> BranchPath:
        kernel = check_choice("kernel", params["kernel"], flash_kernels.KERNELS)
        layout = check_choice("way", params.get("way", LAYOUTS[0]), LAYOUTS)
        if branch_inputs.q.is_cuda:
            return BranchPath(
                flash_call(branch, branch_inputs, kernel=kernel, layout=layout),
                partial(flash_kernels.check_kernel_used, kernel),
            )
        return BranchPath(chunked_call(branch, branch_inputs), chunk_backend)


def chunk_backend(operators: tuple[str, ...]) -> str | None:
    """Return the backend of chunks on a CPU: that it is chunks, and of what."""
    backend = attention_backend(operators)
    return None if backend is None else f"chunks of {backend}"


SLIDING_ATTENTION_MASKED: Workload = MaskedBranchWorkload(SLIDING)
SLIDING_ATTENTION_FLASH: Workload = FlashBranchWorkload(SLIDING)
COMPRESSED_ATTENTION_MASKED: Workload = MaskedBranchWorkload(COMPRESSED)
COMPRESSED_ATTENTION_FLASH: Workload = FlashBranchWorkload(COMPRESSED)
