"""``assay github``: what the workflows call; its verbs are loaded only when they are called."""

from __future__ import annotations

import click

from assay.cli.lazy import LazyGroup, Verbs

VERBS: Verbs = {
    "comment": ("assay.cli.github_comment:command", "Tell results under a pull request, in one comment."),
    "measure": ("assay.cli.github_measure:command", "Measure one commit on one kind of rented GPU."),
    "pull-request": ("assay.cli.github_pull_request:command", "Propose new thresholds as a pull request."),
    "request": ("assay.cli.github_request:command", "Decide whether a comment, a label or inputs may rent GPUs."),
}


@click.group("github", cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Benchmarks asked for in comments, and thresholds proposed in pull requests."""
