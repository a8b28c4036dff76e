"""What is said of a comparison: names of points, the first sentence, and what its reader should know."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.experiments.energy.comparing import Known, differing, shapes, standings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.page import Tone
    from assay.core.results import Origin
    from assay.experiments.energy.comparing import Of, Point, State

SPEED: dict[Of, str] = {
    "decode": "output tokens/s while decoding",
    "prefill": "input tokens/s while prompts are read",
    "requests": "output tokens/s of whole requests",
}
TONES: dict[State, Tone] = {"front": "good", "dominated": "plain", "unsure": "unsure"}
ANY = 10.0
"""An interval that reaches so many times as far as its number tells nothing."""
WIDE = 4.0
"""Numbers that are this many times apart stand on a logarithmic axis."""


def spread_wide(values: Sequence[float]) -> bool:
    """Return whether numbers are far enough apart for a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) >= WIDE


def said(known: Known | None) -> str | None:
    """Write a number and its interval, with as many decimals: ``0.170 [0.165, 0.175]``."""
    if known is None:
        return None
    decimals = max(0, 2 - math.floor(math.log10(abs(known.value)))) if known.value else 0
    return _with_ends(known, lambda number: f"{number:,.{decimals}f}")


def _with_ends(known: Known, write: Callable[[float], str], unit: str = "") -> str:
    """Write a number and its interval; one that reaches far beyond the number says only that it does."""
    value = f"{write(known.value)}{unit}"
    if known.low is None or known.high is None:
        return value
    if known.high > ANY * known.value or known.low * ANY < known.value:
        return f"{value} [any]"
    return f"{value} [{write(known.low)}, {write(known.high)}]"


def times(known: Known | None) -> str | None:
    """Write a ratio: ``0.25× [0.24, 0.26]``."""
    return None if known is None else _with_ends(known, lambda number: f"{number:#.3g}", "×")


def named(point: Point, points: Sequence[Point]) -> str:
    """Name a point by what tells it from the others."""
    return ", ".join(point.said(name) for name in differing(points)) or point.size


def about(points: Sequence[Point]) -> str:
    """Say what is compared: how many cells, of which models."""
    models = list(dict.fromkeys(point.model for point in points))
    of = models[0] if len(models) == 1 else f"{len(models)} models"
    return f"{len(points)} cell{'' if len(points) == 1 else 's'} of {of}"


def origin_of(points: Sequence[Point]) -> Origin:
    """Return where the numbers come from: real only where all are."""
    return next((point.origin for point in points if point.origin != "real"), "real")


def headline(points: Sequence[Point], of: Of) -> str:
    """Say which takes the least energy for each kind of request, and whether that is sure."""
    clauses = [_least(part, of, several=len(shapes(points)) > 1) for part in shapes(points).values()]
    clauses_present = [text for text in clauses if text]
    if clauses_present:
        return " ".join(clauses_present)
    why = next((point.why for point in points if point.why), "nothing metered it")
    return f"No GPU energy is known of {'this cell' if len(points) == 1 else 'these cells'}: {why.rstrip('.')}."


def _least(points: Sequence[Point], of: Of, *, several: bool) -> str | None:
    metered = [(point, point.joules) for point in points if point.joules is not None]
    if not metered:
        return None
    best, least = min(metered, key=lambda pair: pair[1].value)
    token = "input token" if of == "prefill" else "output token"
    shape = f", {best.input_tokens} in and {best.output_tokens} out" if several else ""
    speed = f" at {said(Known(best.rate.value))} tokens/s" if best.rate else ""
    text = f"The least GPU energy per {token}{shape}: {named(best, points)}, {said(least)} J{speed}."
    near = [point for point, joules in metered if point is not best and not least.surely_below(joules)]
    if near:
        shown = "; ".join(named(point, points) for point in near[:2]) + (" and others" if len(near) > 2 else "")
        text += f" Not to be told from it: {shown}."
    return text + _counted(points)


def _counted(points: Sequence[Point]) -> str:
    states = [standing.state for standing in standings(points) if standing is not None]
    if len(states) < 2:
        return ""
    parts = [(states.count("front"), "on the front"), (states.count("dominated"), "dominated")]
    parts.append((states.count("unsure"), "unsure"))
    return f" Of {len(states)}: {', '.join(f'{count} {what}' for count, what in parts if count)}."


def remarks(points: Sequence[Point], of: Of) -> list[tuple[str, Tone]]:
    """Say what a reader should know before believing it."""
    notes: list[tuple[str, Tone]] = []
    origins = sorted({point.origin for point in points})
    if len(origins) > 1:
        notes.append((f"Origins are mixed ({', '.join(origins)}): only equal ones are held against each other.", "bad"))
    gpus = list(dict.fromkeys(point.gpu for point in points if point.joules is not None))
    if len(gpus) > 1:
        text = (
            f"Different GPUs ({'; '.join(gpus)}): each card's counter may be off by a gain of its own, of several "
            "percent on some, which no interval here holds."
        )
        notes.append((text, "unsure"))
    notes += [(text, "unsure") for text in without_interval(points)]
    partial = [named(point, points) for point in points if point.partial]
    if partial:
        notes.append((f"Partial, some of its processes, phases or tokens are missing: {'; '.join(partial)}.", "unsure"))
    lacking = [point for point in points if point.joules is None or point.rate is None]
    if lacking and len(lacking) < len(points):
        why = next((f": {point.why}" for point in lacking if point.why), "")
        notes.append((f"{len(lacking)} of {len(points)} lack speed or energy{why}.", "unsure"))
    if of == "requests" and any(point.mode == "server" for point in points):
        notes.append(("A server's phases cannot be told apart, so whole requests are compared.", "plain"))
    return notes


def without_interval(points: Sequence[Point]) -> list[str]:
    """Say how many points have a speed or an energy without an interval, and what that means."""
    bare = sum(any(value is not None and value.is_bare for value in (point.rate, point.joules)) for point in points)
    if not bare:
        return []
    text = f"{bare} of {len(points)} have a number with no interval: more repeats would give one."
    return [f"{text} Without it a difference counts only beyond a factor of two."]
