from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.workloads.dilated_attention import attention, exchange
from assay.workloads.dilated_attention import functional as work
from assay.workloads.dilated_attention.exchange import RingExchange, Traffic
from assay.workloads.dilated_attention.functional import AttentionCall, forward
from assay.workloads.dilated_attention.schedule import (
    AttentionHeads,
    DilationSchedule,
    RingPosition,
    branch_parts,
    ring_steps,
)

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class Told(RingExchange):
    """An exchange that writes down what is asked of it; what it receives is 0."""

    events: list[str] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=list)
    most_held: list[int] = field(default_factory=list)

    def post(self, send: Any, send_to: int | None, receive: Any, receive_from: int | None) -> list[Any]:
        self.events.append(f"to {send_to}, from {receive_from}")
        self.buffers.extend(weakref.ref(x) for x in (send, receive) if x is not None)
        if receive is not None:
            receive.zero_()
        self.most_held.append(len({id(x()) for x in self.buffers if x() is not None}))
        return [self]

    def wait(self) -> None:
        self.events.append("wait")


def job_of(ladder: DilationSchedule, ranks: int, place: int, *, causal: bool = False) -> tuple[AttentionCall, Told]:
    chosen, seat = branch_parts(ladder, AttentionHeads(1, 1), 4), RingPosition(place, ranks)
    told = Told(None, ring_steps(ladder, 4, seat, causal=causal), chosen)
    return AttentionCall(len(ladder.branches), chosen, causal, False, "math", None, place, told), told


def attend(events: list[str], inner: Any, *tensors: Any, **how: Any) -> Any:
    events.append("attend")
    return inner(*tensors, **how)


def run(told: Told, job: AttentionCall, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    import torch

    monkeypatch.setattr(work, "attend_block", partial(attend, told.events, attention.attend_block))
    forward(job, *(torch.ones(1, 4, 1, 1, 2) for _ in range(3)))
    return told.events


def test_the_next_keys_are_under_way_before_the_current_ones_are_attended_to(monkeypatch: pytest.MonkeyPatch) -> None:
    job, told = job_of(DilationSchedule.of((2, 16), (1, 1)), 4, 1)
    around = "to 2, from 0"
    assert run(told, job, monkeypatch) == [
        around, "attend", "attend",
        "wait", around, "attend",
        "wait", around, "attend",
        "wait", "attend",
    ]  # fmt: skip


def test_no_more_than_three_messages_are_held_however_long_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    job, told = job_of(DilationSchedule.of((64,), (1,)), 16, 5)
    run(told, job, monkeypatch)
    assert len(told.most_held) == 15
    assert max(told.most_held) <= 3


def test_under_a_mask_the_first_rank_only_sends_and_the_last_only_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = DilationSchedule.of((12,), (1,))
    for place, exchanges in (
        (0, ["to 1, from None"]),
        (1, ["to 2, from 0", "to 2, from None"]),
        (2, ["to None, from 1"] * 2),
    ):
        job, told = job_of(ladder, 3, place, causal=True)
        events = run(told, job, monkeypatch)
        asked = [event for event in events if event.startswith("to")]
        assert [event for event in asked if event != "to None, from None"] == exchanges
        monkeypatch.undo()


def test_where_nothing_is_needed_nothing_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    job, told = job_of(DilationSchedule.of((2, 4), (1, 2)), 4, 1)
    assert run(told, job, monkeypatch) == ["attend", "attend"]


@dataclass(frozen=True)
class OnGpu:
    """A tensor as far as it is asked where it lies."""

    is_cuda: bool = True


def test_only_a_gpus_tensors_over_gloo_go_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.distributed, "get_backend", lambda group: group)
    assert exchange.needs_host_copy("gloo", OnGpu())
    assert not exchange.needs_host_copy("nccl", OnGpu())
    assert not exchange.needs_host_copy("gloo", torch.zeros(1))


class Done:
    """Something that is waited for no longer."""

    def wait(self) -> None:
        """It has come."""


def test_a_message_lands_where_it_is_wanted_only_when_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    posted: list[Any] = []

    def post(wanted: list[Any]) -> list[Done]:
        posted.extend(wanted)
        return [Done() for _ in wanted]

    monkeypatch.setattr(exchange, "needs_host_copy", lambda *_: True)
    monkeypatch.setattr(torch.distributed, "P2POp", lambda kind, x, *, group, group_peer: (kind, x, group_peer))
    monkeypatch.setattr(torch.distributed, "batch_isend_irecv", post)
    given, wanted = torch.ones(3), torch.zeros(3)
    works = exchange.begin_transfers("group", given, 1, wanted, 2)
    (_, sent, to), (_, received, source) = posted
    assert (to, source) == (1, 2)
    given.fill_(7)
    assert sent.tolist() == [1, 1, 1]
    received.fill_(5)
    assert wanted.tolist() == [0, 0, 0]
    for one in works:
        one.wait()
    assert wanted.tolist() == [5, 5, 5]


def test_where_nothing_is_sent_the_same_steps_are_taken_and_nothing_is_counted() -> None:
    import torch

    ladder = DilationSchedule.of((2, 16), (1, 2))
    chosen, seat = branch_parts(ladder, AttentionHeads(1, 1), 4), RingPosition(1, 4)
    still = RingExchange(exchange.NoTransfers(), ring_steps(ladder, 4, seat, causal=False), chosen)
    job = AttentionCall(len(ladder.branches), chosen, False, False, "math", None, 1, still)
    q, k, v = (torch.randn(1, 4, 1, 1, 2) for _ in range(3))
    merged = forward(job, q, k, v)
    gradients = work.backward(job, torch.ones_like(q), (q, k, v), merged)
    assert len(still.steps) == 3
    assert still.traffic == Traffic()
    assert all(x.isfinite().all() for x in (merged[0].out, *gradients))
