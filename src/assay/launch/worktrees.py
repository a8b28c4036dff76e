"""Run git, and clean up what leases guard: worker processes with their scratch folders, and worktrees.

The guardian loads this module, so that it imports nothing heavy.
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
"""What git tells its hooks about the repository they run in; a checkout is another one."""


class GitError(BadInput):
    """Git did not do what it was asked; its own words say why."""


def drop_repository_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git looks for its repository in the folder it is called in."""
    return {name: value for name, value in variables.items() if name not in REPOSITORY_VARIABLES}


def run_git(folder: Path, *arguments: str, extra: Mapping[str, str] | None = None) -> str:
    """Return what git prints when it is asked in a folder, without the last newline.

    Raises:
        GitError: It ended badly; its own words, without its "fatal:".
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
        raise GitError(_error_text(result.stderr.decode(errors="replace")) or f"exit code {result.returncode}")
    return result.stdout.decode(errors="replace").rstrip("\n")


def _error_text(stderr: str) -> str:
    """Return what git complained about, on one line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    messages = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return " ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in messages[:3]).rstrip(".")


def end_worker(token: str, scratch: str) -> None:
    """End a worker and all it started, then remove what it left in its scratch folder; safe to do twice."""
    kill_marked(token)
    shutil.rmtree(scratch, ignore_errors=True)


def remove_checkout(token: str, repository: str, checkout: str) -> None:
    """End what was started for a checkout, remove it, and have git forget it; safe to do twice.

    Git is asked first. What it leaves of a checkout whose making was cut off is found by its name, which is nobody
    else's; worktrees of the user's that are out of sight are left alone, as ``git worktree prune`` would not.
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
