"""``assay github request``: may this event rent GPUs, which, and for which commit?"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.params import verb
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from assay.github.request import Asked, Nothing, Request


@verb("request")
@click.option("--json", "as_json", is_flag=True, help="The request as JSON on stdout.")
def command(as_json: bool) -> int:
    """Decide whether the event of this workflow asks for a measurement, and tell the next jobs what to measure.

    Everything comes from the environment that GitHub sets; ASSAY_GPU_TYPE, ASSAY_CREATE_PR and ASSAY_DEFAULT_GPU are
    the workflow's inputs. GITHUB_OUTPUT gets go, gpu_types, repository, commit, branch, pull_request and create_pr.

    Exit code 2: it is meant as a request, but makes no sense. Exit code 3: who asks may not.
    """
    from assay.github import outputs
    from assay.github.request import Nothing

    nothing = Nothing(why="it was refused")
    file = os.environ.get("GITHUB_OUTPUT")
    try:
        decision = _decided()
    except AssayError:
        if file:
            outputs.write(Path(file), outputs.of_request(nothing))
        raise
    if file:
        outputs.write(Path(file), outputs.of_request(decision))
    if as_json:
        click.echo(json.dumps(None if isinstance(decision, Nothing) else decision.as_json(), indent=2))
    click.echo(_said(decision), err=as_json)
    return 0


def _decided() -> Request | Nothing:
    from assay.github import account, event
    from assay.github.asking import Asking
    from assay.github.request import decide

    def github() -> Asked:
        return Asking(account.api(os.environ))

    return decide(event.read(os.environ), account.inputs(os.environ), account.named(os.environ), github)


def _said(found: Request | Nothing) -> str:
    from assay.github.request import Nothing

    if isinstance(found, Nothing):
        return f"Nothing is measured: {found.why}."
    by = f", asked for by {found.asked_by}" if found.asked_by else ""
    where = f" of {found.repository}"
    return f"To be measured on {', '.join(found.gpu_types)}: commit {found.commit}{where}{by}."
