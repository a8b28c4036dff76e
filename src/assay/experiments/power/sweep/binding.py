"""Whether a cap binds: whether the GPU would have done otherwise without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from assay.experiments.power.sweep.curve import Step
    from assay.experiments.power.sweep.options import SweepOptions

Binding = Literal["binds", "does not bind", "not clear"]

POWER_CAP = "power cap"
"""The throttle reason of a limit that binds."""
FREE_SHARE, HELD_SHARE = 0.01, 0.05
"""Of the time that the power cap held the clock back: as good as never, and more than now and then."""
NEAR_LIMIT = 0.99
"""Power above this share of a limit is at the limit."""
BELOW_CLOCK = 0.985
"""A clock below this share of a locked one was held back by something else."""


def binding(options: SweepOptions, step: Step, as_found: Step) -> Binding | None:
    """Return whether a step's cap binds; null for what is no cap."""
    if step.setting is None:
        return None
    cap = float(str(step.setting))
    if options.knob == "power_limit_w":
        return _limit(step, cap, options.minimum_effect)
    return _clock(step, as_found, cap, options.minimum_effect)


def _limit(step: Step, cap_w: float, minimum_effect: float) -> Binding:
    """A limit binds where the GPU says so, or draws all of it; it does not where it draws less and is as fast.

    Where the GPU does not tell what held its clock back, the times alone must tell it.
    """
    power_w = step.mean("power_w")
    reported = any(reading.held_back is not None for reading in step.readings)
    held = step.held_back().get(POWER_CAP, 0.0) if reported else None
    at_limit = power_w is not None and power_w >= NEAR_LIMIT * cap_w
    if held is not None and held > HELD_SHARE:
        return "binds"
    if held is None and at_limit and _slower(step, minimum_effect):
        return "binds"
    if power_w is None or at_limit or (held is not None and held > FREE_SHARE):
        return "not clear"
    free = _as_fast(step, minimum_effect) or (held is not None and not _slower(step, minimum_effect))
    return "does not bind" if free else "not clear"


def _clock(step: Step, as_found: Step, cap_mhz: float, minimum_effect: float) -> Binding:
    """A locked clock binds where the GPU is slower under it and holds it; it does not where it ran no faster anyway."""
    clock, clock_as_found = step.mean("sm_mhz"), as_found.mean("sm_mhz")
    if _slower(step, minimum_effect):
        return "not clear" if clock is not None and clock < BELOW_CLOCK * cap_mhz else "binds"
    free = clock_as_found is not None and clock_as_found <= cap_mhz / BELOW_CLOCK
    return "does not bind" if free and _as_fast(step, minimum_effect) else "not clear"


def _slower(step: Step, minimum_effect: float) -> bool:
    """Return whether calls surely take longer than on the GPU as it was found; of one repeat its value counts."""
    if step.slowdown is None:
        return False
    least = step.slowdown.value if step.slowdown.low is None else step.slowdown.low
    return least > 1 + minimum_effect


def _as_fast(step: Step, minimum_effect: float) -> bool:
    """Return whether calls surely take as long as on the GPU as it was found, within the least effect that matters."""
    if step.slowdown is None:
        return False
    longest = step.slowdown.value if step.longer_at_most is None else step.longer_at_most
    return longest <= 1 + minimum_effect and step.slowdown.value >= 1 - minimum_effect
