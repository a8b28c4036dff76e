"""Whether what is to be measured is there in both revisions, looked at before anything is started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.launch.sources import import_roots, moved, surroundings, workplace
from assay.workloads.function import FunctionWorkload, is_function_spec

if TYPE_CHECKING:
    from assay.core.plan import Source
    from assay.experiments.gate.options import GateOptions
    from assay.launch.checkouts import Revision


def code(options: GateOptions) -> None:
    """Make sure that both checkouts have the folder we are in and the function that is measured.

    What a set-up may still make is not missed here.

    Raises:
        BadInput: A revision has it not; the sentence names the revision.
    """
    for revision in options.checkouts.revisions:
        source = options.checkouts.source(revision)
        if not workplace(source).is_dir():
            raise BadInput(f"There is no folder {options.checkouts.folder} in the {revision.words}.")
        if is_function_spec(options.subject.workload):
            _refuse_assay(source)
            _function(options, revision, source)


def command(options: GateOptions) -> None:
    """Make sure that the command can be started in both checkouts, once they are set up."""
    if options.subject.command is None:
        return
    word = options.subject.command.argv[0]
    for revision in options.checkouts.revisions:
        source = options.checkouts.source(revision)
        path = surroundings(source, os.environ).get("PATH")
        executable = workplace(source) / word if os.sep in word else shutil.which(word, path=path)
        if executable is None or not os.access(executable, os.X_OK):
            raise BadInput(f"There is no command {word!r} in the {revision.words}.")


def _refuse_assay(source: Source) -> None:
    """Say so where the repository is Assay's own, whose code the worker has imported already."""
    if any(Path(root, "assay", "worker", "main.py").is_file() for root in import_roots(source)):
        raise BadInput(
            "This is Assay's own repository, and its functions would be timed by a worker that has imported another "
            "Assay; name a command that imports it: -- python -c '…'."
        )


def _function(options: GateOptions, revision: Revision, source: Source) -> None:
    module_path, _, name = options.subject.workload.rpartition(":")
    file = workplace(source) / module_path if module_path.endswith(".py") else _file_of(module_path, source)
    if file is None or not file.is_file():
        if options.checkouts.setup is None:
            raise BadInput(f"There is no {module_path} in the {revision.words}{_hint(options, module_path)}.")
        return
    try:
        FunctionWorkload(f"{file}:{name}").make_sure(options.subject.params)
    except BadInput as error:
        message = str(error).replace(f"{source.checkout}{os.sep}", "")
        raise BadInput(f"In the {revision.words}: {message}") from None


def _file_of(module: str, source: Source) -> Path | None:
    """Return the file that a module of the checkout is in; null where it has none."""
    python_path = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    roots = [workplace(source), *map(Path, import_roots(source))]
    roots += [m for entry in python_path if (m := moved(entry, source)).is_relative_to(source.checkout)]
    inside = module.replace(".", os.sep)
    candidates = (root / name for root in roots for name in (f"{inside}.py", f"{inside}{os.sep}__init__.py"))
    return next((path for path in candidates if path.is_file()), None)


def _hint(options: GateOptions, place: str) -> str:
    """Say what to do about a file that the working tree has and a revision has not."""
    if place.endswith(".py") and Path(options.checkouts.repository, options.checkouts.folder, place).is_file():
        return "; commit it, or copy it out of the repository and name it from there: then both take the same file"
    return "" if place.endswith(".py") else "; where it is installed first, --setup does it"
