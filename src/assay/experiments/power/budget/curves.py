"""What each GPU does at so many watts: a concave curve through the measured steps of its power limit.

What a step costs is its cap, up to the lowest cap that was measured as not binding: one above that changes nothing.
Where none was, or every cap was, it costs no more than the GPU drew in the mean. Where a GPU draws more than its cap
says, it costs what it draws. Nothing is said beyond the lowest and the highest step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.core.plan import POWER_LIMIT_W
from assay.experiments.power.sweep.binding import FREE_SHARE, NEAR_LIMIT, POWER_CAP
from assay.stats.concave import Concave, concave_fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Origin
    from assay.experiments.power.rows import GpuRow, SweepRow, Where

    Samples = NDArray[np.float64]

AS_FAST = 0.99
"""Of the rate as found: a cap that binds costs more."""


@dataclass(frozen=True)
class Card:
    """One GPU and where it sits."""

    uuid: str
    host: str
    slot: int
    model: str

    @classmethod
    def of(cls, row: Where) -> Card:
        """Return the GPU of a row."""
        return cls(row.uuid, row.host, row.slot, row.model)


@dataclass(frozen=True)
class Curve:
    """Calls a second over watts. ``own`` is false where it is the middle of other GPUs of the model.

    ``repeats`` are the same from each repeat alone; ``caps`` the watts that are set for the watts that are counted;
    ``points`` what was measured.
    """

    card: Card
    fit: Concave
    repeats: tuple[Concave, ...]
    caps: tuple[tuple[float, float], ...]
    points: tuple[tuple[float, float], ...] = ()
    own: bool = True
    of: int = 1

    @property
    def full(self) -> float:
        """Calls a second without a cap that binds."""
        return self.fit.y[-1]

    def cap(self, watts: float) -> float:
        """Return the cap for so many watts, in whole watts, never below the lowest that was measured."""
        counted, caps = zip(*self.caps, strict=True)
        cap_w = float(np.interp(watts, counted, caps))
        return max(float(np.floor(cap_w + 1e-6)), float(np.ceil(caps[0] - 1e-6)))


@dataclass(frozen=True)
class Work:
    """What was swept: rows of the same work are one set of curves."""

    label: str
    origin: Origin


def swept(rows: Sequence[SweepRow], wanted: str | None) -> tuple[Work, tuple[SweepRow, ...]]:
    """Return the rows of the one piece of work that is meant.

    Raises:
        BadInput: There is no sweep of power limits, none of the work that was asked for, or several.
    """
    caps = [row for row in rows if row.knob == POWER_LIMIT_W and row.calls_per_s > 0]
    if not caps:
        knobs = ", ".join(dict.fromkeys(row.knob for row in rows))
        available = f"these are sweeps of {knobs}" if knobs else "there is no sweep"
        raise BadInput(f"A budget needs `assay power sweep --limits … --apply`; {available}.")
    parts: dict[Work, list[SweepRow]] = defaultdict(list)
    for row in caps:
        parts[_work(row)].append(row)
    matching = {
        work: own
        for work, own in parts.items()
        if wanted is None or work.label == wanted or work.label.partition(" ")[0] == wanted
    }
    if len(matching) == 1:
        return next((work, tuple(own)) for work, own in matching.items())
    named = "; ".join(f"{work.label} ({work.origin})" for work in (matching or parts))
    if not matching:
        raise BadInput(f"Nothing was swept with --workload {wanted}; there is {named}.")
    raise BadInput(f"Several things were swept, and their work does not add up: {named}. Name one with --workload.")


def _work(row: SweepRow) -> Work:
    params = " ".join(f"{name}={value}" for name, value in row.params.items() if value is not None)
    return Work(f"{row.workload} {params}".strip(), row.origin)


def curves_of(rows: Sequence[SweepRow], others: Iterable[GpuRow]) -> tuple[tuple[Curve, ...], tuple[str, ...]]:
    """Return a curve for each GPU there is, and in words which GPUs have none."""
    by_gpu: dict[str, list[SweepRow]] = defaultdict(list)
    notes: list[str] = []
    for row in rows:
        by_gpu[row.uuid].append(row)
    curves = {uuid: curve for uuid, own in by_gpu.items() if (curve := _curve(own)) is not None}
    without_curve = [Card.of(own[0]) for uuid, own in by_gpu.items() if uuid not in curves]
    uuids = {card.uuid for card in without_curve} | set(curves)
    for other in others:
        if other.uuid not in uuids and other.device.startswith("cuda"):
            uuids.add(other.uuid)
            without_curve.append(Card.of(other))
    for card in without_curve:
        peers = [curve for curve in curves.values() if curve.own and curve.card.model == card.model]
        if peers:
            curves[card.uuid] = _middle(card, peers)
        else:
            notes.append(f"{card.host} GPU {card.slot} ({card.model}) has no curve, nor has any of its model.")
    ordered = sorted(curves.values(), key=lambda curve: (curve.card.host, curve.card.slot, curve.card.uuid))
    return tuple(ordered), tuple(notes)


def _curve(rows: Sequence[SweepRow]) -> Curve | None:
    """Return a GPU's own curve; null where no step of it has a cap."""
    capped = [row for row in rows if _cap(row) is not None]
    if not capped:
        return None
    last = max(rows, key=lambda row: row.started_at)
    most = _most(rows)
    usable = [row for row in rows if _cap(row) is not None or row.power_w is not None]
    watts = np.array([_counted(row, most) for row in usable])
    lowest = float(min(_counted(row, most) for row in capped))
    inside = watts >= lowest
    rates = np.array([row.calls_per_s for row in usable])
    fit = concave_fit(watts[inside], rates[inside])
    caps = {_counted(row, most): min(cap, max(most, lowest)) for row in capped if (cap := _cap(row)) is not None}
    first = min(cap for row in capped if (cap := _cap(row)) is not None)
    caps[lowest] = first
    caps.setdefault(fit.x[-1], fit.x[-1])
    points = tuple(zip(watts[inside].tolist(), rates[inside].tolist(), strict=True))
    return Curve(Card.of(last), fit, _repeats(usable, watts, lowest), tuple(sorted(caps.items())), points)


def _most(rows: Sequence[SweepRow]) -> float:
    """Return the watts from which on a cap changes nothing.

    That is the lowest cap that was measured as not binding. Where none was, or where all were and a lower one might
    not bind either, it is the most that the GPU drew in the mean of a step, at whose peaks such a cap may bind.
    """
    caps = [cap for row in rows if (cap := _cap(row)) is not None]
    powers_w = [row.power_w for row in rows if row.power_w is not None]
    full = max((row.calls_per_s for row in rows if _cap(row) is None), default=max(row.calls_per_s for row in rows))
    not_free = {cap for row in rows if (cap := _cap(row)) is not None and not _free(row, cap, full)}
    free = set(caps) - not_free
    return min(free) if free and min(caps) in not_free else max(powers_w or caps)


def _free(row: SweepRow, cap: float, full: float) -> bool:
    """Return whether a step's cap was seen not to bind: less is drawn, nothing held back, and it is as fast."""
    below = row.power_w is not None and row.power_w < NEAR_LIMIT * cap
    return below and row.held_back.get(POWER_CAP, 0.0) <= FREE_SHARE and row.calls_per_s >= AS_FAST * full


def _cap(row: SweepRow) -> float | None:
    setting = row.setting
    return float(setting) if isinstance(setting, int | float) and not isinstance(setting, bool) else None


def _counted(row: SweepRow, most: float) -> float:
    """Return the watts that a step costs."""
    cap = _cap(row)
    if cap is None:
        return most
    return max(min(cap, most), row.power_w or 0.0)


def _repeats(rows: Sequence[SweepRow], watts: Samples, lowest: float) -> tuple[Concave, ...]:
    """Return a curve from each repeat alone: of every run, the r-th process of each step."""
    parts: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row, counted in zip(rows, watts, strict=True):
        for number, median in enumerate(row.restart_medians_us or (row.median_us,)):
            if median > 0 and counted >= lowest:
                parts[row.run, number].append((float(counted), row.calls_per_s * row.median_us / median))
    whole = max(map(len, parts.values()), default=0)
    complete = [points for points in parts.values() if len(points) == whole]
    if len(complete) < 2:
        return ()
    return tuple(concave_fit(*np.array(points).T) for points in complete)


def _middle(card: Card, peers: Sequence[Curve]) -> Curve:
    """Return the middle of the curves of a model, as far as all of them reach."""
    number = min(len(peer.repeats) for peer in peers)
    repeats = tuple(_median_of([peer.repeats[repeat] for peer in peers]) for repeat in range(number))
    fit = _median_of([peer.fit for peer in peers])
    low, high = max(peer.caps[0][1] for peer in peers), fit.x[-1]
    caps = ((fit.low, low), (high, max(low, high))) if high > fit.low else ((fit.low, low),)
    return Curve(card, fit, repeats, caps, own=False, of=len(peers))


def _median_of(fits: Sequence[Concave]) -> Concave:
    low, high = max(fit.low for fit in fits), min(fit.x[-1] for fit in fits)
    if low >= high:
        low = high = float(np.median([fit.x[-1] for fit in fits]))
    inner = {x for fit in fits for x in fit.x if low < x < high}
    knots = np.array(sorted({low, high} | inner))
    heights = np.median([[fit.at(x) for x in knots] for fit in fits], axis=0)
    return concave_fit(knots, heights)
