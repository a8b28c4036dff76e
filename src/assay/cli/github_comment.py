"""``assay github comment``: what was measured, and what came of it, in one comment under a pull request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.github_options import about_results, checked_base, checked_commit, wanted
from assay.cli.params import verb
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.github.api import Api
    from assay.github.gathered import Job
    from assay.github.proposal import Proposal


@verb("comment")
@about_results
@click.option("--pull-request", "number", type=click.IntRange(1), required=True, help="Under which.")
@click.option("--gpu-types", metavar="L4,A100", help="What was asked for: a kind that left nothing is told, too.")
@click.option("--dry-run", is_flag=True, help="Show the comment; --config is a file here, and nobody is asked.")
def command(**given: Any) -> int:
    """Tell RESULTS under a pull request, also where some or all of them are missing.

    There is one comment: a later one takes its place.

    \b
    assay github comment results.json --pull-request 12 --config configs/base.yaml --dry-run
    assay github comment results --pull-request 12 --base main --gpu-types L4,A100
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.github import account, remarks
    from assay.github.body import comment
    from assay.github.gathered import gather

    commit, base = checked_commit(given["commit"]), checked_base(given["base"])
    jobs = gather(given["results"], wanted(given), _expected(given["gpu_types"]))
    if given["dry_run"]:
        sections = [(job, *_from_here(job, given)) for job in jobs]
        click.echo(comment(sections, commit=commit, run_url=None), nl=False)
        return 0
    with account.api(os.environ, given["repository"]) as api:
        sections = [(job, *_from_there(api, job, base, given)) for job in jobs]
        url = remarks.say(api, given["number"], comment(sections, commit=commit, run_url=account.run_url(os.environ)))
    click.echo(f"Told in {url}")
    return 0


def _expected(text: str | None) -> tuple[str, ...]:
    """Return kinds of GPU from ``L4,A100`` or from the JSON that ``assay github request`` writes."""
    import json

    from assay.github.grammar import kinds

    if not text:
        return ()
    if text.startswith("["):
        try:
            text = ",".join(map(str, json.loads(text)))
        except (ValueError, RecursionError):
            raise BadInput("--gpu-types is neither a list such as L4,A100 nor JSON.") from None
    return kinds(text)


def _from_here(job: Job, given: Mapping[str, Any]) -> tuple[Proposal | None, str]:
    """Return what results change in the configuration that is here."""
    from assay.core.durable import read_text
    from assay.github.proposal import proposal

    if job.measured is None:
        return None, ""
    proposed = proposal(job.measured, given["config"], read_text(Path(given["config"])))
    return proposed, proposed.why_not or "These values are not proposed anywhere yet."


def _from_there(api: Api, job: Job, base: str | None, given: Mapping[str, Any]) -> tuple[Proposal | None, str]:
    """Return what results change in the configuration of the base, and which pull request has that."""
    from assay.github import files, publish
    from assay.github.markdown import code
    from assay.github.proposal import branch_of, checked_path, proposal

    if job.measured is None:
        return None, ""
    if base is None:
        return None, "No pull request is opened for a branch of another repository; these are the answers."
    try:
        file = files.read(api, base, checked_path(given["config"]))
        proposed = proposal(job.measured, file.path, file.text)
    except BadInput as error:
        return None, f"Nothing is proposed: {code(str(error), 300)}"
    if proposed.why_not:
        return proposed, proposed.why_not
    before = publish.existing(api, branch_of(job.measured.device, file.path, base), base)
    return proposed, f"Proposed in #{before['number']}." if before else "These values are not proposed anywhere yet."
