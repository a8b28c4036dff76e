"""Why the energy of a window is not reported: a code for programs, and a sentence for people."""

from __future__ import annotations

from enum import StrEnum

from assay.core.errors import MachineCannot


class RefusalCode(StrEnum):
    """Why a window has no joules."""

    NO_READINGS = "no_readings"
    NO_SENSOR = "no_sensor"
    COUNTER_RESET = "counter_reset"
    TOO_FEW_TICKS = "too_few_ticks"
    NOT_COVERED = "not_covered"
    """The sensor stopped answering within the window, or was read too rarely."""
    TOO_WIDE = "too_wide"
    """The interval is wider than the precision asked for."""
    NO_ENERGY = "no_energy"
    NO_CALLS = "no_calls"


class Refused(MachineCannot):
    """The readings do not give the energy. Its text is the reason, without a full stop.

    ``needed_s`` is a window length that would be long enough; null where no length is, or it is not known.
    """

    def __init__(self, code: RefusalCode, reason: str, needed_s: float | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.needed_s = needed_s
