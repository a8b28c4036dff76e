"""Is this a request to measure, and of what? Decided before anything is rented, from what nobody else can write.

    a comment /benchmark L4     under an open pull request, by a person who may write to the repository
    the label needs-benchmark   set by such a person, on a branch of the repository itself
    inputs                      of a run started by hand, or of another workflow that calls ours

The commit is pinned here: what is pushed later is not measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Value
from assay.github import grammar
from assay.github.event import SHA

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.github.event import Change, Event

LABEL = "needs-benchmark"
DEFAULT_GPU = "L4"
OF_A_CHANGE = ("pull_request", "pull_request_target")


class Inputs(Value):
    """What a workflow was given by who started or called it."""

    gpu_type: str | None = None
    create_pr: bool = True
    default_gpu: str = DEFAULT_GPU


class Request(Value):
    """What is to be measured, and where the answer goes."""

    gpu_types: tuple[str, ...] = Field(min_length=1)
    repository: str = Field(description="Where the commit is: this repository, or a fork.")
    commit: str = Field(pattern=rf"^{SHA}$")
    branch: str | None = Field(description="Of this repository, where new thresholds belong; null: nowhere.")
    pull_request: int | None = Field(description="Where the results are told; null: nowhere.")
    create_pr: bool
    asked_by: str | None


class Nothing(Value):
    """Not a request, or not one for us; no fault of anybody."""

    why: str


class Asked(Protocol):
    """What must be asked of GitHub to decide."""

    def may_write(self, login: str) -> bool:
        """Return whether a person may write to the repository."""
        ...

    def change(self, number: int) -> Change:
        """Return a pull request as it is at this moment."""
        ...


def decide(event: Event, inputs: Inputs, repository: str, github: Callable[[], Asked]) -> Request | Nothing:
    """Return what is to be measured; ``github`` is only called where an answer is needed.

    Raises:
        BadInput: It is meant as a request, but makes no sense.
        MachineCannot: Who asks may not, or what is asked for cannot be measured.
    """
    if inputs.gpu_type:
        return _by_inputs(event, inputs, repository, github)
    if event.name == "issue_comment":
        return _by_comment(event, inputs, repository, github)
    if event.name in OF_A_CHANGE:
        return _by_label(event, inputs, repository, github)
    if event.name == "workflow_dispatch":
        raise BadInput("No GPU type is given: write L4, or L4,A100, as gpu_type.")
    return Nothing(why=f"{event.name} asks for nothing")


def _by_comment(event: Event, inputs: Inputs, repository: str, github: Callable[[], Asked]) -> Request | Nothing:
    if event.action != "created" or event.comment is None or not grammar.is_meant(event.comment):
        return Nothing(why="the comment asks for nothing")
    names = grammar.kinds_in(event.comment, inputs.default_gpu)
    if event.comment_on is None:
        raise BadInput(f"{grammar.COMMAND} works under pull requests; for a branch, run the workflow by hand.")
    queries = github()
    by = _allowed(event, repository, queries)
    return _of(queries.change(event.comment_on), names, repository, by=by, create_pr=inputs.create_pr)


def _by_label(event: Event, inputs: Inputs, repository: str, github: Callable[[], Asked]) -> Request | Nothing:
    if event.action != "labeled" or event.label != LABEL:
        return Nothing(why=f"the label is not {LABEL}")
    if event.change is None:
        raise BadInput("The event does not tell which pull request was labelled.")
    _of_here(event.change, repository)
    by = _allowed(event, repository, github())
    return _of(event.change, grammar.kinds(inputs.default_gpu), repository, by=by, create_pr=inputs.create_pr)


def _by_inputs(event: Event, inputs: Inputs, repository: str, github: Callable[[], Asked]) -> Request:
    names = grammar.kinds(inputs.gpu_type or inputs.default_gpu)
    if event.name in OF_A_CHANGE and event.change is not None:
        _of_here(event.change, repository)
        by = _allowed(event, repository, github())
        return _of(event.change, names, repository, by=by, create_pr=inputs.create_pr)
    if event.name == "issue_comment":
        raise BadInput("A workflow for comments cannot call this one with a GPU type: the comment says which.")
    if event.commit is None:
        raise BadInput("GITHUB_SHA is not a commit, so that it is not known what to measure.")
    return Request(
        gpu_types=names,
        repository=repository,
        commit=event.commit,
        branch=event.branch,
        pull_request=None,
        create_pr=inputs.create_pr and event.branch is not None,
        asked_by=event.by,
    )


def _of_here(change: Change, repository: str) -> None:
    if change.repository != repository:
        raise MachineCannot(
            f"Pull request {change.number} comes from a fork, whose workflows get no secrets; somebody who may write "
            f"to {repository} can comment {grammar.COMMAND} under it."
        )


def _allowed(event: Event, repository: str, asked: Asked) -> str:
    """Return who asks, if that is a person who may write."""
    if event.by is None:
        raise BadInput("The event does not tell who asks.")
    if event.by_bot:
        raise MachineCannot(f"{event.by} is a program, and programs may not ask for GPUs. Nothing is rented.")
    if not asked.may_write(event.by):
        raise MachineCannot(f"{event.by} may not write to {repository}, and so may not have GPUs rented. Nothing is.")
    return event.by


def _of(change: Change, names: tuple[str, ...], repository: str, *, by: str, create_pr: bool) -> Request:
    if not change.open:
        raise BadInput(f"Pull request {change.number} is closed.")
    if change.repository is None:
        raise MachineCannot(f"The repository that pull request {change.number} comes from is gone.")
    branch = change.branch if change.repository == repository else None
    return Request(
        gpu_types=names,
        repository=change.repository,
        commit=change.commit,
        branch=branch,
        pull_request=change.number,
        create_pr=create_pr and branch is not None,
        asked_by=by,
    )
