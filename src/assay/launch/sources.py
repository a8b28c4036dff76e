"""How a worker of another checkout is started: by whose interpreter, where, and what it finds on its paths.

The code of the worker is always this very Assay's, wherever it is installed; everything else is imported from the
checkout first, and then as that interpreter finds it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from assay.launch.git import without_repository

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.plan import Source

PACKAGE = Path(__file__).resolve().parents[1]
ABROAD = PACKAGE / "worker" / "abroad.py"
"""The worker as a file that any interpreter runs, with Assay installed there or not."""


def words(source: Source) -> list[str]:
    """Return the beginning of the command line of a worker."""
    return [source.interpreter, "-P", str(ABROAD)]


def workplace(source: Source) -> Path:
    """Return the folder that a worker and its commands work in."""
    return Path(source.checkout, source.folder)


def import_roots(source: Source) -> list[str]:
    """Return the folders of a checkout that modules are imported from, the first first."""
    return [str(path) for path in (Path(source.checkout, "src"), Path(source.checkout)) if path.is_dir()]


def moved(entry: Path, source: Source) -> Path:
    """Return a path with the checkout in the place of the working tree that it stands in for."""
    if source.instead_of is None or not entry.is_relative_to(source.instead_of):
        return entry
    if entry.is_relative_to(source.checkout):
        return entry
    return Path(source.checkout, entry.relative_to(source.instead_of))


def surroundings(source: Source, variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as a checkout's own programs see it.

    What names a git repository is left out, a virtual environment's programs are found first, and what is imported from
    the working tree by ``PYTHONPATH`` is imported from the checkout.
    """
    environment = without_repository(variables)
    entries = [Path(entry).absolute() for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    roots = [*import_roots(source), *(str(moved(entry, source)) for entry in entries)]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(roots))
    programs = Path(source.interpreter).parent
    if (programs.parent / "pyvenv.cfg").is_file():
        environment["VIRTUAL_ENV"] = str(programs.parent)
        environment["PATH"] = os.pathsep.join(filter(None, [str(programs), environment.get("PATH")]))
    return environment
