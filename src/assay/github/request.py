"""Decide from a workflow's event whether a benchmark is requested, and of what, before anything is rented.

    a comment /benchmark L4     on an open pull request, by a person who may write to the repository
    the label needs-benchmark   set by such a person, on a branch of the repository itself
    inputs                      of a run started manually, or of another workflow that calls Assay's

A comment must be one exact line in plain ASCII, and nothing else:

    /benchmark                the default kind of GPU
    /benchmark L4             one kind
    /benchmark L4,A100        several, measured concurrently

Much of an event is untrusted text. Everything extracted from it is validated here; only names from a fixed list are
returned and never text of the comment. The commit is pinned here: later pushes are not measured. The decision is
passed to the next steps as lines ``name=value``; a control character in a value is a defect of Assay.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot, suggest_nearest
from assay.core.files import read_json, translate_os_errors
from assay.core.values import Value
from assay.hosts.gpu_types import FAMILIES, TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    if Path(path).is_file() and Path(path).stat().st_size > MAX_EVENT_BYTES:
        raise BadInput("The event's file is too large to be one of GitHub's.")
    content: Any = read_json(Path(path))
    if not isinstance(content, dict):
        raise BadInput("The event's file holds no event: it must be a mapping.")
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


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _matching_text(value: object, pattern: str) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(pattern, value) else None


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None


COMMAND = "/benchmark"
MAX_GPU_TYPES = 4
"""Kinds of GPU in one comment: each is a machine that is paid for."""

GPU_TYPE_NAMES = frozenset({*FAMILIES, *(gpu_type.name for gpu_type in TYPES)})
"""Every kind of GPU that can be requested, as it is written."""

_GPU_NAME = r"[A-Za-z0-9]{1,12}(?:-[A-Za-z0-9]{1,12}){0,2}"
_GPU_LIST = rf"{_GPU_NAME}(?:,{_GPU_NAME}){{0,{MAX_GPU_TYPES - 1}}}"
_COMMENT = re.compile(rf"/benchmark(?: (?P<names>{_GPU_LIST}))?")
_MAX_CHARACTERS = 200
_MAX_SHOWN = 20
"""Typed characters that are shown in a message."""


def is_command(comment: str) -> bool:
    """Return whether a comment looks like a command; only then is an error reported."""
    return comment.startswith(COMMAND)


def parse_comment(comment: str, default: str) -> tuple[str, ...]:
    """Return the kinds of GPU that a comment requests, each once, in its order.

    Raises:
        BadInput: It is anything but the one line; the message quotes only plain characters of it.
    """
    match = _COMMENT.fullmatch(comment) if len(comment) <= _MAX_CHARACTERS else None
    if match is None:
        raise BadInput(
            f"The comment is not understood: all of it must be {COMMAND}, {COMMAND} L4 or {COMMAND} L4,A100 "
            f"(at most {MAX_GPU_TYPES} kinds of GPU), with nothing before or behind it."
        )
    return parse_gpu_types(match["names"] or default)


def parse_gpu_types(text: str) -> tuple[str, ...]:
    """Return the kinds of GPU in a list such as ``L4,A100``, each once, in its order.

    Raises:
        BadInput: It is not such a list, or has an unknown name.
    """
    if len(text) > _MAX_CHARACTERS or re.fullmatch(_GPU_LIST, text) is None:
        raise BadInput(
            f"{printable(text)} names no GPUs: write L4, or at most {MAX_GPU_TYPES} as in L4,A100, without spaces."
        )
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in GPU_TYPE_NAMES:
            match = next((candidate for candidate in sorted(GPU_TYPE_NAMES) if candidate.upper() == name.upper()), None)
            hint = f" Did you mean {match}?" if match else suggest_nearest(name, sorted(GPU_TYPE_NAMES))
            raise BadInput(f"There is no GPU type {name}.{hint}")
    return names


def printable(text: str) -> str:
    """Return typed text in a form that is safe in a log: plain characters, of limited length."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_., ") else "?" for c in text[:_MAX_SHOWN])
    return f"'{plain}{'…' if len(text) > _MAX_SHOWN else ''}'"


LABEL = "needs-benchmark"
DEFAULT_GPU = "L4"
PULL_REQUEST_EVENTS = ("pull_request", "pull_request_target")


class WorkflowInputs(Value):
    """The inputs of a workflow."""

    gpu_type: str | None = None
    create_pr: bool = True
    default_gpu: str = DEFAULT_GPU


def workflow_inputs(environment: Mapping[str, str]) -> WorkflowInputs:
    """Return the inputs of the workflow.

    Raises:
        BadInput: A switch is neither true nor false.
    """
    switch = environment.get("ASSAY_CREATE_PR", "").strip().lower()
    if switch not in {"", "true", "false"}:
        raise BadInput("ASSAY_CREATE_PR is true or false.")
    return WorkflowInputs(
        gpu_type=environment.get("ASSAY_GPU_TYPE") or None,
        create_pr=switch != "false",
        default_gpu=environment.get("ASSAY_DEFAULT_GPU") or DEFAULT_GPU,
    )


class BenchmarkRequest(Value):
    """What to measure, and where the results go."""

    gpu_types: tuple[str, ...] = Field(min_length=1)
    repository: str = Field(description="Where the commit is: this repository, or a fork.")
    commit: str = Field(pattern=rf"^{SHA}$")
    branch: str | None = Field(description="Of this repository, where new thresholds belong; null: nowhere.")
    pull_request: int | None = Field(description="Where the results are told; null: nowhere.")
    create_pr: bool
    requested_by: str | None


class NoRequest(Value):
    """Not a request, or not one for Assay; not an error."""

    reason: str


class RequestQueries(Protocol):
    """The GitHub queries needed to decide."""

    def may_write(self, login: str) -> bool:
        """Return whether a person may write to the repository."""

    def change(self, number: int) -> PullRequestState:
        """Return the current state of a pull request."""


def decide_request(
    event: WorkflowEvent, inputs: WorkflowInputs, repository: str, github: Callable[[], RequestQueries]
) -> BenchmarkRequest | NoRequest:
    """Return what to measure; ``github`` is only called if it is needed.

    Raises:
        BadInput: It is meant as a request, but is invalid.
        MachineCannot: The requester lacks permission, or the request cannot be measured.
    """
    is_pull_request = event.name in PULL_REQUEST_EVENTS
    if event.name == "issue_comment" and not inputs.gpu_type:
        return _decide_comment(event, inputs, repository, github)
    if is_pull_request and not inputs.gpu_type and (event.action != "labeled" or event.label != LABEL):
        return NoRequest(reason=f"the label is not {LABEL}")
    if is_pull_request and event.change is not None:
        names = parse_gpu_types(inputs.gpu_type or inputs.default_gpu)
        if event.change.repository != repository:
            raise MachineCannot(
                f"Pull request {event.change.number} comes from a fork, whose workflows get no secrets; somebody who "
                f"may write to {repository} can comment {COMMAND} under it."
            )
        requester = _check_requester(event, repository, github())
        return _request_for(event.change, names, repository, by=requester, create_pr=inputs.create_pr)
    if inputs.gpu_type:
        return _decide_inputs(event, inputs, repository)
    if is_pull_request:
        raise BadInput("The event does not say which pull request was labelled.")
    if event.name == "workflow_dispatch":
        raise BadInput("No GPU type is given: write L4, or L4,A100, as gpu_type.")
    return NoRequest(reason=f"{event.name} requests nothing")


def _decide_comment(
    event: WorkflowEvent, inputs: WorkflowInputs, repository: str, github: Callable[[], RequestQueries]
) -> BenchmarkRequest | NoRequest:
    if event.action != "created" or event.comment is None or not is_command(event.comment):
        return NoRequest(reason="the comment requests nothing")
    names = parse_comment(event.comment, inputs.default_gpu)
    if event.comment_on is None:
        raise BadInput(f"{COMMAND} works under pull requests; for a branch, run the workflow by hand.")
    queries = github()
    requester = _check_requester(event, repository, queries)
    return _request_for(queries.change(event.comment_on), names, repository, by=requester, create_pr=inputs.create_pr)


def _decide_inputs(event: WorkflowEvent, inputs: WorkflowInputs, repository: str) -> BenchmarkRequest:
    """Return the request of a workflow that was started manually, or called by another one."""
    names = parse_gpu_types(inputs.gpu_type or inputs.default_gpu)
    if event.name == "issue_comment":
        raise BadInput("A workflow for comments cannot call this one with a GPU type: the comment says which.")
    if event.commit is None:
        raise BadInput("GITHUB_SHA is not a commit, so that it is not known what to measure.")
    return BenchmarkRequest(
        gpu_types=names,
        repository=repository,
        commit=event.commit,
        branch=event.branch,
        pull_request=None,
        create_pr=inputs.create_pr and event.branch is not None,
        requested_by=event.by,
    )


def _check_requester(event: WorkflowEvent, repository: str, queries: RequestQueries) -> str:
    """Return the requester, if that is a person who may write."""
    if event.by is None:
        raise BadInput("The event does not say who requests it.")
    if event.by_bot:
        raise MachineCannot(f"{event.by} is a program, and programs may not request GPUs. Nothing is rented.")
    if not queries.may_write(event.by):
        raise MachineCannot(f"{event.by} may not write to {repository}, and so may not have GPUs rented. Nothing is.")
    return event.by


def _request_for(
    change: PullRequestState, names: tuple[str, ...], repository: str, *, by: str, create_pr: bool
) -> BenchmarkRequest:
    if not change.open:
        raise BadInput(f"Pull request {change.number} is closed.")
    if change.repository is None:
        raise MachineCannot(f"The repository that pull request {change.number} comes from is gone.")
    branch = change.branch if change.repository == repository else None
    return BenchmarkRequest(
        gpu_types=names,
        repository=change.repository,
        commit=change.commit,
        branch=branch,
        pull_request=change.number,
        create_pr=create_pr and branch is not None,
        requested_by=by,
    )


def request_outputs(request: BenchmarkRequest | NoRequest) -> dict[str, str]:
    """Return the outputs of a request for the next jobs; all empty where there is none."""
    if isinstance(request, NoRequest):
        names = ("gpu_types", "repository", "commit", "branch", "pull_request", "create_pr")
        return {"go": "false", **dict.fromkeys(names, "")}
    return {
        "go": "true",
        "gpu_types": json.dumps(request.gpu_types),
        "repository": request.repository,
        "commit": request.commit,
        "branch": request.branch or "",
        "pull_request": str(request.pull_request or ""),
        "create_pr": str(request.create_pr).lower(),
    }


def write_outputs(path: Path, values: dict[str, str]) -> None:
    """Append values to the file of a step's outputs.

    Raises:
        ValueError: A value could be misinterpreted.
    """
    for name, value in values.items():
        if re.fullmatch(r"[a-z_]+", name) is None or not (value.isprintable() or not value):
            raise ValueError(f"{name} cannot be told to the next step")
    with translate_os_errors(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write("".join(f"{name}={value}\n" for name, value in values.items()))
