"""One comment under a pull request, written once and then written anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.github.api import told
from assay.github.body import MARKER

if TYPE_CHECKING:
    from assay.github.api import Api


def existing(api: Api, number: int) -> dict[str, Any] | None:
    """Return our comment; null: there is none.

    It begins with our marker and was written by a program: a person's comment that was copied from ours is theirs.
    """
    for comment in api.pages(f"/issues/{number}/comments", "look for our comment"):
        if str(told(comment, "body") or "").startswith(MARKER) and told(comment, "user", "type") == "Bot":
            result: dict[str, Any] = comment
            return result
    return None


def say(api: Api, number: int, text: str) -> str:
    """Write our comment, and return its address."""
    before = existing(api, number)
    if before is not None:
        path, what = f"/issues/comments/{int(told(before, 'id'))}", "write our comment anew"
        made = api.surely(lambda: api.send("PATCH", path, {"body": text}, what), lambda: None)
    else:
        path, what = f"/issues/{number}/comments", "write a comment"
        made = api.surely(lambda: api.send("POST", path, {"body": text}, what), lambda: existing(api, number))
    return str(told(made, "html_url"))
