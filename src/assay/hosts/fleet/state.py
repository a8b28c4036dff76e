"""The state of a fleet, the content of ``fleet.json``.

The job, each node's state, every GPU that was measured; pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.core.errors import EXIT_INTERNAL_ERROR, EXIT_STOPPED, BadInput, MachineCannot
from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.hosts.base import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


NodeStatus = Literal["absent", "due", "waits", "runs", "done", "failed"]
"""absent: out of order when it was wanted; due: wanted, and not begun; failed: tried, and no whole result."""


class NodeProgress(Value):
    """A node has come further."""

    node: str
    state: NodeStatus
    task: str | None = Field(default=None, description="What the host calls it: an array's number and its index.")
    reason: str | None = None
    exit_code: int | None = Field(default=None, description="Of the Assay there; null where it gave none.")


class NodeState(Value):
    """One node of a fleet and how far it is."""

    node: str
    state: NodeStatus = "due"
    reason: str | None = Field(default=None, description="Why there is no result, or why it waits.")
    attempts: int = Field(default=0, ge=0)
    task: str | None = None
    exit_code: int | None = None
    files: str | None = Field(default=None, description="What its last attempt left, within the fleet's folder.")
    run: str | None = Field(default=None, description="Its run folder, within the fleet's folder.")


class GpuLocation(Value):
    """Where a GPU was found."""

    node: str
    run: str


class FleetGpu(Value):
    """One GPU of the fleet, by its UUID. More than one place: it was moved, or the nodes are one machine."""

    uuid: str
    model: str
    origin: Origin = "real"
    locations: tuple[GpuLocation, ...] = Field(min_length=1)


class FleetState(Value):
    """The content of ``fleet.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    created_at: str = Field(description="ISO 8601, UTC.")
    job: Job = Field(description="What each node gets; its folder is the fleet's.")
    tries: int = Field(default=2, ge=1, description="So often a node is tried before it is given up, each time asked.")
    at_once: int | None = Field(default=None, ge=1, description="So many nodes at a time at most; null: as they come.")
    rounds: int = Field(default=0, ge=0, description="How many arrays were sent so far.")
    open: str | None = Field(default=None, description="The name of an array that was not seen gone yet.")
    posts: tuple[NodeState, ...] = Field(min_length=1)
    gpus: tuple[FleetGpu, ...] = ()

    def post(self, node: str) -> NodeState:
        """Return the post of a node."""
        return next(post for post in self.posts if post.node == node)


WHOLE_EXIT_CODES = frozenset({0, 1})
"""Exit codes of an Assay that has measured everything; 1 is a gate that says no."""

FINAL_EXIT_CODES = frozenset({BadInput.exit_code, MachineCannot.exit_code, EXIT_INTERNAL_ERROR})
"""Exit codes of an Assay that would say the same again."""

NODE_GONE = "it is no longer in the partition"
MAX_NAMES = 12


def initial_node_states(out_of_order: Mapping[str, str | None]) -> tuple[NodeState, ...]:
    """Return a post for each node; one that is out of order is absent, and why."""
    return tuple(
        NodeState(node=node) if why is None else NodeState(node=node, state="absent", reason=why)
        for node, why in out_of_order.items()
    )


def update_nodes(
    fleet: FleetState, nodes: Iterable[str], change: Callable[[NodeState], Mapping[str, Any]]
) -> FleetState:
    """Return the fleet with some posts changed."""
    names = set(nodes)
    states = [post.model_copy(update=change(post)) if post.node in names else post for post in fleet.posts]
    return fleet.model_copy(update={"posts": tuple(states)})


def apply_progress(fleet: FleetState, steps: Iterable[NodeProgress]) -> FleetState:
    """Return the fleet with what is new of its nodes."""
    by_node = {step.node: step for step in steps}
    return update_nodes(
        fleet, by_node, lambda post: {name: getattr(by_node[post.node], name) for name in _PROGRESS_FIELDS}
    )


_PROGRESS_FIELDS = ("state", "task", "reason", "exit_code")


def update_availability(fleet: FleetState, out_of_order: Mapping[str, str | None]) -> FleetState:
    """Return the fleet after a look at its nodes: who is back is due, who is away says why it was not tried."""

    def change(post: NodeState) -> dict[str, Any]:
        why = out_of_order.get(post.node, NODE_GONE)
        if why is not None and post.state in {"absent", "due"}:
            return {"state": "absent", "reason": why}
        return {"state": "due", "reason": None} if why is None and post.state == "absent" else {}

    return update_nodes(fleet, [post.node for post in fleet.posts], change)


def due_nodes(
    fleet: FleetState, out_of_order: Mapping[str, str | None], tried: Mapping[str, int], *, most: int | None = None
) -> tuple[str, ...]:
    """Return the nodes whose turn it is, those that were never tried first.

    Args:
        fleet: As the book has it; nobody waits or runs.
        out_of_order: Every node that is there, and why it takes nothing now; null: it does.
        tried: How often each was tried since it was asked for.
        most: So many at once; null: as many as there are.
    """
    open_ = [
        post
        for post in fleet.posts
        if post.state != "done"
        and out_of_order.get(post.node, NODE_GONE) is None
        and tried.get(post.node, 0) < fleet.tries
        and (post.node not in tried or is_retryable(post))
    ]
    return tuple(post.node for post in sorted(open_, key=lambda post: tried.get(post.node, 0)))[:most]


def unavailable_nodes(fleet: FleetState, out_of_order: Mapping[str, str | None]) -> dict[str, str]:
    """Return the nodes that are missing and take nothing now, and why."""
    here = {post.node: out_of_order.get(post.node, NODE_GONE) for post in nodes_without_result(fleet)}
    return {node: why for node, why in here.items() if why is not None}


def is_retryable(post: NodeState) -> bool:
    """Return whether a node that failed may do better; an Assay that refused would refuse again."""
    return post.state == "failed" and post.exit_code not in FINAL_EXIT_CODES


def nodes_without_result(fleet: FleetState) -> tuple[NodeState, ...]:
    """Return the posts without a whole result."""
    return tuple(post for post in fleet.posts if post.state != "done")


def moved_gpus(fleet: FleetState) -> tuple[FleetGpu, ...]:
    """Return the GPUs that were found on more than one node."""
    return tuple(gpu for gpu in fleet.gpus if len({location.node for location in gpu.locations}) > 1)


def fleet_exit_code(fleet: FleetState, begun: Iterable[str]) -> int:
    """Return what all of it comes to: 0 whole; 4 some are missing; 3 nothing was measured; 2 nobody understood it.

    ``begun`` are the nodes of which there is at least a record.
    """
    lacking = nodes_without_result(fleet)
    if not lacking:
        return max(post.exit_code or 0 for post in fleet.posts)
    if len(lacking) < len(fleet.posts) or set(begun):
        return EXIT_STOPPED
    codes = {post.exit_code for post in fleet.posts if post.attempts}
    return BadInput.exit_code if codes == {BadInput.exit_code} else MachineCannot.exit_code


def fleet_headline(fleet: FleetState) -> str:
    """Say how many nodes are measured, how many GPUs that is, and who is missing."""
    lacking = nodes_without_result(fleet)
    whole = len(fleet.posts) - len(lacking)
    of = "" if not lacking else f" of {len(fleet.posts)}"
    measured = f"{whole}{of} {'node is' if (whole, of) == (1, '') else 'nodes are'} measured"
    gpus = f", {count_text(len(fleet.gpus), 'GPU')}" if fleet.gpus else ""
    return f"{measured}{gpus}." if not lacking else f"{measured}{gpus}; missing: {join_nodes(p.node for p in lacking)}."


def progress_lines(steps: Iterable[NodeProgress]) -> list[str]:
    """Return what to tell of nodes that have come further: those of which the same is said in one line."""
    words = {"waits": ("waits", "wait"), "runs": ("runs", "run"), "done": ("is done", "are done")}
    alike: dict[tuple[str, str | None], list[str]] = {}
    for step in steps:
        alike.setdefault((step.state, step.reason), []).append(step.node)
    lines = []
    for (state, reason), nodes in alike.items():
        one, several = words.get(state, (state, state))
        lines.append(f"{join_nodes(nodes)} {one if len(nodes) == 1 else several}{f': {reason}' if reason else ''}")
    return lines


def unavailable_text(out_of_order: Mapping[str, str | None]) -> str:
    """Name the nodes that are out of order, and why."""
    return join_nodes(f"{name} ({why})" for name, why in out_of_order.items() if why is not None)


def join_nodes(nodes: Iterable[str]) -> str:
    """Return names, the first dozen of them."""
    names = list(nodes)
    more = len(names) - MAX_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MAX_NAMES])} and {more} more"


def count_text(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"
