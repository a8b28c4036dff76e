"""``assay github``: decide whether an event may rent GPUs, measure a commit, comment on a pull request.

Propose thresholds.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.flags import Flags, argument, flag, parse_usd, verb
from assay.core.errors import AssayError, BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.threshold.spec import ThresholdSpec
    from assay.github.api import GitHubApi
    from assay.github.pull_request import Proposal
    from assay.github.request import BenchmarkRequest, NoRequest, RequestQueries
    from assay.github.results import JobResults


class GitHubRequestFlags(Flags):
    """What `assay github request` can be asked for."""

    as_json: bool = flag("--json", default=False, help="Print the request as JSON.")


@verb("github request", GitHubRequestFlags)
def request_measurement(flags: GitHubRequestFlags) -> int:
    """Decide whether this workflow event requests a measurement, and set the outputs for the next jobs.

    Reads the environment that GitHub sets; ASSAY_GPU_TYPE, ASSAY_CREATE_PR and ASSAY_DEFAULT_GPU are the workflow's
    inputs. Writes go, gpu_types, repository, commit, branch, pull_request and create_pr to GITHUB_OUTPUT.

    Exit code 2: invalid request. Exit code 3: the author lacks permission.
    """
    from assay.github import request
    from assay.github.request import NoRequest

    nothing = NoRequest(reason="it was refused")
    file = os.environ.get("GITHUB_OUTPUT")
    try:
        decision = _decide_request()
    except AssayError:
        if file:
            request.write_outputs(Path(file), request.request_outputs(nothing))
        raise
    if file:
        request.write_outputs(Path(file), request.request_outputs(decision))
    if flags.as_json:
        click.echo(json.dumps(None if isinstance(decision, NoRequest) else decision.as_json(), indent=2))
    click.echo(_describe_request(decision), err=flags.as_json)
    return 0


def _decide_request() -> BenchmarkRequest | NoRequest:
    from assay.github import api
    from assay.github import request as event
    from assay.github.request import decide_request

    def github() -> RequestQueries:
        return api.api_from_environment(os.environ)

    return decide_request(
        event.read_event(os.environ), event.workflow_inputs(os.environ), api.repository_name(os.environ), github
    )


def _describe_request(decision: BenchmarkRequest | NoRequest) -> str:
    from assay.github.request import NoRequest

    if isinstance(decision, NoRequest):
        return f"Nothing is measured: {decision.reason}."
    by = f", asked for by {decision.requested_by}" if decision.requested_by else ""
    where = f" of {decision.repository}"
    return f"To be measured on {', '.join(decision.gpu_types)}: commit {decision.commit}{where}{by}."


class GitHubMeasureFlags(Flags):
    """What `assay github measure` can be asked for."""

    subject: Path = argument("SUBJECT", required=True)
    gpu_type: str = flag(required=True, metavar="L4", help="GPU model, a single one.")
    output: Path = flag("--output -o", required=True, metavar="DIR", help="Empty folder for the results.")
    thresholds: str | None = flag(metavar="FILE", shown="both NSA branches", help="Thresholds file in the commit.")
    trusted: Path | None = flag(metavar="DIR", help="Read --thresholds from this folder instead.")
    on: str = flag(default="auto", metavar="HOST", help="Where to rent the GPU.")
    max_cost_usd: float = flag(
        default=1.0, parse=parse_usd, metavar="USD", help="Rent nothing that may cost more than this."
    )
    limit: str = flag("--time", default="30m", metavar="30m", help="Time limit of the job.")


@verb("github measure", GitHubMeasureFlags)
def measure_commit(flags: GitHubMeasureFlags) -> int:
    """Measure thresholds of SUBJECT, a checked-out commit, on a rented GPU; none of its code runs here.

    Runs `assay threshold run --on HOST`, and writes results.json, exit-code, rentals.jsonl, the report and the run to
    --output. A commit of Assay itself is measured with its own package.
    """
    from assay.core.files import home_folder
    from assay.github import measure, request
    from assay.github.pull_request import check_config_path
    from assay.hosts.remote.transfer import SOURCE_VARIABLE

    (gpu,) = names if len(names := request.parse_gpu_types(flags.gpu_type)) == 1 else (None,)
    if gpu is None:
        raise BadInput("--gpu-type takes one GPU model here; start one job for each.")
    thresholds = check_config_path(flags.thresholds) if flags.thresholds else None
    trusted = None if thresholds is None or flags.trusted is None else (flags.trusted / thresholds).resolve()
    out, subject = measure.prepare_output(flags.output), flags.subject.resolve()
    try:
        measure.prepare_commit(subject, thresholds, trusted)
    except AssayError as error:
        measure.write_exit(out, error.exit_code, home_folder() / "rentals.jsonl")
        raise
    job = measure.MeasureJob(gpu=gpu, on=flags.on, max_cost_usd=flags.max_cost_usd, limit=flags.limit)
    if thresholds is None and measure.is_assay(subject):
        os.environ[SOURCE_VARIABLE] = str(subject / "src/assay")
    os.environ["PYTHONSAFEPATH"] = "1"  # processes of ours must not import from where they start
    os.chdir(subject)
    code = run_assay(measure.threshold_command(job, thresholds, out))
    measure.write_exit(out, code, home_folder() / "rentals.jsonl")
    return code


def run_assay(words: list[str]) -> int:
    """Run another command line of Assay in this process, and return its exit code."""
    from assay.cli.main import main

    return main(words)


def parse_commit(text: str) -> str | None:
    """Return a commit; null where the text is empty."""
    from assay.github.request import SHA

    if text and re.fullmatch(SHA, text) is None:
        raise BadInput("--commit must be a full commit hash: 40 lowercase hexadecimal digits.")
    return text or None


def parse_branch(text: str) -> str | None:
    """Return the name of a branch; null where the text is empty."""
    from assay.github.request import BRANCH

    if text and re.fullmatch(BRANCH, text) is None:
        raise BadInput("--base must be the name of a branch.")
    return text or None


class GitHubResultFlags(Flags):
    """What was measured, and where it belongs."""

    results: tuple[Path, ...] = argument("RESULTS...", default=(), required=True)
    config: str = flag(default="configs/base.yaml", metavar="FILE", help="Path of the configuration in the repository.")
    thresholds: str | None = flag(metavar="FILE", shown="both NSA branches", help="Thresholds that may change.")
    trusted: Path | None = flag(metavar="DIR", shown="here", help="Folder of --thresholds.")
    base: str | None = flag(
        metavar="BRANCH", parse=parse_branch, help="Branch whose configuration gets the new values."
    )
    repository: str | None = flag(metavar="OWNER/NAME", shown="GITHUB_REPOSITORY", help="Repository.")
    commit: str | None = flag(metavar="SHA", parse=parse_commit, help="Commit that was measured.")


def writable_thresholds(flags: GitHubResultFlags) -> tuple[ThresholdSpec, ...]:
    """Return what may be written."""
    from assay.experiments.threshold.spec import DEFAULT_SPEC_FILE, load_thresholds

    return load_thresholds((flags.trusted or Path()) / flags.thresholds if flags.thresholds else DEFAULT_SPEC_FILE)


class CommentFlags(GitHubResultFlags):
    """What `assay github comment` can be asked for."""

    pull_request: int = flag(required=True, ge=1, help="Number of the pull request.")
    gpu_types: str | None = flag(metavar="L4,A100", help="Requested GPU models; those without results are listed too.")
    dry_run: bool = flag(default=False, help="Show the comment only; --config is a local file.")


@verb("github comment", CommentFlags)
def comment_results(flags: CommentFlags) -> int:
    """Post RESULTS on a pull request, also if some or all of them are missing.

    There is one comment; later results replace it.

        assay github comment results.json --pull-request 12 --dry-run
        assay github comment results --pull-request 12 --base main --gpu-types L4,A100
    """
    from assay.github import api as account
    from assay.github import comment as remarks
    from assay.github.comment import comment_body
    from assay.github.results import collect_jobs

    jobs = collect_jobs(flags.results, writable_thresholds(flags), _expected_gpu_types(flags.gpu_types))
    if flags.dry_run:
        sections = [(job, *_proposal_from_file(job, flags)) for job in jobs]
        click.echo(comment_body(sections, commit=flags.commit, run_url=None), nl=False)
        return 0
    with account.api_from_environment(os.environ, flags.repository) as api:
        sections = [(job, *_proposal_from_base(api, job, flags.base, flags)) for job in jobs]
        url = remarks.write_comment(
            api,
            flags.pull_request,
            comment_body(sections, commit=flags.commit, run_url=account.workflow_run_url(os.environ)),
        )
    click.echo(f"Told in {url}")
    return 0


def _expected_gpu_types(text: str | None) -> tuple[str, ...]:
    """Return kinds of GPU from ``L4,A100`` or from the JSON that ``assay github request`` writes."""
    from assay.github.request import parse_gpu_types

    if not text:
        return ()
    if text.startswith("["):
        try:
            text = ",".join(map(str, json.loads(text)))
        except (ValueError, RecursionError):
            raise BadInput("--gpu-types must be a list such as L4,A100, or JSON.") from None
    return parse_gpu_types(text)


def _proposal_from_file(job: JobResults, flags: GitHubResultFlags) -> tuple[Proposal | None, str]:
    """Return what results change in the configuration that is here."""
    from assay.core.files import read_text
    from assay.github.pull_request import propose_changes

    if job.measured is None:
        return None, ""
    proposed = propose_changes(job.measured, flags.config, read_text(Path(flags.config)))
    return proposed, proposed.missing_reason or "These values are not proposed anywhere yet."


def _proposal_from_base(
    api: GitHubApi, job: JobResults, base: str | None, flags: GitHubResultFlags
) -> tuple[Proposal | None, str]:
    """Return what results change in the configuration of the base, and which pull request has that."""
    from assay.github import pull_request
    from assay.github.comment import code_span
    from assay.github.pull_request import check_config_path, proposal_branch, propose_changes

    if job.measured is None:
        return None, ""
    if base is None:
        return None, "No pull request is opened for a branch of another repository; these are the answers."
    try:
        file = pull_request.read_file(api, base, check_config_path(flags.config))
        proposed = propose_changes(job.measured, file.path, file.text)
    except BadInput as error:
        return None, f"Nothing is proposed: {code_span(str(error), 300)}"
    if proposed.missing_reason:
        return proposed, proposed.missing_reason
    before = pull_request.find_pull_request(api, proposal_branch(job.measured.device, file.path, base), base)
    return proposed, f"Proposed in #{before['number']}." if before else "These values are not proposed anywhere yet."


class PullRequestFlags(GitHubResultFlags):
    """What `assay github pull-request` can be asked for."""

    dry_run: bool = flag(default=False, help="Show the pull request only; --config is a local file.")


@verb("github pull-request", PullRequestFlags)
def propose_pull_request(flags: PullRequestFlags) -> int:
    """Open a pull request with new thresholds from RESULTS: JSON files of `assay threshold run --output`, or folders.

    One pull request per device; an open one is updated. None is opened if nothing changes, if the results are
    inconclusive, or if the fast path failed its parity check (exit code 1).

        assay github pull-request results.json --config configs/base.yaml --dry-run
        assay github pull-request results --base main
    """
    from assay.github import api as account
    from assay.github.pull_request import check_config_path
    from assay.github.results import collect_jobs

    jobs = collect_jobs(flags.results, writable_thresholds(flags))
    if not any(job.measured for job in jobs):
        reasons = "; ".join(f"{job.title}: {job.missing.detail}" for job in jobs if job.missing is not None)
        raise MachineCannot(f"No results to propose{reasons and f' ({reasons})'}.")
    if flags.dry_run:
        return _exit_code(jobs, [_print_pull_request(job, flags) for job in jobs if job.measured])
    base = flags.base
    if base is None:
        raise BadInput("--base is missing: name the branch that gets the new values.")
    check_config_path(flags.config)
    with account.api_from_environment(os.environ, flags.repository) as api:
        return _exit_code(jobs, [_publish_pull_request(api, job, base, flags) for job in jobs if job.measured])


def _exit_code(jobs: Sequence[JobResults], proposals: Sequence[Proposal]) -> int:
    """Return the exit code: 1 where parity says no, 2 where results failed their check, else 0."""
    for job in jobs:
        if job.missing is not None:
            click.echo(f"{job.title}: {job.missing.detail}.", err=True)
    if any(
        change.answer.judgement.measured and change.answer.parity != "passed"
        for proposal in proposals
        for change in proposal.changes
    ):
        return 1
    return BadInput.exit_code if any(job.is_invalid for job in jobs) else 0


def _print_pull_request(job: JobResults, flags: GitHubResultFlags) -> Proposal:
    """Print the pull request that would be made, from the configuration that is here."""
    from assay.core.files import read_text
    from assay.github import api
    from assay.github.comment import pull_request_body, pull_request_title
    from assay.github.pull_request import propose_changes

    assert job.measured is not None  # noqa: S101 - only such are handed in
    proposed = propose_changes(job.measured, flags.config, read_text(Path(flags.config)))
    if proposed.missing_reason:
        click.echo(f"{job.title}: no pull request. {proposed.missing_reason}", err=True)
        return proposed
    url = api.workflow_run_url(os.environ) if os.environ.get("GITHUB_REPOSITORY") else None
    click.echo(
        "# "
        f"{pull_request_title(proposed)}\n\n"
        f"{pull_request_body(proposed, job.costs, commit=flags.commit, run_url=url)}"
    )
    return proposed


def _publish_pull_request(api: GitHubApi, job: JobResults, base: str, flags: GitHubResultFlags) -> Proposal:
    """Make the pull request, or say why there is none."""
    from assay.github import api as account
    from assay.github import pull_request
    from assay.github.comment import pull_request_body, pull_request_title
    from assay.github.pull_request import proposal_branch, propose_changes

    assert job.measured is not None  # noqa: S101 - only such are handed in
    file = pull_request.read_file(api, base, flags.config)
    proposed = propose_changes(job.measured, file.path, file.text)
    branch = proposal_branch(job.measured.device, file.path, base)
    if proposed.missing_reason:
        before = pull_request.find_pull_request(api, branch, base)
        still = f" Pull request {before['number']} of an earlier run is still open." if before else ""
        click.echo(f"{job.title}: no pull request. {proposed.missing_reason}{still}")
        return proposed
    text = pull_request_body(proposed, job.costs, commit=flags.commit, run_url=account.workflow_run_url(os.environ))
    made = pull_request.publish_pull_request(
        api, pull_request.PullRequestDraft(file, proposed.after, branch, base, pull_request_title(proposed), text)
    )
    done = "brought up to date" if made.was_there else "opened"
    click.echo(f"{job.title}: pull request {made.number} is {done}: {made.url}")
    return proposed
