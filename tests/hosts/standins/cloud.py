"""A provider's machines without a provider: what exists, what it costs, and what goes wrong, by a handed-in clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from assay.hosts.rented.context import RentalClock

if TYPE_CHECKING:
    from collections.abc import Callable

Fault = Literal["drop_before", "drop_after", "trouble_before", "trouble_after", "garbage", "too_many"]
"""Of one request: the connection is cut, or answered with 503, before or after it took effect; no JSON; 429."""

START = datetime(2036, 1, 1, tzinfo=UTC)


class VirtualClock(RentalClock):
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.at = START
        self.on_sleep: Callable[[], None] = lambda: None

    def now(self) -> datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.on_sleep()
        self.at += timedelta(seconds=max(0.001, seconds))


@dataclass(frozen=True)
class Fate:
    """What becomes of a machine, in seconds after it was made; null: never."""

    listed_s: float = 0.0
    up_s: float | None = 60.0
    taken_s: float | None = None
    """After it came up."""

    gone_s: float = 20.0
    """After its end was asked for."""

    deaf: int = 0
    """Requests to end that are answered and forgotten."""

    twins: int = 0
    """Machines that the same request makes besides."""

    wrong_gpu: bool = False
    dearer: float = 1.0


@dataclass
class Box:
    """A machine."""

    number: str
    name: str
    kind: str
    usd_per_hour: float
    made_at: datetime
    fate: Fate
    end_asked_at: datetime | None = None
    deaf: int = 0


@dataclass
class Kind:
    """What can be rented."""

    usd_per_hour: float
    free: dict[str, int]
    """Machines, by region."""


@dataclass
class Cloud:
    """One account."""

    clock: RentalClock
    kinds: dict[str, Kind]
    key: str = "a-key"
    fates: deque[Fate] = field(default_factory=deque)
    usual: Fate = field(default_factory=Fate)
    faults: Callable[[str, str], Fault | None] = lambda method, path: None
    refuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By a method and the beginning of a path, ``POST /pods``: a status and a word for it."""

    boxes: dict[str, Box] = field(default_factory=dict)
    ssh_keys: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    told: list[bytes] = field(default_factory=list)
    """Everything that was sent to it, but for the header with the key."""

    def make(self, name: str, kind: str, region: str) -> Box | None:
        """Make a machine, and its twins; null: there is none free."""
        offered = self.kinds.get(kind)
        if offered is None or offered.free.get(region, 0) <= 0:
            return None
        fate = self.fates.popleft() if self.fates else self.usual
        made: list[Box] = []
        for _ in range(1 + fate.twins):
            number = f"m{len(self.boxes):04d}"
            price = round(offered.usd_per_hour * fate.dearer, 2)
            box = Box(number, name, kind, price, self.clock.now(), fate, deaf=fate.deaf)
            self.boxes[number] = box
            made.append(box)
        return made[0]

    def stage(self, box: Box) -> str:
        """Return starting, up, lost, ending or gone."""
        now = self.clock.now()
        if box.end_asked_at is not None:
            ended = now >= box.end_asked_at + timedelta(seconds=box.fate.gone_s)
            return "gone" if ended else "ending"
        up_at = None if box.fate.up_s is None else box.made_at + timedelta(seconds=box.fate.up_s)
        if up_at is None or now < up_at:
            return "starting"
        taken = box.fate.taken_s is not None and now >= up_at + timedelta(seconds=box.fate.taken_s)
        return "lost" if taken else "up"

    def shown(self, box: Box) -> bool:
        """Whether the account's owner can see it."""
        return self.clock.now() >= box.made_at + timedelta(seconds=box.fate.listed_s)

    def end(self, number: str) -> bool:
        """Ask for an end; false where nobody can see such a machine, or the request is forgotten."""
        box = self.boxes.get(number)
        if box is None or not self.shown(box):
            return False
        if box.deaf > 0:
            box.deaf -= 1
            return False
        box.end_asked_at = box.end_asked_at or self.clock.now()
        return True

    def running(self) -> list[Box]:
        """Return what still costs money, seen or not."""
        return [box for box in self.boxes.values() if self.stage(box) != "gone"]
