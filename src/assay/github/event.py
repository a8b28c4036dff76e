"""The event that a GitHub workflow runs for: the event's file and the environment variables, as typed values.

Much of an event is untrusted text. Everything extracted from it is validated here: numbers are numbers, names are
names, and a comment is text that only the command parser reads.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.files import read_json
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_EVENT_BYTES = 8 * 2**20
SHA = r"[0-9a-f]{40}(?:[0-9a-f]{24})?"
LOGIN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
REPOSITORY = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/[A-Za-z0-9._-]{1,100}"
BRANCH = r"(?!-|/)(?!.*(?:\.\.|//|@\{|\.lock$|/$|\.$))[^\x00-\x20\x7f-\xa0~^:?*\[\\\"'`$;|&<>(){}]{1,200}"
"""What git allows, without characters that a shell, a log or a URL could misinterpret."""


class PullRequestState(Value):
    """A pull request: its number, and its current commit."""

    number: int = Field(ge=1)
    commit: str = Field(pattern=rf"^{SHA}$")
    repository: str | None = Field(description="Where its branch is; null: that repository is gone.")
    branch: str | None = Field(description="Null where its name is unusual.")
    open: bool


class WorkflowEvent(Value):
    """The event that triggered the workflow."""

    name: str
    action: str | None = None
    by: str | None = Field(default=None, description="Who did it.")
    by_bot: bool = False
    comment: str | None = Field(default=None, description="As it was typed.")
    comment_on: int | None = Field(default=None, description="The number of the pull request under which it stands.")
    label: str | None = None
    change: PullRequestState | None = None
    commit: str | None = Field(default=None, description="What the workflow runs at.")
    branch: str | None = Field(default=None, description="The branch it runs on; null: a tag, or a pull request.")


def read_event(environment: Mapping[str, str]) -> WorkflowEvent:
    """Return the event.

    Raises:
        BadInput: The variables that GitHub sets are missing, or the event's file is not usable.
    """
    name, path = environment.get("GITHUB_EVENT_NAME", ""), environment.get("GITHUB_EVENT_PATH", "")
    if not name or not path:
        raise BadInput("GITHUB_EVENT_NAME and GITHUB_EVENT_PATH are not set: this runs in a workflow of GitHub.")
    if re.fullmatch(r"[a-z_]{1,40}", name) is None:
        raise BadInput("GITHUB_EVENT_NAME is not the name of an event.")
    content = _read_content(Path(path))
    ref, sha = environment.get("GITHUB_REF", ""), environment.get("GITHUB_SHA", "")
    issue, comment = _mapping(content, "issue"), _mapping(content, "comment")
    sender = _mapping(comment, "user") if name == "issue_comment" else _mapping(content, "sender")
    return WorkflowEvent(
        name=name,
        action=_matching_text(content.get("action"), r"[a-z_]{1,40}"),
        by=_matching_text(sender.get("login"), rf"{LOGIN}(?:\[bot\])?"),
        by_bot=sender.get("type") != "User",
        comment=comment.get("body") if isinstance(comment.get("body"), str) else None,
        comment_on=_positive_int(issue.get("number")) if isinstance(issue.get("pull_request"), dict) else None,
        label=_matching_text(_mapping(content, "label").get("name"), r"[ -~]{1,50}"),
        change=parse_pull_request(content["pull_request"]) if isinstance(content.get("pull_request"), dict) else None,
        commit=_matching_text(sha, SHA),
        branch=_matching_text(ref.removeprefix("refs/heads/"), BRANCH) if ref.startswith("refs/heads/") else None,
    )


def parse_pull_request(data: Mapping[str, Any]) -> PullRequestState:
    """Return a pull request from the data of an event or the API.

    Raises:
        BadInput: The data is not a valid pull request.
    """
    head = _mapping(data, "head")
    number, commit = _positive_int(data.get("number")), _matching_text(head.get("sha"), SHA)
    if number is None or commit is None:
        raise BadInput("The pull request is not told as GitHub tells one: its number or its commit is missing.")
    return PullRequestState(
        number=number,
        commit=commit,
        repository=_matching_text(_mapping(head, "repo").get("full_name"), REPOSITORY),
        branch=_matching_text(head.get("ref"), BRANCH),
        open=data.get("state") == "open",
    )


def _read_content(path: Path) -> dict[str, Any]:
    if path.is_file() and path.stat().st_size > MAX_EVENT_BYTES:
        raise BadInput("The event's file is too large to be one of GitHub's.")
    content = read_json(path)
    if not isinstance(content, dict):
        raise BadInput("The event's file holds no event: it must be a mapping.")
    return content


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _matching_text(value: object, pattern: str) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(pattern, value) else None


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None
