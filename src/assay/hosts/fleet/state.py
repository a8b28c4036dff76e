"""The state of a fleet, the content of ``fleet.json``.

It has the job, the state of each node and every measured GPU; all functions are pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.core.errors import EXIT_INTERNAL_ERROR, EXIT_STOPPED, BadInput, MachineCannot
from assay.core.format import format_count, format_list
from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.hosts.base import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


NodeStatus = Literal["absent", "due", "waits", "runs", "done", "failed"]
"""absent: out of order when requested; due: requested, and not started; failed: tried, without a complete result."""


class NodeProgress(Value):
    """One node's new progress."""

    node: str
    state: NodeStatus
    task: str | None = Field(default=None, description="The host's identifier: an array number and an index.")
    reason: str | None = None
    exit_code: int | None = Field(default=None, description="Exit code of the remote Assay; null where it gave none.")


class NodeState(Value):
    """One node of a fleet and its state."""

    node: str
    state: NodeStatus = "due"
    reason: str | None = Field(default=None, description="Why there is no result, or why the node waits.")
    attempts: int = Field(default=0, ge=0)
    task: str | None = None
    exit_code: int | None = None
    files: str | None = Field(default=None, description="Files of its last attempt, within the fleet's folder.")
    run: str | None = Field(default=None, description="Its run folder, within the fleet's folder.")


class GpuLocation(Value):
    """The node and run in which a GPU was measured."""

    node: str
    run: str


class FleetGpu(Value):
    """One GPU of the fleet, by its UUID; several locations mean that it was moved, or the nodes are one machine."""

    uuid: str
    model: str
    origin: Origin = "real"
    locations: tuple[GpuLocation, ...] = Field(min_length=1)


class FleetState(Value):
    """The content of ``fleet.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    created_at: str = Field(description="ISO 8601, UTC.")
    job: Job = Field(description="The job of each node; its folder is the fleet's.")
    tries: int = Field(default=2, ge=1, description="Most attempts per node and command.")
    at_once: int | None = Field(default=None, ge=1, description="Most nodes at a time; null: no limit.")
    rounds: int = Field(default=0, ge=0, description="Number of arrays submitted so far.")
    open: str | None = Field(default=None, description="Name of the array that is not confirmed gone yet; null: none.")
    posts: tuple[NodeState, ...] = Field(min_length=1)
    gpus: tuple[FleetGpu, ...] = ()

    def post(self, node: str) -> NodeState:
        """Return the state of a node."""
        return next(post for post in self.posts if post.node == node)


WHOLE_EXIT_CODES = frozenset({0, 1})
"""Exit codes of an Assay that measured everything; 1 is a failed gate."""

FINAL_EXIT_CODES = frozenset({BadInput.exit_code, MachineCannot.exit_code, EXIT_INTERNAL_ERROR})
"""Exit codes of an Assay that would fail again in the same way."""

NODE_GONE = "it is no longer in the partition"
MAX_NAMES = 12


def initial_node_states(out_of_order: Mapping[str, str | None]) -> tuple[NodeState, ...]:
    """Return the initial state of each node: due, or absent with the reason."""
    return tuple(
        NodeState(node=node) if why is None else NodeState(node=node, state="absent", reason=why)
        for node, why in out_of_order.items()
    )


def update_nodes(
    fleet: FleetState, nodes: Iterable[str], change: Callable[[NodeState], Mapping[str, Any]]
) -> FleetState:
    """Return the fleet with the states of some nodes changed."""
    names = set(nodes)
    states = [post.model_copy(update=change(post)) if post.node in names else post for post in fleet.posts]
    return fleet.model_copy(update={"posts": tuple(states)})


def apply_progress(fleet: FleetState, steps: Iterable[NodeProgress]) -> FleetState:
    """Return the fleet with its nodes' new progress."""
    by_node = {step.node: step for step in steps}
    return update_nodes(
        fleet, by_node, lambda post: {name: getattr(by_node[post.node], name) for name in _PROGRESS_FIELDS}
    )


_PROGRESS_FIELDS = ("state", "task", "reason", "exit_code")


def update_availability(fleet: FleetState, out_of_order: Mapping[str, str | None]) -> FleetState:
    """Return the fleet with current availability: nodes that are back are due, others absent with the reason."""

    def change(post: NodeState) -> dict[str, Any]:
        why = out_of_order.get(post.node, NODE_GONE)
        if why is not None and post.state in {"absent", "due"}:
            return {"state": "absent", "reason": why}
        return {"state": "due", "reason": None} if why is None and post.state == "absent" else {}

    return update_nodes(fleet, [post.node for post in fleet.posts], change)


def due_nodes(
    fleet: FleetState, out_of_order: Mapping[str, str | None], tried: Mapping[str, int], *, most: int | None = None
) -> tuple[str, ...]:
    """Return the nodes to run next, those never tried first.

    Args:
        fleet: Its state; no node waits or runs.
        out_of_order: Every node that exists, and why it takes no work now; null: it does.
        tried: How often this command tried each node.
        most: Most nodes to return; null: all.
    """
    due = [
        post
        for post in fleet.posts
        if post.state != "done"
        and out_of_order.get(post.node, NODE_GONE) is None
        and tried.get(post.node, 0) < fleet.tries
        and (post.node not in tried or is_retryable(post))
    ]
    return tuple(post.node for post in sorted(due, key=lambda post: tried.get(post.node, 0)))[:most]


def unavailable_nodes(fleet: FleetState, out_of_order: Mapping[str, str | None]) -> dict[str, str]:
    """Return the nodes without a result that take no work now, and why."""
    reasons = {post.node: out_of_order.get(post.node, NODE_GONE) for post in nodes_without_result(fleet)}
    return {node: why for node, why in reasons.items() if why is not None}


def is_retryable(post: NodeState) -> bool:
    """Return whether a failed node may succeed when retried; an Assay that refused would refuse again."""
    return post.state == "failed" and post.exit_code not in FINAL_EXIT_CODES


def nodes_without_result(fleet: FleetState) -> tuple[NodeState, ...]:
    """Return the states of the nodes without a complete result."""
    return tuple(post for post in fleet.posts if post.state != "done")


def moved_gpus(fleet: FleetState) -> tuple[FleetGpu, ...]:
    """Return the GPUs that were measured on more than one node."""
    return tuple(gpu for gpu in fleet.gpus if len({location.node for location in gpu.locations}) > 1)


def fleet_exit_code(fleet: FleetState, with_records: Iterable[str]) -> int:
    """Return the fleet's exit code: 0 complete; 4 nodes missing; 3 nothing measured; 2 all rejected the input.

    A failed gate of a complete fleet is 1. ``with_records`` are the nodes with at least one record.
    """
    missing = nodes_without_result(fleet)
    if not missing:
        return max(post.exit_code or 0 for post in fleet.posts)
    if len(missing) < len(fleet.posts) or set(with_records):
        return EXIT_STOPPED
    codes = {post.exit_code for post in fleet.posts if post.attempts}
    return BadInput.exit_code if codes == {BadInput.exit_code} else MachineCannot.exit_code


def fleet_headline(fleet: FleetState) -> str:
    """Return a sentence: how many nodes and GPUs are measured, and which nodes are missing."""
    missing = nodes_without_result(fleet)
    complete = len(fleet.posts) - len(missing)
    of = "" if not missing else f" of {len(fleet.posts)}"
    measured = f"{complete}{of} {'node is' if (complete, of) == (1, '') else 'nodes are'} measured"
    gpus = f", {format_count(len(fleet.gpus), 'GPU')}" if fleet.gpus else ""
    return f"{measured}{gpus}." if not missing else f"{measured}{gpus}; missing: {join_nodes(p.node for p in missing)}."


def progress_lines(steps: Iterable[NodeProgress]) -> list[str]:
    """Return a line for each state and reason, with all its nodes."""
    verbs = {"waits": ("waits", "wait"), "runs": ("runs", "run"), "done": ("is done", "are done")}
    groups: dict[tuple[str, str | None], list[str]] = {}
    for step in steps:
        groups.setdefault((step.state, step.reason), []).append(step.node)
    lines = []
    for (state, reason), nodes in groups.items():
        singular, plural = verbs.get(state, (state, state))
        lines.append(f"{join_nodes(nodes)} {singular if len(nodes) == 1 else plural}{f': {reason}' if reason else ''}")
    return lines


def unavailable_text(out_of_order: Mapping[str, str | None]) -> str:
    """List the nodes that are out of order, and why."""
    return join_nodes(f"{name} ({why})" for name, why in out_of_order.items() if why is not None)


def join_nodes(nodes: Iterable[str]) -> str:
    """Join node names; after the first dozen, count the rest."""
    return format_list(list(nodes), MAX_NAMES)
