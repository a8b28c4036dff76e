"""RunPod and Lambda on the bench of the test kit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.hosts.rented.context import RentalTimeouts
from tests.hosts.standins.cloud import Fate, VirtualClock
from tests.hosts.standins.wired import GPU, KEYS, PATHS, provider_of, service_of

if TYPE_CHECKING:
    import pytest

    from assay.hosts.kit import Fault
    from assay.hosts.rented.provider import Provider
    from tests.hosts.standins import cloud
    from tests.hosts.standins.answering import Service

FATES: dict[str, Fate] = {
    "late": Fate(listed_s=60.0),
    "twice": Fate(twins=1),
    "deaf": Fate(deaf=1),
    "taken": Fate(taken_s=30.0),
    "stuck": Fate(up_s=None),
}
FAULTS: dict[str, cloud.Fault] = {
    "cut before": "drop_before",
    "cut after": "drop_after",
    "late": "drop_after",
    "trouble": "trouble_after",
}
REFUSALS = {"no capacity": (400, "no instances available"), "refused": (402, "no payment method")}


@dataclass
class StandInBench:
    """A built-in provider over its stand-in."""

    name: str
    monkeypatch: pytest.MonkeyPatch
    clock: VirtualClock = field(default_factory=VirtualClock)
    pace: RentalTimeouts = field(default_factory=RentalTimeouts)

    def __post_init__(self) -> None:
        self.gpu = GPU[self.name]
        self.service: Service = service_of(self.name, self.clock)
        self.provider: Provider = provider_of(self.name, self.service, self.clock)
        self.monkeypatch.setenv(KEYS[self.name], self.service.cloud.key)

    def next(self, fault: Fault) -> None:
        account = self.service.cloud
        if fault in FATES:
            account.fates.append(FATES[fault])
        launch = f"POST {PATHS[self.name]}"
        if fault in REFUSALS:
            account.refuses[launch] = REFUSALS[fault]
        once = [FAULTS.get(fault)]

        def faults(method: str, path: str) -> cloud.Fault | None:
            if f"{method} {path}" != launch:
                return None
            if not once:
                account.refuses.clear()
            return once.pop() if once else None

        account.faults = faults

    def running(self) -> list[str]:
        return [box.number for box in self.service.cloud.running()]

    def made(self) -> int:
        return len(self.service.cloud.boxes)

    def stranger(self) -> str:
        kind, offered = next(iter(self.service.cloud.kinds.items()))
        box = self.service.cloud.make("assay-dev", kind, next(iter(offered.free)))
        assert box is not None
        return box.number

    def without_credentials(self) -> Provider:
        self.monkeypatch.delenv(KEYS[self.name])
        provider = provider_of(self.name, self.service, self.clock)
        said = provider.missing()
        self.monkeypatch.setenv(KEYS[self.name], self.service.cloud.key)
        provider.missing = lambda: said  # type: ignore[method-assign]
        return provider
