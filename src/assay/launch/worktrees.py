"""Run git, and clean up resources under lease: worker processes with their scratch folders, and worktrees.

The guardian loads this module, so it imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.core.processes import kill_marked

if TYPE_CHECKING:
    from collections.abc import Mapping


REPOSITORY_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE", "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_WORK_TREE",
    }
)  # fmt: skip
"""Variables by which git describes the current repository to its hooks; a checkout is a different one."""


class GitError(BadInput):
    """A git command failed; the message is git's own."""


def drop_repository_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git uses the repository of its working directory."""
    return {name: value for name, value in variables.items() if name not in REPOSITORY_VARIABLES}


def run_git(folder: Path, *arguments: str, extra: Mapping[str, str] | None = None) -> str:
    """Return the output of a git command in a folder, without the last newline.

    Raises:
        GitError: It failed; with git's own message, without its "fatal:".
        MachineCannot: There is no git.
    """
    environment = {**drop_repository_variables(os.environ), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", **(extra or {})}
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            check=False,
        )
    except FileNotFoundError:
        raise MachineCannot("git is not installed here, and revisions are checked out with it.") from None
    if result.returncode != 0:
        lines = [line.strip() for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
        messages = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
        shown = " ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in messages[:3])
        raise GitError(shown.rstrip(".") or f"exit code {result.returncode}")
    return result.stdout.decode(errors="replace").rstrip("\n")


def end_worker(token: str, scratch: str) -> None:
    """End a worker and all its descendants, then remove its scratch folder; safe to call twice."""
    kill_marked(token)
    shutil.rmtree(scratch, ignore_errors=True)


def remove_checkout(token: str, repository: str, checkout: str) -> None:
    """End the processes started for a checkout, remove it, and let git forget it; safe to call twice.

    ``git worktree remove`` is tried first. What it leaves of an unfinished checkout is found by its unique name; the
    user's worktrees that are currently unreachable are left alone, which ``git worktree prune`` would remove.
    """
    kill_marked(token)
    root = Path(repository)
    if root.is_dir():
        with contextlib.suppress(BadInput):
            run_git(root, "worktree", "remove", "--force", "--force", checkout)
    shutil.rmtree(checkout, ignore_errors=True)
    if Path(checkout).exists():
        raise MachineCannot(f"{checkout} cannot be removed.")
    if root.is_dir():
        with contextlib.suppress(BadInput):
            git_folder = root / run_git(root, "rev-parse", "--git-common-dir")
            shutil.rmtree(git_folder / "worktrees" / Path(checkout).name, ignore_errors=True)
