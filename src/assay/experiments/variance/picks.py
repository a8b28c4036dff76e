"""Which configurations were picked on either side, where they differ, how often, and what that costs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.variance.effects import ratio
from assay.experiments.variance.older_format import key_of, typical
from assay.stats.shares import Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Estimate
    from assay.experiments.variance.older_format import Config, Older, Pick


@dataclass(frozen=True)
class Device:
    """The usual pick of each side on one device, the settings in which they differ, and what the other one costs.

    ``cost`` is its time over that of the baseline's pick, both as the baseline timed them: 1.05 is 5 % slower. It has
    an interval where they were timed in several processes; null where one of them was not timed.
    """

    device: str | None
    baseline: Config
    concurrent: Config
    differ: tuple[str, ...]
    cost: Estimate | None


@dataclass(frozen=True)
class Picks:
    """All devices that both sides have picks of; how often picks differ, and how often those of the baseline do."""

    devices: tuple[Device, ...]
    mismatch: Share
    by_chance: Share

    @property
    def shares(self) -> tuple[Share, Share]:
        """Both shares, to be judged together."""
        return self.mismatch, self.by_chance


def picks_of(baseline: list[Older], concurrent: list[Older]) -> Picks:
    """Return how the picks of both sides differ."""
    first, second = _by_device(baseline), _by_device(concurrent)
    shared = [device for device in first if device in second]
    rows = [_device(device, first[device], second[device], baseline) for device in shared]
    mismatch = sum((against(first[d], second[d]) for d in shared), Share(0, 0))
    chance = sum((among(picks) for picks in first.values()), Share(0, 0))
    return Picks(tuple(row for row in rows if row is not None), mismatch, chance)


def _by_device(group: Iterable[Older]) -> dict[str | None, list[Pick]]:
    picks_by_device: dict[str | None, list[Pick]] = defaultdict(list)
    for older in group:
        picks_by_device[older.device] += [pick for pick in older.picks if pick.config is not None]
    return {device: picks for device, picks in picks_by_device.items() if picks}


def against(baseline: Sequence[Pick], concurrent: Sequence[Pick]) -> Share:
    """Return how many of the other side's picks differ from the baseline's, each held against one of them in turn."""
    first = [key_of(pick.config) for pick in baseline]
    second = [key_of(pick.config) for pick in concurrent]
    return Share(sum(key != first[index % len(first)] for index, key in enumerate(second)), len(second))


def among(picks: Sequence[Pick]) -> Share:
    """Return how many picks of one side differ from each other, in pairs of which none has a part in two."""
    keys = [key_of(pick.config) for pick in picks]
    pairs = list(zip(keys[0::2], keys[1::2], strict=False))
    return Share(sum(a != b for a, b in pairs), len(pairs))


def differing(one: Config, other: Config) -> tuple[str, ...]:
    """Return the settings in which two configurations differ."""
    return tuple(name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name))


def _device(device: str | None, first: list[Pick], second: list[Pick], baseline: list[Older]) -> Device | None:
    one, other = typical(tuple(first)), typical(tuple(second))
    if one is None or other is None or one.config is None or other.config is None:
        return None
    there, differ = [older for older in baseline if older.device == device], differing(one.config, other.config)
    cost = _cost(there, one.config, other.config) if differ else None
    return Device(device, one.config, other.config, differ, cost)


def _cost(baseline: list[Older], one: Config, other: Config) -> Estimate | None:
    """Return the other configuration's time over the one's, as the same timer saw both; null where it did not."""
    times: dict[tuple[str | None, str], list[float]] = defaultdict(list)
    for older in baseline:
        for entry in older.timed:
            times[entry.by, key_of(entry.config)] += entry.times_ms
    for by in dict.fromkeys(by for by, _ in times):
        mine, theirs = times.get((by, key_of(one))), times.get((by, key_of(other)))
        if mine and theirs:
            return ratio({"": mine}, {"": theirs})
    return None
