"""Which revisions are meant: asked of git, in the repository that we are in, and what is to be said of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.launch.checkouts import Checkouts, Revision, place_for
from assay.launch.git import GitRefuses, git

if TYPE_CHECKING:
    from collections.abc import Mapping


def checkouts(given: Mapping[str, Any]) -> tuple[Checkouts, tuple[str, ...]]:
    """Return where the two revisions will be checked out, and what is to be said of them."""
    from assay.core.leases import new_id

    if given["base"] is None:
        raise BadInput("Say which revision to hold it against: --base main, or a tag or a commit.")
    if given["python"] is not None and given["setup"] is None:
        raise BadInput("--python is the interpreter that --setup makes in each checkout; there is no --setup.")
    repository, folder = here()
    token = new_id()[:8]
    revisions = {
        name: Revision(
            name=name,
            ref=given[name],
            commit=commit_of(repository, given[name]),
            checkout=str(place_for(token, name)),
            interpreter=sys.executable,
        )
        for name in ("base", "head")
    }
    base, head = revisions["base"], revisions["head"]
    planned = Checkouts(
        repository=str(repository), folder=folder, revisions=(base, head), setup=given["setup"], python=given["python"]
    )
    return planned, tuple(notes(repository, planned))


def here() -> tuple[Path, str]:
    """Return the repository that we are in, and where in it."""
    try:
        top = git(Path.cwd(), "rev-parse", "--show-toplevel")
        prefix = git(Path.cwd(), "rev-parse", "--show-prefix")
    except GitRefuses as error:
        raise BadInput(f"{Path.cwd()} is not in a git repository: {error}.") from None
    return Path(top).resolve(), prefix.rstrip("/")


def commit_of(repository: Path, ref: str) -> str:
    """Return the commit that a word means."""
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except GitRefuses:
        raise BadInput(f"There is no revision {ref!r} here: {_why_not(repository, ref)}.") from None


def _why_not(repository: Path, ref: str) -> str:
    """Return why a word means no commit, as git says it."""
    try:
        git(repository, "rev-list", "--max-count=1", "--end-of-options", ref, "--")
        why = "it is not one commit"
    except GitRefuses as error:
        why = str(error)
    if git(repository, "rev-parse", "--is-shallow-repository") == "true":
        why += "; this clone is shallow, and `git fetch --unshallow` gets the rest"
    return why


def notes(repository: Path, planned: Checkouts) -> list[str]:
    """Return what whoever reads the result should know of the revisions."""
    base, head = planned.revisions
    messages = []
    if base.commit == head.commit:
        messages.append("base and head are the same commit, so that this shows what the machine itself does (A/A)")
    if is_dirty(repository) and commit_of(repository, "HEAD") in {base.commit, head.commit}:
        messages.append("the working tree has changes that are not committed, and they are not measured")
    if "submodule" not in (planned.setup or "") and any(_has_submodules(repository, r) for r in (base, head)):
        messages.append("submodules are not checked out; --setup 'git submodule update --init' does it")
    return messages


def is_dirty(repository: Path) -> bool:
    """Return whether files that git knows differ from the last commit."""
    return bool(git(repository, "status", "--porcelain", "--untracked-files=no"))


def _has_submodules(repository: Path, revision: Revision) -> bool:
    try:
        git(repository, "cat-file", "-e", f"{revision.commit}:.gitmodules")
    except GitRefuses:
        return False
    return True
