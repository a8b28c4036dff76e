"""Decide whether an event requests a benchmark, and of what, before anything is rented.

    a comment /benchmark L4     on an open pull request, by a person who may write to the repository
    the label needs-benchmark   set by such a person, on a branch of the repository itself
    inputs                      of a run started manually, or of another workflow that calls Assay's

A comment must be one exact line in plain ASCII, and nothing else:

    /benchmark                the default kind of GPU
    /benchmark L4             one kind
    /benchmark L4,A100        several, measured concurrently

Only names from a fixed list are returned and never text of the comment. The commit is pinned here: later pushes are
not measured. The decision is passed to the next steps as lines ``name=value``; a control character in a value is a
defect of Assay.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot, suggest_nearest
from assay.core.files import translate_os_errors
from assay.core.values import Value
from assay.github.event import SHA
from assay.hosts.gpu_types import FAMILIES, TYPES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.github.event import PullRequestState, WorkflowEvent


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
        ...

    def change(self, number: int) -> PullRequestState:
        """Return the current state of a pull request."""
        ...


def decide_request(
    event: WorkflowEvent, inputs: WorkflowInputs, repository: str, github: Callable[[], RequestQueries]
) -> BenchmarkRequest | NoRequest:
    """Return what to measure; ``github`` is only called if it is needed.

    Raises:
        BadInput: It is meant as a request, but is invalid.
        MachineCannot: The requester lacks permission, or the request cannot be measured.
    """
    if inputs.gpu_type:
        return _decide_inputs(event, inputs, repository, github)
    if event.name == "issue_comment":
        return _decide_comment(event, inputs, repository, github)
    if event.name in PULL_REQUEST_EVENTS:
        return _decide_label(event, inputs, repository, github)
    if event.name == "workflow_dispatch":
        raise BadInput("No GPU type is given: write L4, or L4,A100, as gpu_type.")
    return NoRequest(reason=f"{event.name} asks for nothing")


def _decide_comment(
    event: WorkflowEvent, inputs: WorkflowInputs, repository: str, github: Callable[[], RequestQueries]
) -> BenchmarkRequest | NoRequest:
    if event.action != "created" or event.comment is None or not is_command(event.comment):
        return NoRequest(reason="the comment asks for nothing")
    names = parse_comment(event.comment, inputs.default_gpu)
    if event.comment_on is None:
        raise BadInput(f"{COMMAND} works under pull requests; for a branch, run the workflow by hand.")
    queries = github()
    requester = _check_requester(event, repository, queries)
    return _request_for(queries.change(event.comment_on), names, repository, by=requester, create_pr=inputs.create_pr)


def _decide_label(
    event: WorkflowEvent, inputs: WorkflowInputs, repository: str, github: Callable[[], RequestQueries]
) -> BenchmarkRequest | NoRequest:
    if event.action != "labeled" or event.label != LABEL:
        return NoRequest(reason=f"the label is not {LABEL}")
    if event.change is None:
        raise BadInput("The event does not tell which pull request was labelled.")
    _require_own_branch(event.change, repository)
    requester = _check_requester(event, repository, github())
    return _request_for(
        event.change, parse_gpu_types(inputs.default_gpu), repository, by=requester, create_pr=inputs.create_pr
    )


def _decide_inputs(
    event: WorkflowEvent, inputs: WorkflowInputs, repository: str, github: Callable[[], RequestQueries]
) -> BenchmarkRequest:
    names = parse_gpu_types(inputs.gpu_type or inputs.default_gpu)
    if event.name in PULL_REQUEST_EVENTS and event.change is not None:
        _require_own_branch(event.change, repository)
        requester = _check_requester(event, repository, github())
        return _request_for(event.change, names, repository, by=requester, create_pr=inputs.create_pr)
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


def _require_own_branch(change: PullRequestState, repository: str) -> None:
    if change.repository != repository:
        raise MachineCannot(
            f"Pull request {change.number} comes from a fork, whose workflows get no secrets; somebody who may write "
            f"to {repository} can comment {COMMAND} under it."
        )


def _check_requester(event: WorkflowEvent, repository: str, queries: RequestQueries) -> str:
    """Return the requester, if that is a person who may write."""
    if event.by is None:
        raise BadInput("The event does not tell who asks.")
    if event.by_bot:
        raise MachineCannot(f"{event.by} is a program, and programs may not ask for GPUs. Nothing is rented.")
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
    names = ("gpu_types", "repository", "commit", "branch", "pull_request", "create_pr")
    if isinstance(request, NoRequest):
        return {"go": "false", **dict.fromkeys(names, "")}
    return {
        "go": "true",
        "gpu_types": json.dumps(request.gpu_types),
        "repository": request.repository,
        "commit": request.commit,
        "branch": request.branch or "",
        "pull_request": "" if request.pull_request is None else str(request.pull_request),
        "create_pr": "true" if request.create_pr else "false",
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
