"""The book of a fleet: whose turn it is, who is missing, and what all of it comes to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.hosts import fleet as state
from assay.hosts.base import Job
from assay.hosts.fleet import FleetGpu, FleetState, GpuLocation, NodeProgress, NodeState, NodeStatus

ORDER = Job(id="0123456789abcdef", words=("run", "x"), cwd="/", folder="/f", output_dir="/o", python="python")
UP: dict[str, str | None] = {"n1": None, "n2": None, "n3": None}


def fleet(*posts: NodeState, **changes: Any) -> FleetState:
    return FleetState(created_at="2026-01-01T00:00:00+00:00", job=ORDER, posts=posts, **changes)


def post(node: str, state: NodeStatus = "due", **changes: Any) -> NodeState:
    return NodeState(node=node, state=state, **changes)


def card(uuid: str, *nodes: str) -> FleetGpu:
    return FleetGpu(
        uuid=uuid, model="H200", locations=tuple(GpuLocation(node=node, run=f"{node}/run") for node in nodes)
    )


def test_nodes_that_are_out_of_order_are_absent_and_say_why() -> None:
    assert state.initial_node_states({"n1": None, "n2": "drained: disk"}) == (
        post("n1"),
        post("n2", "absent", reason="drained: disk"),
    )


def test_who_is_back_is_due_and_who_is_away_is_absent() -> None:
    before = fleet(post("n1", "absent", reason="down"), post("n2"), post("n3", "done"), post("n4"))
    after = state.update_availability(before, {"n1": None, "n2": "down: fan", "n3": "down"})
    assert [(p.state, p.reason) for p in after.posts] == [
        ("due", None),
        ("absent", "down: fan"),
        ("done", None),
        ("absent", "it is no longer in the partition"),
    ]


def test_only_what_is_missing_is_due_and_what_was_never_tried_comes_first() -> None:
    mixed = fleet(post("n1", "done"), post("n2", "failed", exit_code=4), post("n3"))
    assert state.due_nodes(mixed, UP, {"n2": 1}) == ("n3", "n2")
    assert state.due_nodes(mixed, UP, {"n2": 1}, most=1) == ("n3",)
    assert state.due_nodes(mixed, {**UP, "n2": "down"}, {"n2": 1, "n3": 2}) == ()


@pytest.mark.parametrize(("exit_code", "again"), [(None, True), (4, True), (2, False), (3, False), (70, False)])
def test_a_node_whose_assay_refused_is_not_tried_again_until_it_is_asked_for_again(
    exit_code: int | None, again: bool
) -> None:
    failed = fleet(post("n1", "failed", exit_code=exit_code, attempts=1))
    assert bool(state.due_nodes(failed, UP, {"n1": 1})) is again
    assert state.due_nodes(failed, UP, {"n1": 2}) == ()
    assert state.due_nodes(failed, UP, {}) == ("n1",), "resuming tries everybody who is missing"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["absent", "due", "done", "failed"]), min_size=1, max_size=8), st.data())
def test_rounds_come_to_an_end_and_never_touch_who_is_done(states: list[NodeStatus], data: st.DataObject) -> None:
    now = fleet(*(post(f"n{i}", state) for i, state in enumerate(states)))
    finished = {p.node for p in now.posts if p.state == "done"}
    tried: dict[str, int] = {}
    for _ in range(len(states) * now.tries + 1):
        out_of_order = {p.node: data.draw(st.sampled_from([None, "down"])) for p in now.posts}
        now = state.update_availability(now, out_of_order)
        nodes = state.due_nodes(now, out_of_order, tried)
        if not nodes:
            break
        assert not finished & set(nodes)
        tried |= {node: tried.get(node, 0) + 1 for node in nodes}
        ends = [NodeProgress(node=node, state=data.draw(st.sampled_from(["done", "failed"]))) for node in nodes]
        now = state.apply_progress(now, ends)
    else:
        pytest.fail("there was always somebody due")
    assert all(count <= now.tries for count in tried.values())


@pytest.mark.parametrize(
    ("posts", "begun", "code"),
    [
        ((post("n1", "done", exit_code=0), post("n2", "done", exit_code=0)), ["n1", "n2"], 0),
        ((post("n1", "done", exit_code=0), post("n2", "done", exit_code=1)), ["n1", "n2"], 1),
        ((post("n1", "done", exit_code=0), post("n2", "absent")), ["n1"], 4),
        ((post("n1", "failed", attempts=1), post("n2", "failed", attempts=1)), ["n2"], 4),
        ((post("n1", "failed", attempts=1), post("n2", "absent")), [], 3),
        ((post("n1", "failed", attempts=1, exit_code=2), post("n2", "absent")), [], 2),
        ((post("n1", "failed", attempts=1, exit_code=2), post("n2", "failed", attempts=2, exit_code=3)), [], 3),
    ],
)
def test_what_all_of_it_comes_to(posts: tuple[NodeState, ...], begun: list[str], code: int) -> None:
    assert state.fleet_exit_code(fleet(*posts), begun) == code


def test_the_headline_counts_nodes_and_gpus_and_names_who_is_missing() -> None:
    whole = fleet(post("n1", "done"), gpus=(card("GPU-a", "n1"),))
    assert state.fleet_headline(whole) == "1 node is measured, 1 GPU."
    part = fleet(
        post("n1", "done"), *(post(f"m{i}") for i in range(14)), gpus=(card("GPU-a", "n1"), card("GPU-b", "n1"))
    )
    assert state.fleet_headline(part).startswith("1 of 15 nodes are measured, 2 GPUs; missing: m0, m1, ")
    assert state.fleet_headline(part).endswith("m11 and 2 more.")


def test_a_card_that_was_found_on_two_nodes_is_told() -> None:
    twice = card("GPU-b", "n1", "n2")
    assert state.moved_gpus(fleet(post("n1"), gpus=(card("GPU-a", "n1", "n1"), twice))) == (twice,)


def test_nodes_of_which_the_same_is_to_be_said_share_a_line() -> None:
    steps = [
        NodeProgress(node="n1", state="runs"),
        NodeProgress(node="n2", state="waits", reason="nodes are not free (Resources)"),
        NodeProgress(node="n3", state="runs"),
        NodeProgress(node="n4", state="done"),
        NodeProgress(node="n5", state="failed", reason="it burned"),
    ]
    assert state.progress_lines(steps) == [
        "n1 and n3 run",
        "n2 waits: nodes are not free (Resources)",
        "n4 is done",
        "n5 failed: it burned",
    ]
