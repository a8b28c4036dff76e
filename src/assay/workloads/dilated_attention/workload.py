"""``dilated_attention@torch``: dilated attention by PyTorch, alone or as rings of ranks.

A call computes all of it, or only the computation, or only the transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.workloads.base import LaunchedKernels, PreparedWorkload
from assay.workloads.dilated_attention.exchange import GradientReturns, KeyArrivals, NoTransfers, RingExchange, Traffic
from assay.workloads.dilated_attention.functional import AttentionOptions, run_attention
from assay.workloads.dilated_attention.problem import CHOICES, DilatedAttentionProblem, ShardSource
from assay.workloads.dilated_attention.schedule import branch_parts, ring_steps
from assay.workloads.dilated_attention.verify import ShardCheck
from assay.workloads.ops.attention import attention_backend
from assay.workloads.torch_device import import_torch, join_ranks, leave_ranks, list_kernels, open_device, synchronizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.dilated_attention.problem import AttentionShard
    from assay.workloads.dilated_attention.schedule import RingPosition, RingStep
    from assay.workloads.torch_device import Ranks, Tensor


class FullCall:
    """Forward, or forward and backward, of one shard.

    A call returns the output, and behind it the gradients of q, k and v where it goes backward.
    """

    def __init__(
        self, problem: DilatedAttentionProblem, position: RingPosition, shard: AttentionShard, group: Any
    ) -> None:
        """Set it up; the group is a ``NoTransfers`` where nothing is to be sent."""
        schedule = problem.costs.schedule
        self._options = AttentionOptions(
            segment_lengths=[branch.segment for branch in schedule.branches],
            dilation_rates=[branch.rate for branch in schedule.branches],
            causal=problem.costs.causal,
            offset=problem.costs.heads.rule,
            key_padding_mask=None,
            detached_weights=False,
            dropout=0.0,
            backend=problem.backend,
        )
        self._position, self._group, self._shard = position, group, shard
        qkv = (shard.q, shard.k, shard.v)
        self._gradient = shard.gradient if problem.backward else None
        self._qkv = tuple(x.detach().requires_grad_() for x in qkv) if problem.backward else qkv

    @property
    def held(self) -> tuple[Tensor, ...]:
        """The tensors that it holds."""
        return self._qkv if self._gradient is None else (*self._qkv, self._gradient)

    def __call__(self, traffic: Traffic) -> tuple[Tensor, ...]:
        """Make the call, and count its traffic."""
        torch = import_torch()
        if self._gradient is None:
            with torch.no_grad():
                return (self._run(traffic),)
        out = self._run(traffic)
        return (out, *torch.autograd.grad(out, self._qkv, self._gradient))

    def _run(self, traffic: Traffic) -> Tensor:
        q, k, v = self._qkv
        return run_attention((q, k, v), self._options, self._position, group=self._group, traffic=traffic)


@dataclass(frozen=True)
class TransferCall:
    """The same transfers in the same order, with nothing computed."""

    problem: DilatedAttentionProblem
    position: RingPosition
    shard: AttentionShard
    group: Any

    @property
    def held(self) -> tuple[Tensor, ...]:
        """The tensors that it holds."""
        return self.shard.k, self.shard.v

    def __call__(self, traffic: Traffic) -> tuple[Tensor, ...]:
        """Make the call, and count its traffic."""
        costs, shard = self.problem.costs, self.problem.shard
        ahead = ring_steps(costs.schedule, shard, self.position, causal=costs.causal)
        exchange = RingExchange(self.group, ahead, branch_parts(costs.schedule, costs.heads, shard), traffic)
        k, v = self.shard.k.unsqueeze(3), self.shard.v.unsqueeze(3)
        for _ in KeyArrivals(exchange, k, v):
            pass
        if self.problem.backward:
            arriving, returning = KeyArrivals(exchange, k, v), DiscardedReturns(exchange, k, v, k.dtype)
            for step, packed in arriving:
                returning.swap(step, packed)
            returning.finish()
        return ()


class DiscardedReturns(GradientReturns):
    """Receives gradients without adding them up."""

    def accumulate(self, step: RingStep, received: Tensor) -> None:
        """Discard received gradients."""


def call_variant(
    problem: DilatedAttentionProblem, position: RingPosition, shard: AttentionShard, group: Any
) -> FullCall | TransferCall:
    """Return the call of a problem's variant."""
    if problem.only == "communication":
        return TransferCall(problem, position, shard, group)
    return FullCall(problem, position, shard, NoTransfers() if problem.only == "compute" else group)


MIB = 2.0**20
OWN_KERNELS = ("dilated_attention", "merge_parts")
"""Names of our own kernels."""


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
        DilatedAttentionProblem.of(params).check_device(device_kind)

    def for_ranks(self, params: Params, ranks: int, explicit: Collection[str]) -> Params:
        """Return the parameters for a world of so many ranks: one ring unless told, and rings that fit the world."""
        if "ring" not in explicit and ranks > 1:
            params = {**params, "ring": ranks}
        DilatedAttentionProblem.of(params).ring_position(0, ranks)
        return params

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Join the other ranks and draw this rank's shard."""
        problem, where = DilatedAttentionProblem.of(params), open_device(device)
        problem.check_device(where.partition(":")[0])
        ranks = join_ranks(where)
        try:
            return _RankWorkload(problem, ranks, where, seed).prepare()
        except BaseException:
            leave_ranks()
            raise


class _RankWorkload:
    """One rank's part of a problem, with its facts."""

    def __init__(self, problem: DilatedAttentionProblem, ranks: Ranks, where: str, seed: int) -> None:
        self._problem, self._ranks, self._where, self._seed = problem, ranks, where, seed
        self._position: RingPosition = problem.ring_position(ranks.rank, ranks.size)
        self._source = ShardSource(problem, seed, self._position.first_rank // problem.ring, where)
        shard = self._source.shard(self._position.index)
        self._call: FullCall | TransferCall = call_variant(problem, self._position, shard, ranks.group)
        self._synchronize = synchronizer(where)

    def prepare(self) -> PreparedWorkload:
        """Return the workload ready to be checked and timed."""
        problem, costs = self._problem, self._problem.costs
        computes = problem.only != "communication"
        forward = costs.flop_at(self._position.index, problem.ring)
        flop = forward * (costs.backward_flop / costs.flop + 1 if problem.backward else 1)
        least = costs.least_bytes + (costs.least_backward_bytes if problem.backward else 0.0)
        judge = ShardCheck(problem, self._position, self._source, self._seed)
        return PreparedWorkload(
            call=partial(self._call, Traffic()),
            check=(lambda: judge.check(self._call(Traffic()))) if problem.only == "all" else None,
            launched_kernels=self._launched_kernels if computes else None,
            flop=flop if computes else None,
            bytes_moved=least / problem.ring if computes else None,
            measured=self._measured,
            align=self._ranks.align if self._ranks.size > 1 else None,
            synchronize=self._synchronize,
            close=leave_ranks,
        )

    def _launched_kernels(self) -> LaunchedKernels:
        """Make calls, and return what one launched; a CPU's many operators are listed once each."""
        kernels = list_kernels(partial(self._call, Traffic()), self._where)
        if self._where == "cpu":
            return LaunchedKernels(tuple(dict.fromkeys(kernels)), attention_backend(kernels))
        ours = any(mark in kernel for kernel in kernels for mark in OWN_KERNELS)
        return LaunchedKernels(
            kernels, "triton" if ours and attention_backend(kernels) == "math" else attention_backend(kernels)
        )

    def _measured(self) -> Mapping[str, float]:
        """Make one call, and return its traffic and memory: bytes of this rank, and messages received."""
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
        """Return the bytes that this rank should receive per call, by formula."""
        costs, ring, index = self._problem.costs, self._problem.ring, self._position.index
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


DILATED_ATTENTION_TORCH: Workload = DilatedAttentionTorch()
