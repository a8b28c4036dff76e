"""Modal on the bench of the test kit: the SDK waits by the real clock, all else goes by a virtual one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grpclib import Status

from assay.hosts.providers.modal import APP, MADE_BY, ModalProvider
from assay.hosts.rented.context import RentalTimeouts
from tests.hosts.standins.cloud import VirtualClock
from tests.hosts.standins.modal.schedules import ALL_TRIES
from tests.hosts.standins.modal.server import Fault

if TYPE_CHECKING:
    import pytest

    from assay.hosts import kit
    from tests.hosts.standins.modal.sandboxes import Sandbox
    from tests.hosts.standins.modal.server import ModalStandIn

FAULTS = {
    "cut before": [Fault(cut=True)] * ALL_TRIES,
    "cut after": [Fault(cut=True, after=True)] * ALL_TRIES,
    "late": [Fault(cut=True, after=True)] * ALL_TRIES,
    "trouble": [Fault(after=True)] * ALL_TRIES,
    "no capacity": [Fault(Status.RESOURCE_EXHAUSTED, "Insufficient capacity to create sandbox")],
    "refused": [Fault(Status.PERMISSION_DENIED, "a payment method is needed")],
}


@dataclass
class ModalBench:
    """The provider over its stand-in."""

    modal: ModalStandIn
    monkeypatch: pytest.MonkeyPatch
    clock: VirtualClock = field(default_factory=VirtualClock)
    pace: RentalTimeouts = field(default_factory=lambda: RentalTimeouts(look_s=15.0, up_within_s=60.0))
    gpu: str = "L4"

    def __post_init__(self) -> None:
        self.provider = ModalProvider(answer_within_s=20, launch_within_s=20, now=self.clock.now)
        self.modal.sandboxes.clock = lambda: self.clock.now().timestamp()
        self.modal.on_create = self._made
        self._fate = ""

    def next(self, fault: kit.Fault) -> None:
        self._fate = fault
        self.modal.fail("SandboxCreate", *FAULTS.get(fault, []))

    def _made(self, sandbox: Sandbox) -> None:
        fate, self._fate = self._fate, ""
        sandbox.deaf = int(fate == "deaf")
        sandbox.mute = fate == "stuck"
        sandbox.taken_after_s = 30.0 if fate == "taken" else None
        sandbox.listed_after_s = 60.0 if fate == "late" else 0.0
        if fate == "twice":
            self._make(sandbox.name, sandbox.app_id, sandbox.tags)

    def _make(self, name: str, app_id: str, tags: dict[str, str]) -> Sandbox:
        return self.modal.sandboxes.create(
            name=name, app_id=app_id, tags=tags, environment={}, gpu="", entrypoint=(), image="", timeout_s=1e6
        )

    def running(self) -> list[str]:
        return [each.id for each in self.modal.sandboxes.running()]

    def made(self) -> int:
        return len(self.modal.sandboxes.all)

    def stranger(self) -> str:
        app_id = self.modal.apps.setdefault(APP, self.modal.sandboxes.new_id("ap"))
        return self._make("assay-dev", app_id, {**MADE_BY, "name": "assay-dev"}).id

    def without_credentials(self) -> ModalProvider:
        with self.monkeypatch.context() as patched:
            patched.delenv("MODAL_TOKEN_ID")
            patched.delenv("MODAL_TOKEN_SECRET")
            said = self.provider.missing()
        provider = ModalProvider()
        provider.missing = lambda: said  # type: ignore[method-assign]
        return provider
