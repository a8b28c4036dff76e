"""From results to one pull request, created or updated, never two of one kind; if nothing may change, the reason.

base ──▶ file ──▶ commit (nothing leads to it) ──▶ branch assay/thresholds-… ──▶ pull request
                                                    │                            │
                                                    created, or moved if its     opened, or updated
                                                    last commit is Assay's

The commit changes one file and is made of git's own objects: nothing is visible before all of it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from assay.core.errors import BadInput, MachineCannot
from assay.experiments.threshold.answers import PARITY_PHRASES, describe_location
from assay.github.api import Conflict, get_field
from assay.store import yaml_edit
from assay.store.yaml_edit import YamlTree, equal_scalars, find_value

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.experiments.threshold.answers import ThresholdAnswer
    from assay.github.api import GitHubApi
    from assay.github.results import VerifiedResults


BRANCH_PREFIX = "assay/thresholds-"


@dataclass(frozen=True)
class ProposedChange:
    """One threshold: the configuration's value, and the measured one.

    ``new`` is null where nothing is to be written.
    """

    answer: ThresholdAnswer
    old: object
    new: Scalar

    @property
    def differs(self) -> bool:
        """Whether the configuration changes."""
        return self.new is not None and not equal_scalars(self.old, self.new)

    @property
    def interval_text(self) -> str:
        """The interval of sizes that contains the threshold, or why there is none, in a few words."""
        threshold = self.answer.location
        if self.answer.parity != "passed":
            return f"none, as parity {PARITY_PHRASES[self.answer.parity]}"
        if threshold.decision == "threshold":
            return f"{threshold.low:g} to {threshold.high:g}"
        return describe_location(threshold)


@dataclass(frozen=True)
class Proposal:
    """The changes that the results of one device imply.

    Attributes:
        path: Of the configuration, within the repository.
        before: Its text.
        after: Its text with the new values; the same where nothing changes.
        missing_reason: Why nothing is proposed, as a sentence; null where something is.
    """

    measured: VerifiedResults
    path: str
    before: str
    after: str
    changes: tuple[ProposedChange, ...]
    missing_reason: str | None

    @property
    def diff(self) -> str:
        """The changes as a unified diff."""
        return yaml_edit.unified_diff(self.before, self.after, self.path)


def propose_changes(measured: VerifiedResults, path: str, text: str) -> Proposal:
    """Return the changes of results to the text of a configuration.

    Raises:
        BadInput: It is not YAML, or lacks a key.
    """
    tree = YamlTree(text, path)
    nodes = [find_value(tree, answer.key, path) for answer in measured.answers]
    changes = tuple(
        ProposedChange(answer, tree.meaning(tree.slot(last, node)), answer.value)
        for answer, (last, node) in zip(measured.answers, nodes, strict=True)
    )
    reason = _rejection_reason(measured, changes, path)
    new_values = {change.answer.key: change.new for change in changes if change.differs}
    after = text if reason else yaml_edit.edit_text(text, new_values, name=path)
    return Proposal(measured, path, text, after, changes, reason)


def _rejection_reason(measured: VerifiedResults, changes: tuple[ProposedChange, ...], path: str) -> str | None:
    """Return why nothing is proposed, the most serious reason first; null where something is."""
    for answer in (change.answer for change in changes):
        if answer.judgement.measured and answer.parity != "passed":
            phrase = PARITY_PHRASES[answer.parity]
            return f"Parity {phrase} for {answer.key}: a fast path that is not known to be right is not made the rule."
    if measured.is_fake:
        return "The driver calls itself a fake: what it says was not measured on any GPU."
    if all(change.new is None for change in changes):
        return "From which size on the fast path is faster cannot be told."
    if not any(change.differs for change in changes):
        return f"{path} has these values already."
    return None


def proposal_branch(device: str, path: str, base: str) -> str:
    """Return the branch of a proposal: one for each device, configuration and base, so that it is found again."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:40].strip("-") or "device"
    digest = hashlib.sha256("\0".join((device, path, base)).encode()).hexdigest()[:8]
    return f"{BRANCH_PREFIX}{name}-{digest}"


def check_config_path(path: str) -> str:
    """Return the path of a configuration within a repository.

    Raises:
        BadInput: It leads out of the repository, or is not YAML.
    """
    parts = path.split("/")
    is_plain = re.fullmatch(r"[A-Za-z0-9._/ -]{1,200}", path) is not None
    if not is_plain or any(part in {"", ".", "..", ".git"} for part in parts) or parts[0] == ".github":
        raise BadInput(f"{path!r} is no path of a configuration within the repository, such as configs/base.yaml.")
    if not path.endswith((".yaml", ".yml")):
        raise BadInput(f"{path} is not YAML by its name.")
    return path


FILE_MODES = frozenset({"100644", "100755"})


@dataclass(frozen=True)
class RepositoryFile:
    """A file at the tip of a branch."""

    path: str
    text: str
    mode: str
    commit: str
    tree: str


def branch_tip(api: GitHubApi, branch: str) -> str | None:
    """Return the commit at the tip of a branch; null: there is no such branch."""
    reference = api.find(f"/git/ref/heads/{quote(branch)}", f"look at the branch {branch}")
    return None if reference is None else str(get_field(reference, "object", "sha"))


def read_file(api: GitHubApi, branch: str, path: str) -> RepositoryFile:
    """Return a file of a branch.

    Raises:
        BadInput: The branch or the file does not exist, or is not text.
    """
    commit = branch_tip(api, branch)
    if commit is None:
        raise BadInput(f"{api.repository} has no branch {branch}, or the token may not see it.")
    what = f"read {path}"
    tree = str(get_field(api.get(f"/git/commits/{commit}", what), "tree", "sha"))
    node: dict[str, Any] = {"sha": tree, "type": "tree"}
    for part in path.split("/"):
        entries = get_field(api.get(f"/git/trees/{node['sha']}", what), "tree") if node["type"] == "tree" else []
        matching = [entry for entry in entries if get_field(entry, "path") == part]
        if not matching:
            raise BadInput(f"The branch {branch} of {api.repository} has no file {path}.")
        node = matching[0]
    if get_field(node, "type") != "blob" or get_field(node, "mode") not in FILE_MODES:
        raise BadInput(f"{path} is no plain file on the branch {branch} of {api.repository}.")
    blob = api.get(f"/git/blobs/{get_field(node, 'sha')}", what)
    return RepositoryFile(path, _decode_blob(blob, path), str(get_field(node, "mode")), commit, tree)


def _decode_blob(blob: Any, path: str) -> str:
    if get_field(blob, "encoding") != "base64":
        raise MachineCannot(f"GitHub gives {path} in an encoding that is not known.")
    try:
        return base64.b64decode(get_field(blob, "content")).decode()
    except (binascii.Error, TypeError, UnicodeDecodeError):
        raise BadInput(f"{path} is not UTF-8 text.") from None


def create_commit(api: GitHubApi, file: RepositoryFile, text: str, message: str) -> str:
    """Create a commit that replaces a file's text, on top of the file's commit; no branch leads to it yet."""
    what = f"write {file.path}"
    entry: dict[str, Any] = {"path": file.path, "mode": file.mode, "type": "blob", "content": text}
    tree = _create_object(api, "/git/trees", {"base_tree": file.tree, "tree": [entry]}, what)
    return _create_object(api, "/git/commits", {"message": message, "tree": tree, "parents": [file.commit]}, what)


def _create_object(api: GitHubApi, path: str, content: dict[str, Any], what: str) -> str:
    """Create an unreferenced git object; creating it twice is harmless."""
    return api.make_once(lambda: str(get_field(api.send("POST", path, content, what), "sha")))


TRAILER = "Assay-Proposal:"
"""Begins the last line of Assay's commits, so that a branch with other people's commits is recognized."""


@dataclass(frozen=True)
class PublishedPullRequest:
    """A pull request, and whether it existed before."""

    number: int
    url: str
    was_there: bool


@dataclass(frozen=True)
class PullRequestDraft:
    """The content of a pull request."""

    file: RepositoryFile
    text: str
    branch: str
    base: str
    title: str
    body: str


def find_pull_request(api: GitHubApi, branch: str, base: str) -> Any | None:
    """Return the open pull request of one of Assay's branches; null: there is none."""
    owner = api.repository.partition("/")[0]
    what = "look for an open pull request"
    pull_requests = api.get("/pulls", what, state="open", head=f"{owner}:{branch}", base=base)
    for pull_request in pull_requests:
        if get_field(pull_request, "head", "ref") == branch and get_field(pull_request, "base", "ref") == base:
            return pull_request
    return None


def publish_pull_request(api: GitHubApi, draft: PullRequestDraft) -> PublishedPullRequest:
    """Create the branch and the pull request, or update the existing ones.

    Raises:
        MachineCannot: GitHub does not permit it, or somebody else has committed to the branch.
    """
    _update_branch(api, draft)
    existing = find_pull_request(api, draft.branch, draft.base)
    if existing is not None:
        return _update_pull_request(api, draft, existing)
    return _open_pull_request(api, draft)


def _update_branch(api: GitHubApi, draft: PullRequestDraft) -> None:
    tip = branch_tip(api, draft.branch)
    if tip is not None and _is_up_to_date(api, tip, draft):
        return
    message = f"{draft.title}\n\n{TRAILER} {draft.branch}\n"
    commit = create_commit(api, draft.file, draft.text, message)
    request: tuple[str, str, dict[str, Any], str]
    if tip is None:
        content = {"ref": f"refs/heads/{draft.branch}", "sha": commit}
        request = ("POST", "/git/refs", content, f"create the branch {draft.branch}")
    else:
        path = f"/git/refs/heads/{quote(draft.branch)}"
        request = ("PATCH", path, {"sha": commit, "force": True}, f"move the branch {draft.branch}")
    api.make_once(
        lambda: str(get_field(api.send(*request), "object", "sha")),
        lambda: commit if branch_tip(api, draft.branch) == commit else None,
    )


def _is_up_to_date(api: GitHubApi, tip: str, draft: PullRequestDraft) -> bool:
    """Return whether one of Assay's branches already has the same change on the same base.

    Raises:
        MachineCannot: Its last commit is not Assay's.
    """
    last = api.get(f"/git/commits/{tip}", f"look at the branch {draft.branch}")
    if f"\n{TRAILER} {draft.branch}" not in str(get_field(last, "message")):
        raise MachineCannot(
            f"Somebody has committed to the branch {draft.branch}, and that is not overwritten: merge it or delete it."
        )
    parents = [get_field(parent, "sha") for parent in get_field(last, "parents")]
    return parents == [draft.file.commit] and read_file(api, draft.branch, draft.file.path).text == draft.text


def _update_pull_request(api: GitHubApi, draft: PullRequestDraft, existing: Any) -> PublishedPullRequest:
    number = int(get_field(existing, "number"))
    content = {"title": draft.title, "body": draft.body}
    what = f"bring pull request {number} up to date"
    api.make_once(lambda: api.send("PATCH", f"/pulls/{number}", dict(content), what))
    return PublishedPullRequest(number, str(get_field(existing, "html_url")), was_there=True)


def _open_pull_request(api: GitHubApi, draft: PullRequestDraft) -> PublishedPullRequest:
    content = {"title": draft.title, "body": draft.body, "head": draft.branch, "base": draft.base}
    what = "open a pull request"

    def look() -> Any | None:
        return find_pull_request(api, draft.branch, draft.base)

    try:
        created = api.make_once(lambda: api.send("POST", "/pulls", dict(content), what), look)
    except Conflict:
        existing = look()
        if existing is None:
            raise
        return _update_pull_request(api, draft, existing)
    return PublishedPullRequest(int(get_field(created, "number")), str(get_field(created, "html_url")), was_there=False)
