"""What ``assay github pull-request`` and ``assay github comment`` share: which results, of which repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.experiments.threshold.spec import Wanted

FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")
FILE = click.Path(path_type=Path)


def about_results(function: FunctionT) -> FunctionT:
    """Add the argument and the options that say what was measured and where it belongs."""
    for add in (
        click.option("--commit", metavar="SHA", help="What was measured."),
        click.option("--repository", metavar="OWNER/NAME", help="[default: GITHUB_REPOSITORY]"),
        click.option(
            "--base", metavar="BRANCH", help="The branch that has the configuration, and is to get new values."
        ),
        click.option("--trusted", type=FILE, metavar="DIR", help="Where --thresholds is looked for.  [default: here]"),
        click.option("--thresholds", metavar="FILE", help="What may be written.  [default: both NSA branches]"),
        click.option(
            "--config", default="configs/base.yaml", show_default=True, help="The configuration, within the repository."
        ),
        click.argument("results", type=FILE, nargs=-1, required=True),
    ):
        function = add(function)
    return function


def wanted(given: Mapping[str, Any]) -> tuple[Wanted, ...]:
    """Return what may be written."""
    from assay.experiments.threshold.spec import DEFAULT, load

    file: str | None = given["thresholds"]
    return load((given["trusted"] or Path()) / file if file else DEFAULT)


def checked_commit(text: str | None) -> str | None:
    """Return a commit; null where none is given.

    Raises:
        BadInput: It is none.
    """
    import re

    from assay.core.errors import BadInput
    from assay.github.event import SHA

    if text and re.fullmatch(SHA, text) is None:
        raise BadInput("--commit takes the whole number of a commit, in 40 small hexadecimal digits.")
    return text or None


def checked_base(text: str | None) -> str | None:
    """Return a branch; null where none is given.

    Raises:
        BadInput: It is none.
    """
    import re

    from assay.core.errors import BadInput
    from assay.github.event import BRANCH

    if text and re.fullmatch(BRANCH, text) is None:
        raise BadInput("--base is not the name of a branch.")
    return text or None
