"""Dilated attention by PyTorch, alone or as rings of ranks: ``dilated_attention@torch``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from assay.workloads import torch_ranks
from assay.workloads.base import Prepared, Ran
from assay.workloads.dilated_attention.exchange import Traffic
from assay.workloads.dilated_attention.only import call_of
from assay.workloads.dilated_attention.problem import CHOICES, Problem
from assay.workloads.dilated_attention.shards import Source
from assay.workloads.dilated_attention.truth import Judge
from assay.workloads.flash_attention_torch import backend_of
from assay.workloads.torch_device import import_torch, open_device, synchronizer
from assay.workloads.torch_profile import launched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.dilated_attention.only import Attention, Transfers
    from assay.workloads.dilated_attention.steps import Seat
    from assay.workloads.torch_ranks import Ranks

MIB = 2.0**20
OURS = ("dilated_attention", "merge_parts")
"""What our own kernels are called."""


class DilatedAttentionTorch:
    """``dilated_attention@torch``. The ranks of the world make rings, each with sequences of its own.

    ``sequence`` is the whole one, of which a rank of a ring has one shard. ``segments`` and ``rates`` are lists, one
    number for each branch. ``passes`` is ``forward`` or ``total``, which goes backward too. ``only`` leaves out the
    transfers (``compute``) or all but them (``communication``).
    """

    name = "dilated_attention"
    impl = "torch"
    device_kinds = frozenset({"cpu", "cuda"})
    summary = "Dilated attention (LongNet), forward or with its gradients, alone or over rings of ranks"
    choices: Mapping[str, tuple[str, ...]] = CHOICES

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the shape of the whole, the ladder, and what is done of it."""
        sizes: Params = {"batch": 1, "sequence": 2048, "heads": 4, "key_heads": 4, "dim": 32}
        segments, dtype = "256,512,1024", "float32"
        if device_kind == "cuda":
            sizes = {"batch": 2, "sequence": 16384, "heads": 12, "key_heads": 12, "dim": 64}
            segments, dtype = "2048,4096,8192", "float16"
        schedule: Params = {"segments": segments, "rates": "1,2,4", "ring": 1, "dtype": dtype}
        options: Params = {"causal": False, "offset": "modulo", "backend": "auto", "passes": "forward", "only": "all"}
        return {**sizes, **schedule, **options}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: the attention itself finds its fastest way."""
        return ()

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse what breaks a rule of the attention, in the rule's own sentence."""
        Problem.of(params).check_device(device_kind)

    def for_ranks(self, params: Params, ranks: int, given: Collection[str]) -> Params:
        """Return the parameters for a world of so many ranks: one ring unless told, and rings that fit the world."""
        if "ring" not in given and ranks > 1:
            params = {**params, "ring": ranks}
        Problem.of(params).seat(0, ranks)
        return params

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Meet the other ranks and draw this rank's shard."""
        problem, where = Problem.of(params), open_device(device)
        problem.check_device(where.partition(":")[0])
        ranks = torch_ranks.join(where)
        try:
            return _Rank(problem, ranks, where, seed).prepared()
        except BaseException:
            torch_ranks.leave()
            raise


class _Rank:
    """What one rank does of a problem, and what is known of it."""

    def __init__(self, problem: Problem, ranks: Ranks, where: str, seed: int) -> None:
        self._problem, self._ranks, self._where, self._seed = problem, ranks, where, seed
        self._seat: Seat = problem.seat(ranks.rank, ranks.size)
        self._source = Source(problem, seed, self._seat.first_rank // problem.ring, where)
        shard = self._source.shard(self._seat.place)
        self._call: Attention | Transfers = call_of(problem, self._seat, shard, ranks.group)
        self._synchronize = synchronizer(where)

    def prepared(self) -> Prepared:
        """Return it ready to be checked and timed."""
        problem, costs = self._problem, self._problem.costs
        computes = problem.only != "communication"
        forward = costs.flop_at(self._seat.place, problem.ring)
        flop = forward * (costs.backward_flop / costs.flop + 1 if problem.backward else 1)
        least = costs.least_bytes + (costs.least_backward_bytes if problem.backward else 0.0)
        judge = Judge(problem, self._seat, self._source, self._seed)
        return Prepared(
            call=partial(self._call, Traffic()),
            check=(lambda: judge.check(self._call(Traffic()))) if problem.only == "all" else None,
            ran=self._ran if computes else None,
            flop=flop if computes else None,
            bytes_moved=least / problem.ring if computes else None,
            measured=self._measured,
            align=self._ranks.align if self._ranks.size > 1 else None,
            synchronize=self._synchronize,
            close=torch_ranks.leave,
        )

    def _ran(self) -> Ran:
        """Make calls, and look at what one launched; of a CPU's many operators each is named once."""
        kernels = launched(partial(self._call, Traffic()), self._where)
        if self._where == "cpu":
            return Ran(tuple(dict.fromkeys(kernels)), backend_of(kernels))
        ours = any(mark in kernel for kernel in kernels for mark in OURS)
        return Ran(kernels, "triton" if ours and backend_of(kernels) == "math" else backend_of(kernels))

    def _measured(self) -> Mapping[str, float]:
        """Make one call, and say what it moved and held; bytes are of this rank, messages those that came."""
        traffic = Traffic()
        peaks = self._peaks(partial(self._call, traffic))
        moved = {
            "received_bytes": traffic.received,
            "expected_received_bytes": self._expected_bytes(),
            "sent_bytes": traffic.sent,
            "messages": traffic.messages,
        }
        return {**moved, **peaks, "held_mib": self._held_bytes / MIB}

    @property
    def _held_bytes(self) -> int:
        return sum(x.nbytes for x in self._call.held)

    def _expected_bytes(self) -> int:
        """Return what the formula says that reaches this rank in one call."""
        costs, ring, index = self._problem.costs, self._problem.ring, self._seat.place
        if self._problem.only == "compute":
            return 0
        backward = costs.backward_received_bytes(index, ring) if self._problem.backward else 0
        return costs.received_bytes(index, ring) + backward

    def _peaks(self, call: Callable[[], Any]) -> dict[str, float]:
        """Make a call; on a GPU return the most that was allocated for it, and that the process had reserved.

        What is allocated for other subjects of the process is not counted.
        """
        if self._where == "cpu":
            call()
            return {}
        cuda = import_torch().cuda
        self._synchronize()
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(self._where)
        of_others = cuda.memory_allocated(self._where) - self._held_bytes
        call()
        self._synchronize()
        return {
            "peak_allocated_mib": (cuda.max_memory_allocated(self._where) - max(0, of_others)) / MIB,
            "peak_reserved_mib": cuda.max_memory_reserved(self._where) / MIB,
        }


WORKLOAD: Workload = DilatedAttentionTorch()
