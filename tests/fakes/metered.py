"""What must hold of joules that are metered in real time, however busy the machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.core.results import Estimate, Missing

MISSED_TICKS = frozenset({"not_covered", "too_few_ticks", "too_wide"})
"""Why joules are refused where the recorder did not run often enough to see the sensor's ticks."""


def contains_true_energy(energy: Estimate | None, missing: Missing | None, true_j: float) -> bool:
    """Return whether the bounds contain the joules spent; false also where they are refused, then for missed ticks."""
    if energy is None:
        assert missing is not None
        assert missing.code in MISSED_TICKS, missing
        return False
    assert energy.low is not None
    assert energy.high is not None
    assert energy.low <= true_j <= energy.high
    return True
