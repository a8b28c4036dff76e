"""From a proposal to one pull request, made or brought up to date; never two of one kind.

base ──▶ file ──▶ commit (nothing leads to it) ──▶ branch assay/thresholds-… ──▶ pull request
                                                    │                            │
                                                    made, or moved if its        opened, or written anew
                                                    last commit is ours
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot
from assay.github import files
from assay.github.api import branch_path, told
from assay.github.refusals import Clash

if TYPE_CHECKING:
    from assay.github.api import Api
    from assay.github.files import File

TRAILER = "Assay-Proposal:"
"""Begins the last line of our commits, so that a branch on which somebody else has worked is told apart."""


@dataclass(frozen=True)
class Opened:
    """A pull request, and whether it was there before."""

    number: int
    url: str
    was_there: bool


@dataclass(frozen=True)
class Draft:
    """All that a pull request needs."""

    file: File
    text: str
    branch: str
    base: str
    title: str
    body: str


def existing(api: Api, branch: str, base: str) -> dict[str, Any] | None:
    """Return the open pull request of a branch of ours; null: there is none."""
    owner = api.repository.partition("/")[0]
    what = "look for an open pull request"
    pull_requests = api.get("/pulls", what, state="open", head=f"{owner}:{branch}", base=base)
    matching = [
        pull_request
        for pull_request in pull_requests
        if told(pull_request, "head", "ref") == branch and told(pull_request, "base", "ref") == base
    ]
    return matching[0] if matching else None


def publish(api: Api, draft: Draft) -> Opened:
    """Make the branch and the pull request, or bring those that are there up to date.

    Raises:
        MachineCannot: GitHub does not let us, or somebody else has worked on the branch.
    """
    _bring_branch(api, draft)
    before = existing(api, draft.branch, draft.base)
    if before is not None:
        return _written_anew(api, draft, before)
    return _opened(api, draft)


def _bring_branch(api: Api, draft: Draft) -> None:
    before = files.tip(api, draft.branch)
    if before is not None and _is_done(api, before, draft):
        return
    message = f"{draft.title}\n\n{TRAILER} {draft.branch}\n"
    new = files.commit(api, draft.file, draft.text, message)
    reference = f"heads/{branch_path(draft.branch)}"
    if before is None:
        what = f"make the branch {draft.branch}"
        content = {"ref": f"refs/heads/{draft.branch}", "sha": new}
        api.surely(lambda: api.send("POST", "/git/refs", content, what), lambda: _at(api, draft.branch, new))
    else:
        what = f"move the branch {draft.branch}"
        forced: dict[str, Any] = {"sha": new, "force": True}
        api.surely(
            lambda: api.send("PATCH", f"/git/refs/{reference}", forced, what), lambda: _at(api, draft.branch, new)
        )


def _at(api: Api, branch: str, commit: str) -> str | None:
    return commit if files.tip(api, branch) == commit else None


def _is_done(api: Api, before: str, draft: Draft) -> bool:
    """Return whether a branch of ours already has this very change on this very base.

    Raises:
        MachineCannot: Its last commit is not ours.
    """
    last = api.get(f"/git/commits/{before}", f"look at the branch {draft.branch}")
    if f"\n{TRAILER} {draft.branch}" not in str(told(last, "message")):
        raise MachineCannot(
            f"Somebody has committed to the branch {draft.branch}, and that is not overwritten: merge it or delete it."
        )
    parents = [told(parent, "sha") for parent in told(last, "parents")]
    return parents == [draft.file.commit] and files.read(api, draft.branch, draft.file.path).text == draft.text


def _written_anew(api: Api, draft: Draft, before: dict[str, Any]) -> Opened:
    number = int(told(before, "number"))
    content = {"title": draft.title, "body": draft.body}
    what = f"bring pull request {number} up to date"
    api.surely(lambda: api.send("PATCH", f"/pulls/{number}", dict(content), what), lambda: None)
    return Opened(number, str(told(before, "html_url")), was_there=True)


def _opened(api: Api, draft: Draft) -> Opened:
    content = {"title": draft.title, "body": draft.body, "head": draft.branch, "base": draft.base}
    what = "open a pull request"

    def look() -> dict[str, Any] | None:
        return existing(api, draft.branch, draft.base)

    try:
        made = api.surely(lambda: api.send("POST", "/pulls", dict(content), what), look)
    except Clash:
        other = look()
        if other is None:
            raise
        return _written_anew(api, draft, other)
    return Opened(int(told(made, "number")), str(told(made, "html_url")), was_there=False)
