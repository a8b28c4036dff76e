"""Whether what is timed is the code of the checkout that it is said to be, and nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from assay.core.plan import Source, Subject

PACKAGE = Path(__file__).resolve().parents[1]


def make_sure(subject: Subject) -> None:
    """Make sure that a function of another checkout, and what it imported so far, is not that of the working tree.

    An editable install may come before the path, and a module that the checkout has not may still be found in the
    working tree: then both revisions would be timed with the same code.

    Raises:
        MachineCannot: It is not.
    """
    source = subject.source
    if source is None or subject.command is not None:
        return
    stray = strayed(source, _own(subject))
    if stray is not None:
        name, path = stray
        raise MachineCannot(
            f"{name} was imported from {path} and not from the checkout {source.checkout}: an installed package comes "
            "in its way; give each revision an environment of its own with --setup"
        )


def _own(subject: Subject) -> str | None:
    """Return the module that a function is in; null where it is named by its file, or is a workload of Assay's."""
    module, colon, _ = subject.workload.rpartition(":")
    return module if colon and not module.endswith(".py") else None


def strayed(source: Source, own: str | None) -> tuple[str, str] | None:
    """Return a module that is not from where it should be, and where it is from; null where all are."""
    checkout = Path(source.checkout).resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(checkout):
            continue
        if name == own or _of_the_working_tree(path, source):
            return name, file
    return None


def _of_the_working_tree(path: Path, source: Source) -> bool:
    """Return whether a file is one of the working tree's own; an environment that lies in it is not."""
    if source.instead_of is None or not path.is_relative_to(Path(source.instead_of).resolve()):
        return False
    apart = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), PACKAGE)
    return not any(path.is_relative_to(folder.resolve()) for folder in apart)
