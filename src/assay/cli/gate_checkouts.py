"""The revisions that a gate compares.

Resolve them with git, and check before measuring that both contain what is measured.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.launch.checkouts import (
    Checkouts,
    Revision,
    checkout_environment,
    checkout_path,
    import_roots,
    relocate_path,
    working_folder,
)
from assay.launch.worktrees import GitError, run_git
from assay.workloads.function import FunctionWorkload, is_function_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import SourceCheckout
    from assay.experiments.gate import GateOptions


def resolve_checkouts(flags: Mapping[str, Any]) -> tuple[Checkouts, tuple[str, ...]]:
    """Return where the two revisions will be checked out, and what is to be said of them."""
    from assay.core.leases import new_lease_id

    if flags["base"] is None:
        raise BadInput("--base is missing: name the baseline revision, such as --base main.")
    if flags["python"] is not None and flags["setup"] is None:
        raise BadInput("--python needs --setup: it names the interpreter that --setup makes in each checkout.")
    repository, folder = current_repository()
    token = new_lease_id()[:8]
    revisions = {
        name: Revision(
            name=name,
            ref=flags[name],
            commit=commit_of(repository, flags[name]),
            checkout=str(checkout_path(token, name)),
            interpreter=sys.executable,
        )
        for name in ("base", "head")
    }
    base, head = revisions["base"], revisions["head"]
    planned = Checkouts(
        repository=str(repository), folder=folder, revisions=(base, head), setup=flags["setup"], python=flags["python"]
    )
    return planned, tuple(notes(repository, planned))


def current_repository() -> tuple[Path, str]:
    """Return the repository that we are in, and where in it."""
    try:
        top = run_git(Path.cwd(), "rev-parse", "--show-toplevel")
        prefix = run_git(Path.cwd(), "rev-parse", "--show-prefix")
    except GitError as error:
        raise BadInput(f"{Path.cwd()} is not in a git repository: {error}.") from None
    return Path(top).resolve(), prefix.rstrip("/")


def commit_of(repository: Path, ref: str) -> str:
    """Return the commit that a word means."""
    try:
        return run_git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except GitError:
        raise BadInput(f"Revision {ref!r} not found: {_why_not(repository, ref)}.") from None


def _why_not(repository: Path, ref: str) -> str:
    """Return why a word means no commit, as git says it."""
    try:
        run_git(repository, "rev-list", "--max-count=1", "--end-of-options", ref, "--")
        why = "it is not one commit"
    except GitError as error:
        why = str(error)
    if run_git(repository, "rev-parse", "--is-shallow-repository") == "true":
        why += "; this clone is shallow, and `git fetch --unshallow` gets the rest"
    return why


def notes(repository: Path, planned: Checkouts) -> list[str]:
    """Return what whoever reads the result should know of the revisions."""
    base, head = planned.revisions
    messages = []
    if base.commit == head.commit:
        messages.append("base and head are the same commit, so that this shows what the machine itself does (A/A)")
    if is_dirty(repository) and commit_of(repository, "HEAD") in {base.commit, head.commit}:
        messages.append("the working tree has changes that are not committed, and they are not measured")
    if "submodule" not in (planned.setup or "") and any(_has_submodules(repository, r) for r in (base, head)):
        messages.append("submodules are not checked out; --setup 'git submodule update --init' does it")
    return messages


def is_dirty(repository: Path) -> bool:
    """Return whether files that git knows differ from the last commit."""
    return bool(run_git(repository, "status", "--porcelain", "--untracked-files=no"))


def _has_submodules(repository: Path, revision: Revision) -> bool:
    try:
        run_git(repository, "cat-file", "-e", f"{revision.commit}:.gitmodules")
    except GitError:
        return False
    return True


def check_code(options: GateOptions) -> None:
    """Make sure that both checkouts have the folder we are in and the function that is measured.

    What a set-up may still make is not missed here.

    Raises:
        BadInput: A revision has it not; the sentence names the revision.
    """
    for revision in options.checkouts.revisions:
        source = options.checkouts.source(revision)
        if not working_folder(source).is_dir():
            raise BadInput(f"Folder {options.checkouts.folder} does not exist in the {revision.title}.")
        if is_function_spec(options.subject.workload):
            _refuse_assay(source)
            _check_function(options, revision, source)


def check_command(options: GateOptions) -> None:
    """Make sure that the command can be started in both checkouts, once they are set up."""
    if options.subject.command is None:
        return
    word = options.subject.command.argv[0]
    for revision in options.checkouts.revisions:
        source = options.checkouts.source(revision)
        path = checkout_environment(source, os.environ).get("PATH")
        executable = working_folder(source) / word if os.sep in word else shutil.which(word, path=path)
        if executable is None or not os.access(executable, os.X_OK):
            raise BadInput(f"Command {word!r} not found in the {revision.title}.")


def _refuse_assay(source: SourceCheckout) -> None:
    """Say so where the repository is Assay's own, whose code the worker has imported already."""
    if any(Path(root, "assay", "worker", "main.py").is_file() for root in import_roots(source)):
        raise BadInput(
            "This is Assay's own repository, and its functions would be timed by a worker that has imported another "
            "Assay; name a command that imports it: -- python -c '…'."
        )


def _check_function(options: GateOptions, revision: Revision, source: SourceCheckout) -> None:
    module_path, _, name = options.subject.workload.rpartition(":")
    file = working_folder(source) / module_path if module_path.endswith(".py") else _module_file(module_path, source)
    if file is None or not file.is_file():
        if options.checkouts.setup is None:
            raise BadInput(
                f"There is no {module_path} in the {revision.title}{_missing_file_hint(options, module_path)}."
            )
        return
    try:
        FunctionWorkload(f"{file}:{name}").check_source(options.subject.params)
    except BadInput as error:
        message = str(error).replace(f"{source.checkout}{os.sep}", "")
        raise BadInput(f"In the {revision.title}: {message}") from None


def _module_file(module: str, source: SourceCheckout) -> Path | None:
    """Return the file that a module of the checkout is in; null where it has none."""
    python_path = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    roots = [working_folder(source), *map(Path, import_roots(source))]
    roots += [m for entry in python_path if (m := relocate_path(entry, source)).is_relative_to(source.checkout)]
    inside = module.replace(".", os.sep)
    candidates = (root / name for root in roots for name in (f"{inside}.py", f"{inside}{os.sep}__init__.py"))
    return next((path for path in candidates if path.is_file()), None)


def _missing_file_hint(options: GateOptions, module_path: str) -> str:
    """Say what to do about a file that the working tree has and a revision has not."""
    if (
        module_path.endswith(".py")
        and Path(options.checkouts.repository, options.checkouts.folder, module_path).is_file()
    ):
        return "; commit it, or copy it out of the repository and name it from there: then both take the same file"
    return "" if module_path.endswith(".py") else "; where it is installed first, --setup does it"
