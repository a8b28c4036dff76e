"""Revisions of a repository side by side: each in a git worktree of its own, under a lease that removes it.

    lease ──▶ git worktree add ──▶ --setup in it ──▶ which interpreter ──▶ workers in it ──▶ release: worktree removed

Whatever is started for a worktree carries the mark of its lease, so that the undo ends it before it removes the folder.
The folders of two revisions have names of the same length: how long a path is moves what lies behind it in memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core import leases
from assay.core.durable import friendly_os_errors
from assay.core.errors import MachineCannot
from assay.core.home import home
from assay.core.plan import Source
from assay.core.processes import marks
from assay.core.values import Value
from assay.launch import sources
from assay.launch.git import GitRefuses, git, without_repository
from assay.workloads.command import ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ENVIRONMENTS = (".venv/bin/python", "venv/bin/python")
"""Where a set-up leaves an interpreter of its own, unless it is said where."""

TAIL_LINES = 15
SHORT = 10
"""Of a commit's name, for people."""

OLDEST_PYTHON = (3, 11)
NEEDED = ("numpy", "scipy", "pydantic", "psutil")
"""What a worker imports; the code of Assay itself comes from here."""

PROBE = f"""
import importlib, sys
seen = sys.version_info[:2]
if seen < {OLDEST_PYTHON}:
    sys.exit("it is Python %d.%d, and Assay needs %d.%d or later" % (seen + {OLDEST_PYTHON}))
missing = []
for name in {NEEDED}:
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(name)
if missing:
    sys.exit("it cannot import " + ", ".join(missing) + ", which Assay needs; let --setup install gpu-assay too")
"""
"""What an interpreter of a set-up is tried out with; any Python can read it."""


class Revision(Value):
    """One of the two revisions: what it was called, which commit that is, and where it is checked out."""

    name: Literal["base", "head"]
    ref: str
    commit: str
    checkout: str
    interpreter: str

    @property
    def words(self) -> str:
        """The revision for people: ``base revision (main, 1a2b3c4d5e)``."""
        short = self.commit[:SHORT]
        return f"{self.name} revision ({short if self.commit.startswith(self.ref) else f'{self.ref}, {short}'})"


class Checkouts(Value):
    """Two revisions of one repository, and the command that gives each an environment of its own."""

    repository: str
    folder: str = Field(description="Where in a checkout workers work; empty: the checkout itself.")
    revisions: tuple[Revision, Revision]
    setup: str | None = None
    python: str | None = Field(
        default=None, description="Where the set-up leaves an interpreter, within a checkout; null: where most do."
    )

    def source(self, revision: Revision) -> Source:
        """Return where workers of a revision take their code from."""
        return Source(
            checkout=revision.checkout,
            interpreter=revision.interpreter,
            folder=self.folder,
            instead_of=self.repository,
        )


def place_for(token: str, name: str) -> Path:
    """Return where a revision is checked out."""
    return home() / "gates" / f"{token}-{name}"


@contextmanager
def checked_out(checkouts: Checkouts) -> Iterator[dict[str, dict[str, str]]]:
    """Check the revisions out for the length of a ``with`` block; gives the marks of each, by its name."""
    with ExitStack() as stack:
        marks_by_name: dict[str, dict[str, str]] = {}
        for revision in checkouts.revisions:
            marks_by_name[revision.name] = stack.enter_context(_one(checkouts, revision))
        yield marks_by_name


@contextmanager
def _one(checkouts: Checkouts, revision: Revision) -> Iterator[dict[str, str]]:
    path, token = Path(revision.checkout), leases.new_id()
    with friendly_os_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise MachineCannot(f"{path} is there already; `assay reap` removes what a run that was killed left behind.")
    with leases.held(
        "worktree",
        f"the checkout of the {revision.words} in {path}",
        "assay.launch.undo:remove_checkout",
        {"token": token, "repository": checkouts.repository, "checkout": str(path)},
    ):
        add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", "--quiet", str(path), revision.commit)
        try:
            git(Path(checkouts.repository), *add, extra=marks(token))
        except GitRefuses as error:
            raise MachineCannot(f"The {revision.words} cannot be checked out: {error}.") from None
        yield marks(token)


def set_up(
    checkouts: Checkouts, marked: Mapping[str, Mapping[str, str]], say: Callable[[str], None] = lambda _: None
) -> Checkouts:
    """Run the set-up in each checkout; return the checkouts with the interpreters that workers are started with.

    ``say`` is told what is done.

    Raises:
        MachineCannot: A revision does not install, or its interpreter cannot run a worker.
    """
    ready = []
    for revision in checkouts.revisions:
        if checkouts.setup is not None:
            say(f"Setting up the {revision.words} …")
            _run_set_up(checkouts.setup, revision, marked[revision.name])
        chosen = revision.model_copy(update={"interpreter": _interpreter(revision, checkouts.python)})
        if chosen.interpreter != sys.executable:
            _try_out(checkouts, chosen)
        ready.append(chosen)
    base, head = ready
    return checkouts.model_copy(update={"revisions": (base, head)})


def _run_set_up(command: str, revision: Revision, mark: Mapping[str, str]) -> None:
    """Run a set-up to its end; what it prints is told only where it fails."""
    with tempfile.TemporaryFile() as printed:
        result = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=revision.checkout,
            env={**without_repository(os.environ), **mark},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if result.returncode == 0:
            return
        printed.seek(0)
        lines = printed.read().decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
    output = ":" + "".join(f"\n  {line}" for line in lines) if lines else ", and printed nothing."
    raise MachineCannot(f"The {revision.words} does not install: `{command}` {ended(result.returncode)}{output}")


def _interpreter(revision: Revision, python: str | None) -> str:
    """Return the interpreter of a checkout: the one that is said, one that a set-up made there, or this one."""
    if python is not None:
        interpreter = Path(revision.checkout, python)
        if not os.access(interpreter, os.X_OK):
            raise MachineCannot(f"There is no interpreter {python} in the {revision.words}; does --setup make it?")
        return str(interpreter)
    made = (Path(revision.checkout, name) for name in ENVIRONMENTS)
    return next((str(path) for path in made if os.access(path, os.X_OK)), sys.executable)


def _try_out(checkouts: Checkouts, revision: Revision) -> None:
    """Make sure that an interpreter can run a worker."""
    source = checkouts.source(revision)
    try:
        result = subprocess.run(
            [revision.interpreter, "-c", PROBE],
            cwd=revision.checkout,
            env=sources.surroundings(source, os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise MachineCannot(f"{revision.interpreter} cannot be started: {error.strerror}.") from None
    if result.returncode != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"it ended with exit code {result.returncode}"
        raise MachineCannot(f"The interpreter of the {revision.words} cannot run a worker: {reason}.")
