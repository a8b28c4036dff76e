"""What is kept of a fleet: the order, each node's post, and every GPU that was found; the content of ``fleet.json``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Value
from assay.hosts.base import Order

State = Literal["absent", "due", "waits", "runs", "done", "failed"]
"""absent: out of order when it was wanted; due: wanted, and not begun; failed: tried, and no whole result."""


class Step(Value):
    """A node has come further."""

    node: str
    state: State
    task: str | None = Field(default=None, description="What the host calls it: an array's number and its index.")
    reason: str | None = None
    exit_code: int | None = Field(default=None, description="Of the Assay there; null where it gave none.")


class Post(Value):
    """One node of a fleet and how far it is."""

    node: str
    state: State = "due"
    reason: str | None = Field(default=None, description="Why there is no result, or why it waits.")
    attempts: int = Field(default=0, ge=0)
    task: str | None = None
    exit_code: int | None = None
    files: str | None = Field(default=None, description="What its last attempt left, within the fleet's folder.")
    run: str | None = Field(default=None, description="Its run folder, within the fleet's folder.")


class Seen(Value):
    """Where a GPU was found."""

    node: str
    run: str


class Card(Value):
    """One GPU of the fleet, by its UUID. More than one place: it was moved, or the nodes are one machine."""

    uuid: str
    model: str
    origin: Origin = "real"
    seen: tuple[Seen, ...] = Field(min_length=1)


class Fleet(Value):
    """The content of ``fleet.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    created_at: str = Field(description="ISO 8601, UTC.")
    order: Order = Field(description="What each node gets; its folder is the fleet's.")
    tries: int = Field(default=2, ge=1, description="So often a node is tried before it is given up, each time asked.")
    at_once: int | None = Field(default=None, ge=1, description="So many nodes at a time at most; null: as they come.")
    rounds: int = Field(default=0, ge=0, description="How many arrays were sent so far.")
    open: str | None = Field(default=None, description="The name of an array that was not seen gone yet.")
    posts: tuple[Post, ...] = Field(min_length=1)
    gpus: tuple[Card, ...] = ()

    def post(self, node: str) -> Post:
        """Return the post of a node."""
        return next(post for post in self.posts if post.node == node)
