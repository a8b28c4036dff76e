"""The book of a fleet: whose turn it is, who is missing, and what all of it comes to; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.errors import EXIT_DEFECT, EXIT_STOPPED, BadInput, MachineCannot
from assay.hosts.fleet.model import Post

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from assay.hosts.fleet.model import Card, Fleet, Step

WHOLE = frozenset({0, 1})
"""Exit codes of an Assay that has measured everything; 1 is a gate that says no."""

FINAL = frozenset({BadInput.exit_code, MachineCannot.exit_code, EXIT_DEFECT})
"""Exit codes of an Assay that would say the same again."""

GONE = "it is no longer in the partition"
LISTED_AT_MOST = 12


def posts(out_of_order: Mapping[str, str | None]) -> tuple[Post, ...]:
    """Return a post for each node; one that is out of order is absent, and why."""
    return tuple(
        Post(node=node) if why is None else Post(node=node, state="absent", reason=why)
        for node, why in out_of_order.items()
    )


def changed(fleet: Fleet, nodes: Iterable[str], change: Callable[[Post], Mapping[str, Any]]) -> Fleet:
    """Return the fleet with some posts changed."""
    names = set(nodes)
    states = [post.model_copy(update=change(post)) if post.node in names else post for post in fleet.posts]
    return fleet.model_copy(update={"posts": tuple(states)})


def stepped(fleet: Fleet, steps: Iterable[Step]) -> Fleet:
    """Return the fleet with what is new of its nodes."""
    by_node = {step.node: step for step in steps}
    return changed(fleet, by_node, lambda post: {name: getattr(by_node[post.node], name) for name in _OF_A_STEP})


_OF_A_STEP = ("state", "task", "reason", "exit_code")


def looked_at(fleet: Fleet, out_of_order: Mapping[str, str | None]) -> Fleet:
    """Return the fleet after a look at its nodes: who is back is due, who is away says why it was not tried."""

    def change(post: Post) -> dict[str, Any]:
        why = out_of_order.get(post.node, GONE)
        if why is not None and post.state in {"absent", "due"}:
            return {"state": "absent", "reason": why}
        return {"state": "due", "reason": None} if why is None and post.state == "absent" else {}

    return changed(fleet, [post.node for post in fleet.posts], change)


def due(
    fleet: Fleet, out_of_order: Mapping[str, str | None], tried: Mapping[str, int], *, most: int | None = None
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
        and out_of_order.get(post.node, GONE) is None
        and tried.get(post.node, 0) < fleet.tries
        and (post.node not in tried or worth_another_try(post))
    ]
    return tuple(post.node for post in sorted(open_, key=lambda post: tried.get(post.node, 0)))[:most]


def away(fleet: Fleet, out_of_order: Mapping[str, str | None]) -> dict[str, str]:
    """Return the nodes that are missing and take nothing now, and why."""
    here = {post.node: out_of_order.get(post.node, GONE) for post in missing(fleet)}
    return {node: why for node, why in here.items() if why is not None}


def worth_another_try(post: Post) -> bool:
    """Return whether a node that failed may do better; an Assay that refused would refuse again."""
    return post.state == "failed" and post.exit_code not in FINAL


def missing(fleet: Fleet) -> tuple[Post, ...]:
    """Return the posts without a whole result."""
    return tuple(post for post in fleet.posts if post.state != "done")


def moved(fleet: Fleet) -> tuple[Card, ...]:
    """Return the GPUs that were found on more than one node."""
    return tuple(gpu for gpu in fleet.gpus if len({location.node for location in gpu.seen}) > 1)


def exit_code(fleet: Fleet, begun: Iterable[str]) -> int:
    """Return what all of it comes to: 0 whole; 4 some are missing; 3 nothing was measured; 2 nobody understood it.

    ``begun`` are the nodes of which there is at least a record.
    """
    lacking = missing(fleet)
    if not lacking:
        return max(post.exit_code or 0 for post in fleet.posts)
    if len(lacking) < len(fleet.posts) or set(begun):
        return EXIT_STOPPED
    codes = {post.exit_code for post in fleet.posts if post.attempts}
    return BadInput.exit_code if codes == {BadInput.exit_code} else MachineCannot.exit_code


def headline(fleet: Fleet) -> str:
    """Say how many nodes are measured, how many GPUs that is, and who is missing."""
    lacking = missing(fleet)
    whole = len(fleet.posts) - len(lacking)
    of = "" if not lacking else f" of {len(fleet.posts)}"
    measured = f"{whole}{of} {'node is' if (whole, of) == (1, '') else 'nodes are'} measured"
    gpus = f", {counted(len(fleet.gpus), 'GPU')}" if fleet.gpus else ""
    return f"{measured}{gpus}." if not lacking else f"{measured}{gpus}; missing: {listed(p.node for p in lacking)}."


def sentences(steps: Iterable[Step]) -> list[str]:
    """Return what to tell of nodes that have come further: those of which the same is said in one line."""
    words = {"waits": ("waits", "wait"), "runs": ("runs", "run"), "done": ("is done", "are done")}
    alike: dict[tuple[str, str | None], list[str]] = {}
    for step in steps:
        alike.setdefault((step.state, step.reason), []).append(step.node)
    lines = []
    for (state, reason), nodes in alike.items():
        one, several = words.get(state, (state, state))
        lines.append(f"{listed(nodes)} {one if len(nodes) == 1 else several}{f': {reason}' if reason else ''}")
    return lines


def troubles(out_of_order: Mapping[str, str | None]) -> str:
    """Name the nodes that are out of order, and why."""
    return listed(f"{name} ({why})" for name, why in out_of_order.items() if why is not None)


def listed(nodes: Iterable[str]) -> str:
    """Return names, the first dozen of them."""
    names = list(nodes)
    more = len(names) - LISTED_AT_MOST
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:LISTED_AT_MOST])} and {more} more"


def counted(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"
