"""``sliding_attention`` and ``compressed_attention``, each ``@masked`` and ``@flash``: one meaning, two ways to it.

On a CPU, where flash kernels know no window, ``@flash`` computes chunks of queries over the keys that they see, and its
backend says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import BadInput
from assay.workloads.data import DISTRIBUTIONS
from assay.workloads.flash_attention_torch import backend_of
from assay.workloads.nsa import judge, kernels
from assay.workloads.nsa.branches import Compressed, Sliding
from assay.workloads.nsa.chunks import chunked
from assay.workloads.nsa.flash import WAYS, flash
from assay.workloads.nsa.masked import masked
from assay.workloads.nsa.reference import truth
from assay.workloads.nsa.sizes import COMPRESSED, SLIDING
from assay.workloads.nsa.tensors import inputs, queries_first
from assay.workloads.parameters import one_of
from assay.workloads.problems import ITEM_BYTES
from assay.workloads.reference import tolerance
from assay.workloads.torch_common import Work
from assay.workloads.torch_device import open_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.nsa.branches import Branch
    from assay.workloads.nsa.tensors import Inputs
    from assay.workloads.torch_device import Tensor

_BRANCHES: Mapping[str, type[Sliding | Compressed]] = {SLIDING: Sliding, COMPRESSED: Compressed}
_OWN: Mapping[str, Params] = {SLIDING: {"window": 64}, COMPRESSED: {"block": 32, "stride": 16}}
_MEANING = {SLIDING: "Attention through a sliding window", COMPRESSED: "Attention to compressed blocks of keys"}


class Path(NamedTuple):
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
        self.summary = f"{_MEANING[name]}, {self.how}"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return sizes in elements (``heads`` are those of one group), dtype and distribution."""
        gpu = device_kind == "cuda"
        sizes: Params = {"batch": 1, "groups": 2, "heads": 2, "head_dim": 64, "sequence": 1024 if gpu else 256}
        return {**sizes, **_OWN[self.name], "dtype": "float16" if gpu else "float32", "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: there is nothing to tune."""
        return ()

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse what no query sees anything of, and on a GPU the dtypes that flash kernels do not know."""
        _BRANCHES[self.name].of(params)
        if device_kind == "cuda" and params["dtype"] not in kernels.DTYPES:
            dtypes = " or ".join(kernels.DTYPES)
            raise BadInput(f"On a GPU {self.name} is in {dtypes}, as flash kernels are, not in {params['dtype']}.")

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Draw queries, keys and values, compress them where the branch does, and put the path in place."""
        where = open_device(device)
        self.check_params(params, where.partition(":")[0])
        branch = _BRANCHES[self.name].of(params)
        branch_inputs = inputs(branch, params["distribution"], where=where, seed=seed)
        path = self._path(branch, branch_inputs, params)
        work = Work(
            call=path.call,
            truth=truth(branch, branch_inputs),
            tolerance=tolerance(branch.dtype),
            flop=branch.flop,
            bytes_moved=branch.bytes_moved,
            by_rows=queries_first,
            backend=path.backend,
        )
        check_parity = partial(judge.parity, branch, branch_inputs, path.call, seed=seed)
        return replace(work.prepared(where=where, seed=seed), parity=check_parity)

    @abstractmethod
    def _path(self, branch: Branch, given: Inputs, params: Params) -> Path:
        """Return the way to compute the branch."""


class Masked(BranchWorkload):
    """A branch by PyTorch's attention with a mask."""

    impl = "masked"
    how = "by PyTorch's scaled_dot_product_attention with the mask written out"

    def _path(self, branch: Branch, given: Inputs, params: Params) -> Path:
        return Path(masked(branch, given), backend_of)


class Flash(BranchWorkload):
    """A branch by flash kernels; on a CPU in chunks."""

    impl = "flash"
    how = "by flash kernels of PyTorch or of flash_attn; on a CPU in chunks"
    choices: Mapping[str, tuple[str, ...]] = {**BranchWorkload.choices, "kernel": kernels.KERNELS, "way": WAYS}

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return those of the branch, whose kernels, and for the compressed branch in which form."""
        layout: Params = {"way": WAYS[0]} if self.name == COMPRESSED else {}
        return {**super().defaults(device_kind), "kernel": kernels.KERNELS[0], **layout}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse also what flash kernels do not know, and the package's on a CPU."""
        super().check_params(params, device_kind)
        if device_kind == "cuda":
            kernels.refuse_head(_BRANCHES[self.name].of(params).head_dim)
        elif params["kernel"] != "aten":
            raise BadInput(f"The kernels of {params['kernel']} run on a GPU, not on a CPU.")
        if params.get("way") == "groups" and params["kernel"] != "aten":
            raise BadInput(f"way=groups is computed by kernel=aten, not by {params['kernel']}; choose way=columns.")

    def _path(self, branch: Branch, given: Inputs, params: Params) -> Path:
        kernel = one_of("kernel", params["kernel"], kernels.KERNELS)
        layout = one_of("way", params.get("way", WAYS[0]), WAYS)
        if given.q.is_cuda:
            return Path(flash(branch, given, kernel=kernel, way=layout), partial(kernels.proved, kernel))
        return Path(chunked(branch, given), in_chunks)


def in_chunks(operators: tuple[str, ...]) -> str | None:
    """Return the backend of chunks on a CPU: that it is chunks, and of what."""
    backend = backend_of(operators)
    return None if backend is None else f"chunks of {backend}"


SLIDING_MASKED: Workload = Masked(SLIDING)
SLIDING_FLASH: Workload = Flash(SLIDING)
COMPRESSED_MASKED: Workload = Masked(COMPRESSED)
COMPRESSED_FLASH: Workload = Flash(COMPRESSED)
