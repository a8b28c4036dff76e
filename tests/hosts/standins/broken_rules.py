"""The rules of renting, each taken out in turn: what fault schedules see when one is missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from assay.hosts.rented import lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


def _look_by_number_only(end: Any) -> dict[str, Any]:
    found = {number: end.context.find_machine(number) for number in sorted(end.open)}
    there = {number: machine for number, machine in found.items() if machine is not None}
    end.ever_listed |= there.keys()
    return there


def _ask_and_believe(end: Any) -> None:
    end.numbers = {machine.number for machine in end.rental.machines} if end.rental else set()
    end.open = set(end.numbers)
    end.look()
    end.request(end.context.clock.now())


RULES: dict[str, Callable[[], Any]] = {
    "released means seen gone": lambda: patch.object(lifecycle.Termination, "until_gone", _ask_and_believe),
    "what bears the order's name is ended, not only what an answer named": lambda: patch.object(
        lifecycle.Termination, "look", _look_by_number_only
    ),
    "an empty list proves nothing while an answer is missing": lambda: patch.object(
        lifecycle.Termination, "has_unanswered", lambda end: False
    ),
    "list by name before asking again": lambda: patch.object(lifecycle, "_find_by_name", lambda *_: None),
}
"""Each rule, and how it is taken out."""


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Take one rule out."""
    with RULES[rule]():
        yield
