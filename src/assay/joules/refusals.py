"""Why the energy of a window is not reported: a code for programs, and a sentence for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from assay.core.results import EnergyRefusal


class Refused(MachineCannot):
    """The readings do not give the energy. Its text is the reason, without a full stop.

    ``needed_s`` is a window length that would be long enough; null where no length is, or it is not known.
    """

    def __init__(self, code: EnergyRefusal, reason: str, needed_s: float | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.needed_s = needed_s
