"""The two questions that a request is decided by, asked of GitHub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.github.api import in_path, told
from assay.github.event import LOGIN, change_of
from assay.github.refusals import NotThere

if TYPE_CHECKING:
    from assay.github.api import Api
    from assay.github.event import Change

WRITERS = frozenset({"admin", "write"})
"""As GitHub tells it: who maintains a repository is told to write to it, who only triages to read it."""


@dataclass(frozen=True)
class Asking:
    """Asks a repository."""

    api: Api

    def may_write(self, login: str) -> bool:
        """Return whether a person may write to the repository; a stranger, or one who is gone, may not."""
        if re.fullmatch(LOGIN, login) is None:
            return False
        try:
            permission = self.api.get(f"/collaborators/{in_path(login)}/permission", "ask who may write")
        except NotThere:
            return False
        return told(permission, "permission") in WRITERS

    def change(self, number: int) -> Change:
        """Return a pull request as it is at this moment."""
        return change_of(self.api.get(f"/pulls/{number}", "look at the pull request"))
