"""A small git repository with two commits, in which the later one is slower by a known amount."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = """import time

MS = {ms}


def work():
    time.sleep(MS / 1000)
"""

BENCH = """from sample.core import MS, work

if __name__ == "__main__":
    print(f"took {MS:.1f} ms at {1000 / MS:.3f} calls/s")
"""
IDENTITY = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip


def git(folder: Path, *words: str) -> str:
    """Return what git prints in a folder."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **IDENTITY}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    """Commit everything; return the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def sample(folder: Path, *, base_ms: float = 20, head_ms: float = 21) -> Path:
    """Make a repository whose tags ``base`` and ``head`` are two commits with a call of so many milliseconds."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / ".gitignore").write_text("runs/\n__pycache__/\n")
    package = folder / "src" / "sample"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (folder / "bench.py").write_text(BENCH)
    for tag, ms in (("base", base_ms), ("head", head_ms)):
        (package / "core.py").write_text(PACKAGE.format(ms=ms))
        commit(folder, f"calls of {ms} ms")
        git(folder, "tag", tag)
    return folder


def worktrees(folder: Path) -> list[str]:
    """Return the checkouts of a repository, and what git still keeps of any."""
    listed = [line for line in git(folder, "worktree", "list", "--porcelain").splitlines() if line.startswith("wor")]
    kept = folder / ".git" / "worktrees"
    return [*listed, *(path.name for path in kept.iterdir())] if kept.is_dir() else listed
