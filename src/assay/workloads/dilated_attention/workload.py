"""``dilated_attention@torch``: dilated attention by PyTorch, alone or as rings of ranks.

A call computes all of it, or only the computation, or only the transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from assay.workloads.base import LaunchedKernels, PreparedWorkload, UntunedWorkload
from assay.workloads.dilated_attention.exchange import GradientReturns, KeyArrivals, NoTransfers, RingExchange, Traffic
from assay.workloads.dilated_attention.functional import AttentionOptions, run_attention
from assay.workloads.dilated_attention.problem import CHOICES, DilatedAttentionProblem, ShardSource
from assay.workloads.dilated_attention.schedule import branch_parts, ring_steps
from assay.workloads.dilated_attention.verify import ShardCheck
from assay.workloads.ops.attention import attention_backend
from assay.workloads.torch_device import import_torch, join_ranks, leave_ranks, list_kernels, open_device, synchronizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from assay.core.values import Params
    from assay.workloads.base import Workload
    from assay.workloads.dilated_attention.problem import AttentionShard
    from assay.workloads.dilated_attention.schedule import RingPosition, RingStep
    from assay.workloads.torch_device import Ranks, Tensor


class DiscardedReturns(GradientReturns):
    """Receives gradients without adding them up."""

    def accumulate(self, step: RingStep, received: Tensor) -> None:
        """Discard received gradients."""


@dataclass(frozen=True)
class VariantCall:
    """Forward, or forward and backward, of one shard: all of it, only the computation, or only the transfers.

    A call counts its traffic and returns the output, followed by the gradients of q, k and v where it goes backward;
    nothing where nothing is computed.
    """

    problem: DilatedAttentionProblem
    position: RingPosition
    shard: AttentionShard
    group: Any

    @cached_property
    def _qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.shard.q, self.shard.k, self.shard.v
        if not self.problem.backward:
            return q, k, v
        return q.detach().requires_grad_(), k.detach().requires_grad_(), v.detach().requires_grad_()

    @property
    def held(self) -> tuple[Tensor, ...]:
        """The tensors that it holds."""
        if self.problem.only == "communication":
            return self.shard.k, self.shard.v
        return (*self._qkv, self.shard.gradient) if self.problem.backward else self._qkv

    def __call__(self, traffic: Traffic) -> tuple[Tensor, ...]:
        """Make the call, and count its traffic."""
        if self.problem.only == "communication":
            self._transfer(traffic)
            return ()
        torch, costs = import_torch(), self.problem.costs
        branches = costs.schedule.branches
        options = AttentionOptions(
            segment_lengths=[branch.segment for branch in branches],
            dilation_rates=[branch.rate for branch in branches],
            causal=costs.causal,
            offset=costs.heads.rule,
            backend=self.problem.backend,
        )
        with torch.set_grad_enabled(self.problem.backward):
            out = run_attention(self._qkv, options, self.position, group=self.group, traffic=traffic)
        if not self.problem.backward:
            return (out,)
        return (out, *torch.autograd.grad(out, self._qkv, self.shard.gradient))

    def _transfer(self, traffic: Traffic) -> None:
        """Make the same transfers in the same order, with nothing computed."""
        costs, shard = self.problem.costs, self.problem.shard
        steps = ring_steps(costs.schedule, shard, self.position, causal=costs.causal)
        exchange = RingExchange(self.group, steps, branch_parts(costs.schedule, costs.heads, shard), traffic)
        k, v = self.shard.k.unsqueeze(3), self.shard.v.unsqueeze(3)
        for _ in KeyArrivals(exchange, k, v):
            pass
        if self.problem.backward:
            arriving, returning = KeyArrivals(exchange, k, v), DiscardedReturns(exchange, k, v, k.dtype)
            for step, packed in arriving:
                returning.swap(step, packed)
            returning.finish()


def call_variant(
    problem: DilatedAttentionProblem, position: RingPosition, shard: AttentionShard, group: Any
) -> VariantCall:
    """Return the call of a problem's variant; with only the computation, nothing is sent."""
    return VariantCall(problem, position, shard, NoTransfers() if problem.only == "compute" else group)


OWN_KERNELS = ("dilated_attention", "merge_parts")  # names of our own kernels


class DilatedAttentionTorch(UntunedWorkload):
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
        self._call = call_variant(problem, self._position, shard, ranks.group)
        self._held_bytes = sum(x.nbytes for x in self._call.held)
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
        backend = attention_backend(kernels)
        if self._where == "cpu":
            return LaunchedKernels(tuple(dict.fromkeys(kernels)), backend)
        ours = any(mark in kernel for kernel in kernels for mark in OWN_KERNELS)
        return LaunchedKernels(kernels, "triton" if ours and backend == "math" else backend)

    def _measured(self) -> Mapping[str, float]:
        """Make one call, and return its traffic and memory: bytes of this rank, and messages received."""
        problem, costs, index, traffic = self._problem, self._problem.costs, self._position.index, Traffic()
        expected = costs.received_bytes(index, problem.ring)
        if problem.backward:
            expected += costs.backward_received_bytes(index, problem.ring)
        peaks = self._peaks(partial(self._call, traffic))
        moved = {
            "received_bytes": traffic.received,
            "expected_received_bytes": 0 if problem.only == "compute" else expected,
            "sent_bytes": traffic.sent,
            "messages": traffic.messages,
        }
        return {**moved, **peaks, "held_mib": self._held_bytes / 2**20}

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
            "peak_allocated_mib": (cuda.max_memory_allocated(self._where) - max(0, of_others)) / 2**20,
            "peak_reserved_mib": cuda.max_memory_reserved(self._where) / 2**20,
        }


DILATED_ATTENTION_TORCH: Workload = DilatedAttentionTorch()
