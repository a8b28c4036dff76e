"""What git says of a repository, asked for in a folder and told in its own words where it refuses."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ABOUT_A_REPOSITORY = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE", "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_WORK_TREE",
    }
)  # fmt: skip
"""What git tells its hooks about the repository they run in; a checkout is another one."""


class GitRefuses(BadInput):
    """Git did not do what it was asked; its own words say why."""


def without_repository(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git looks for its repository in the folder it is called in."""
    return {name: value for name, value in variables.items() if name not in ABOUT_A_REPOSITORY}


def git(folder: Path, *words: str, extra: Mapping[str, str] | None = None) -> str:
    """Return what git prints when it is asked in a folder, without the last newline.

    Raises:
        GitRefuses: It ended badly; its own words, without its "fatal:".
        MachineCannot: There is no git.
    """
    environment = {**without_repository(os.environ), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", **(extra or {})}
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            check=False,
        )
    except FileNotFoundError:
        raise MachineCannot("git is not installed here, and revisions are checked out with it.") from None
    if result.returncode != 0:
        raise GitRefuses(_words(result.stderr.decode(errors="replace")) or f"exit code {result.returncode}")
    return result.stdout.decode(errors="replace").rstrip("\n")


def _words(said: str) -> str:
    """Return what git complained about, on one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return " ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in messages[:3]).rstrip(".")
