"""``assay github pull-request``: new thresholds as one pull request for each device, or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.github_options import about_results, checked_base, checked_commit, wanted
from assay.cli.params import verb
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.github.api import Api
    from assay.github.gathered import Job
    from assay.github.proposal import Proposal


@verb("pull-request")
@about_results
@click.option("--dry-run", is_flag=True, help="Show the pull request; --config is a file here, and nobody is asked.")
def command(**given: Any) -> int:
    """Propose what RESULTS decide as a pull request: JSON files of `assay threshold run --output`, or folders of them.

    One for each device; one that is open already is brought up to date. Nothing is opened where nothing changes, where
    it cannot be told, or where the fast path was not found right: that is exit code 1.

    \b
    assay github pull-request results.json --config configs/base.yaml --dry-run
    assay github pull-request results --base main
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.github import account
    from assay.github.gathered import gather
    from assay.github.proposal import checked_path

    checked_commit(given["commit"])
    jobs = gather(given["results"], wanted(given))
    if not any(job.measured for job in jobs):
        raise MachineCannot(f"No results are there to propose{_whys(jobs)}.")
    if given["dry_run"]:
        return _code(jobs, [_shown(job, given) for job in jobs if job.measured])
    base = checked_base(given["base"])
    if base is None:
        raise BadInput("--base is missing: the branch that is to get the new values.")
    checked_path(given["config"])
    with account.api(os.environ, given["repository"]) as api:
        return _code(jobs, [_proposed(api, job, base, given) for job in jobs if job.measured])


def _whys(jobs: Sequence[Job]) -> str:
    reasons = [f"{job.title}: {job.why}" for job in jobs]
    return f" ({'; '.join(reasons)})" if reasons else ""


def _code(jobs: Sequence[Job], found: Sequence[Proposal]) -> int:
    """Return the exit code: 1 where parity says no, 2 where results failed their check, else 0."""
    for job in jobs:
        if job.measured is None:
            click.echo(f"{job.title}: {job.why}.", err=True)
    if any(
        change.answer.judged.measured and change.answer.parity != "passed"
        for proposal in found
        for change in proposal.changes
    ):
        return 1
    return BadInput.exit_code if any("fail their check" in (job.why or "") for job in jobs) else 0


def _shown(job: Job, given: Mapping[str, Any]) -> Proposal:
    """Print the pull request that would be made, from the configuration that is here."""
    from assay.core.durable import read_text
    from assay.github import account
    from assay.github.body import body, title
    from assay.github.proposal import proposal

    assert job.measured is not None  # noqa: S101 - only such are handed in
    proposed = proposal(job.measured, given["config"], read_text(Path(given["config"])))
    if proposed.why_not:
        click.echo(f"{job.title}: no pull request. {proposed.why_not}", err=True)
        return proposed
    url = account.run_url(os.environ) if os.environ.get("GITHUB_REPOSITORY") else None
    click.echo(f"# {title(proposed)}\n\n{body(proposed, job.spent, commit=given['commit'], run_url=url)}")
    return proposed


def _proposed(api: Api, job: Job, base: str, given: Mapping[str, Any]) -> Proposal:
    """Make the pull request, or say why there is none."""
    from assay.github import account, files, publish
    from assay.github.body import body, title
    from assay.github.proposal import branch_of, proposal

    assert job.measured is not None  # noqa: S101 - only such are handed in
    file = files.read(api, base, given["config"])
    proposed = proposal(job.measured, file.path, file.text)
    branch = branch_of(job.measured.device, file.path, base)
    if proposed.why_not:
        before = publish.existing(api, branch, base)
        still = f" Pull request {before['number']} of an earlier run is still open." if before else ""
        click.echo(f"{job.title}: no pull request. {proposed.why_not}{still}")
        return proposed
    text = body(proposed, job.spent, commit=given["commit"], run_url=account.run_url(os.environ))
    made = publish.publish(api, publish.Draft(file, proposed.after, branch, base, title(proposed), text))
    done = "brought up to date" if made.was_there else "opened"
    click.echo(f"{job.title}: pull request {made.number} is {done}: {made.url}")
    return proposed
