"""How often something happens, from so many tries, with exact intervals; and whether one thing does more often."""

from __future__ import annotations

from dataclasses import dataclass

from scipy import special

from assay.stats.intervals import CONFIDENCE


@dataclass(frozen=True)
class Share:
    """How many of how many, with the exact (Clopper–Pearson) interval of the share; nulls where there was no try."""

    count: int
    n: int

    @property
    def value(self) -> float | None:
        """The share; null where there was no try."""
        return self.count / self.n if self.n else None

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Return the exact interval of the share; null where there was no try."""
        if not self.n:
            return None
        tail = (1 - confidence) / 2
        low = float(special.betaincinv(self.count, self.n - self.count + 1, tail)) if self.count else 0.0
        more = self.n - self.count
        high = float(special.betaincinv(self.count + 1, more, 1 - tail)) if more else 1.0
        return low, high

    def __add__(self, other: Share) -> Share:
        return Share(self.count + other.count, self.n + other.n)


def more_often(only_first: int, only_second: int) -> float:
    """Return McNemar's exact two-sided p: tries in which only the one or only the other happened."""
    n, least = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * float(special.bdtr(least, n, 0.5))) if n else 1.0
