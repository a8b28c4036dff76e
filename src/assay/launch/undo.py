"""How workers and checkouts are undone: everything that carries their mark is ended, and their folder goes."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from assay.core.errors import BadInput, MachineCannot
from assay.core.processes import kill_marked
from assay.launch.git import git


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
            git(root, "worktree", "remove", "--force", "--force", checkout)
    shutil.rmtree(checkout, ignore_errors=True)
    if Path(checkout).exists():
        raise MachineCannot(f"{checkout} cannot be removed.")
    if root.is_dir():
        with contextlib.suppress(BadInput):
            git_folder = root / git(root, "rev-parse", "--git-common-dir")
            shutil.rmtree(git_folder / "worktrees" / Path(checkout).name, ignore_errors=True)
