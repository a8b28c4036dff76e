"""Two revisions of a repository, each in its own git worktree, under a lease that removes it.

    lease ──▶ git worktree add ──▶ --setup in it ──▶ its interpreter ──▶ workers in it ──▶ release: worktree removed

Every process started for a worktree carries the mark of its lease, so that the clean-up ends it before it removes the
folder. The folders of two revisions have names of equal length: the length of a path shifts the data after it in
memory.

A worker of a checkout runs the code of this Assay, under the checkout's interpreter; everything else is imported
from the checkout first, and then as that interpreter finds it.
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
from assay.core.errors import MachineCannot
from assay.core.files import home_folder, translate_os_errors
from assay.core.processes import mark_environment
from assay.core.values import SourceCheckout, Value
from assay.launch.worktrees import GitError, drop_repository_variables, run_git
from assay.workloads.command import describe_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


PACKAGE = Path(__file__).resolve().parents[1]
EXTERNAL_INTERPRETER = PACKAGE / "worker" / "external_interpreter.py"
"""The worker as a file that any interpreter can run, with or without Assay installed."""


def worker_command(source: SourceCheckout) -> list[str]:
    """Return the start of a worker's command line."""
    return [source.interpreter, "-P", str(EXTERNAL_INTERPRETER)]


def working_folder(source: SourceCheckout) -> Path:
    """Return the working directory of a worker and its commands."""
    return Path(source.checkout, source.folder)


def import_roots(source: SourceCheckout) -> list[str]:
    """Return the folders of a checkout that modules are imported from, in search order."""
    return [str(path) for path in (Path(source.checkout, "src"), Path(source.checkout)) if path.is_dir()]


def relocate_path(entry: Path, source: SourceCheckout) -> Path:
    """Return a path with the working tree replaced by the checkout that stands in for it."""
    if source.instead_of is None or not entry.is_relative_to(source.instead_of):
        return entry
    if entry.is_relative_to(source.checkout):
        return entry
    return Path(source.checkout, entry.relative_to(source.instead_of))


def checkout_environment(source: SourceCheckout, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a checkout's own programs.

    Variables that name a git repository are dropped, a virtual environment's programs come first, and ``PYTHONPATH``
    entries in the working tree are redirected to the checkout.
    """
    environment = drop_repository_variables(variables)
    entries = [Path(entry).absolute() for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    roots = [*import_roots(source), *(str(relocate_path(entry, source)) for entry in entries)]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(roots))
    programs = Path(source.interpreter).parent
    if (programs.parent / "pyvenv.cfg").is_file():
        environment["VIRTUAL_ENV"] = str(programs.parent)
        environment["PATH"] = os.pathsep.join(filter(None, [str(programs), environment.get("PATH")]))
    return environment


VENV_INTERPRETERS = (".venv/bin/python", "venv/bin/python")
"""Where a set-up usually leaves its interpreter."""

TAIL_LINES = 15
SHORT_COMMIT_LENGTH = 10
"""Abbreviated length of a commit's hash."""

OLDEST_PYTHON = (3, 11)
REQUIRED_MODULES = ("numpy", "scipy", "pydantic")
"""The modules that a worker imports; the code of Assay itself comes from this installation."""

INTERPRETER_PROBE = f"""
import importlib, sys
seen = sys.version_info[:2]
if seen < {OLDEST_PYTHON}:
    sys.exit("it is Python %d.%d, and Assay needs %d.%d or later" % (seen + {OLDEST_PYTHON}))
missing = []
for name in {REQUIRED_MODULES}:
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(name)
if missing:
    sys.exit("it cannot import " + ", ".join(missing) + ", which Assay needs; let --setup install gpu-assay too")
"""
"""Checks the interpreter of a set-up; readable by any Python."""


class Revision(Value):
    """One of the two revisions: its name, ref, commit and checkout."""

    name: Literal["base", "head"]
    ref: str
    commit: str
    checkout: str
    interpreter: str

    @property
    def title(self) -> str:
        """A readable name: ``base revision (main, 1a2b3c4d5e)``."""
        short = self.commit[:SHORT_COMMIT_LENGTH]
        return f"{self.name} revision ({short if self.commit.startswith(self.ref) else f'{self.ref}, {short}'})"


class Checkouts(Value):
    """Two revisions of one repository, and the command that sets up an environment for each."""

    repository: str
    folder: str = Field(description="Where in a checkout workers work; empty: the checkout itself.")
    revisions: tuple[Revision, Revision]
    setup: str | None = None
    python: str | None = Field(
        default=None, description="Where the set-up leaves an interpreter, within a checkout; null: where most do."
    )

    def source(self, revision: Revision) -> SourceCheckout:
        """Return where workers of a revision take their code from."""
        return SourceCheckout(
            checkout=revision.checkout, interpreter=revision.interpreter, folder=self.folder, instead_of=self.repository
        )


def checkout_path(token: str, name: str) -> Path:
    """Return the path where a revision is checked out."""
    return home_folder() / "gates" / f"{token}-{name}"


@contextmanager
def check_out(checkouts: Checkouts) -> Iterator[dict[str, dict[str, str]]]:
    """Check out the revisions for the duration of a ``with`` block; yields the marks of each, by its name."""
    with ExitStack() as stack:
        yield {r.name: stack.enter_context(_check_out_revision(checkouts, r)) for r in checkouts.revisions}


@contextmanager
def _check_out_revision(checkouts: Checkouts, revision: Revision) -> Iterator[dict[str, str]]:
    path, token = Path(revision.checkout), leases.new_lease_id()
    with translate_os_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise MachineCannot(f"{path} is there already; `assay reap` removes what a run that was killed left behind.")
    with leases.hold_lease(
        "worktree",
        f"the checkout of the {revision.title} in {path}",
        "assay.launch.worktrees:remove_checkout",
        {"token": token, "repository": checkouts.repository, "checkout": str(path)},
    ):
        add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", "--quiet", str(path), revision.commit)
        try:
            run_git(Path(checkouts.repository), *add, extra=mark_environment(token))
        except GitError as error:
            raise MachineCannot(f"The {revision.title} cannot be checked out: {error}.") from None
        yield mark_environment(token)


def set_up_checkouts(
    checkouts: Checkouts, marked: Mapping[str, Mapping[str, str]], say: Callable[[str], None] = lambda _: None
) -> Checkouts:
    """Run the set-up in each checkout; return the checkouts with the interpreters for their workers.

    ``say`` receives progress messages.

    Raises:
        MachineCannot: A revision does not install, or its interpreter cannot run a worker.
    """
    revisions = []
    for revision in checkouts.revisions:
        if checkouts.setup is not None:
            say(f"Setting up the {revision.title} …")
            _run_setup(checkouts.setup, revision, marked[revision.name])
        with_interpreter = revision.model_copy(update={"interpreter": _find_interpreter(revision, checkouts.python)})
        if with_interpreter.interpreter != sys.executable:
            _check_interpreter(checkouts, with_interpreter)
        revisions.append(with_interpreter)
    return checkouts.model_copy(update={"revisions": tuple(revisions)})


def _run_setup(command: str, revision: Revision, mark: Mapping[str, str]) -> None:
    """Run a set-up command; its output is reported only if it fails."""
    with tempfile.TemporaryFile() as printed:
        result = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=revision.checkout,
            env={**drop_repository_variables(os.environ), **mark},
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
    raise MachineCannot(
        f"The {revision.title} does not install: `{command}` {describe_exit(result.returncode)}{output}"
    )


def _find_interpreter(revision: Revision, python: str | None) -> str:
    """Return the interpreter of a checkout: the given one, one that the set-up created, or this one."""
    if python is not None:
        interpreter = Path(revision.checkout, python)
        if not os.access(interpreter, os.X_OK):
            raise MachineCannot(f"There is no interpreter {python} in the {revision.title}; does --setup make it?")
        return str(interpreter)
    candidates = (Path(revision.checkout, name) for name in VENV_INTERPRETERS)
    return next((str(path) for path in candidates if os.access(path, os.X_OK)), sys.executable)


def _check_interpreter(checkouts: Checkouts, revision: Revision) -> None:
    """Check that an interpreter can run a worker."""
    source = checkouts.source(revision)
    try:
        result = subprocess.run(
            [revision.interpreter, "-c", INTERPRETER_PROBE],
            cwd=revision.checkout,
            env=checkout_environment(source, os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise MachineCannot(f"{revision.interpreter} cannot be started: {error.strerror}.") from None
    if result.returncode != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"it ended with exit code {result.returncode}"
        raise MachineCannot(f"The interpreter of the {revision.title} cannot run a worker: {reason}.")
