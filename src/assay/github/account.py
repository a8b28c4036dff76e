"""Which repository, by which token, and which run: from the environment that a workflow has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.github.api import PUBLIC, Api, checked_repository
from assay.github.request import DEFAULT_GPU, Inputs

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN = "GITHUB_TOKEN"  # noqa: S105 - the name of a variable


def api(environment: Mapping[str, str], repository: str | None = None) -> Api:
    """Return the API of a repository, by the token of the environment.

    Raises:
        MachineCannot: There is no token.
        BadInput: The token or the repository is none.
    """
    token = environment.get(TOKEN, "").strip()
    if not token:
        raise MachineCannot(
            f"{TOKEN} is not set. In a workflow write `env: {TOKEN}: ${{{{ github.token }}}}` at the step; elsewhere "
            "make a fine-grained token on GitHub under Settings → Developer settings."
        )
    if re.fullmatch(r"[!-~]{1,1000}", token) is None:
        raise BadInput(f"{TOKEN} holds characters that no token has.")
    return Api(named(environment, repository), token, environment.get("GITHUB_API_URL") or PUBLIC)


def named(environment: Mapping[str, str], repository: str | None = None) -> str:
    """Return the name of the repository.

    Raises:
        BadInput: None is named.
    """
    return checked_repository(repository or environment.get("GITHUB_REPOSITORY", ""))


def run_url(environment: Mapping[str, str]) -> str | None:
    """Return the address of the workflow's run; null outside of one."""
    server, run = environment.get("GITHUB_SERVER_URL", ""), environment.get("GITHUB_RUN_ID", "")
    if re.fullmatch(r"https://[A-Za-z0-9.-]{1,200}", server) is None or re.fullmatch(r"\d{1,20}", run) is None:
        return None
    return f"{server}/{named(environment)}/actions/runs/{run}"


def inputs(environment: Mapping[str, str]) -> Inputs:
    """Return what the workflow was given.

    Raises:
        BadInput: A switch is neither on nor off.
    """
    switch = environment.get("ASSAY_CREATE_PR", "").strip().lower()
    if switch not in {"", "true", "false"}:
        raise BadInput("ASSAY_CREATE_PR is true or false.")
    return Inputs(
        gpu_type=environment.get("ASSAY_GPU_TYPE") or None,
        create_pr=switch != "false",
        default_gpu=environment.get("ASSAY_DEFAULT_GPU") or DEFAULT_GPU,
    )
