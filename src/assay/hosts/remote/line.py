"""A line to another machine: what ssh, or a provider's own way to start programs, must be able to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class LineLost(MachineCannot):
    """The line broke, or never came to be; what was started there may go on."""


@dataclass(frozen=True)
class Said:
    """How a program there ended, and what it printed as far as nobody listened meanwhile."""

    code: int
    out: bytes
    err: bytes


class Line(Protocol):
    """A way to start programs on another machine.

    One that leads to something that only plays a provider's machine has ``stand_in = True``: what is measured there is
    called fake.
    """

    where: str
    """For people: "gpu1", "runpod pod 8f2a"."""

    def do(
        self,
        script: str,
        *,
        feed: Iterable[bytes] = (),
        out: Callable[[bytes], None] | None = None,
        err: Callable[[bytes], None] | None = None,
        within_s: float | None = None,
    ) -> Said:
        """Run a script of ``sh`` there to its end.

        Args:
            script: What the shell is to do; no secret is in it.
            feed: Its standard input, piece by piece.
            out: Told what it prints as it comes; null: it is kept and returned.
            err: Likewise.
            within_s: Ended after this long; null: never.

        Raises:
            LineLost: The line broke, could not be had, or the time is over.
        """
        ...
