"""Strangers before, during and after a trial, and what is done about them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import GpuMoment
from assay.machine import nvidia
from assay.machine.quiet import disturbance, look_for
from assay.machine.strangers import snapshot

if TYPE_CHECKING:
    from assay.core.plan import StrangerPolicy, Trial
    from assay.core.results import Disturbance
    from assay.machine.model import Machine
    from assay.machine.strangers import Snapshot
    from assay.machine.vendor import Vendor

LISTEN_S = 0.5
WAIT_AT_MOST_S = 120.0


@dataclass
class Watch:
    """Looks around before and after a trial; both looks are taken while nothing is timed."""

    policy: StrangerPolicy
    cpus: int
    gpus: tuple[str, ...]
    vendor: Vendor | None
    helpers: frozenset[int] = frozenset()
    _before: Snapshot | None = None

    @classmethod
    def over(cls, machine: Machine, trial: Trial, helpers: frozenset[int] = frozenset()) -> Watch:
        """Return a watch over the machine and the GPUs that a trial uses; ``helpers`` are processes of ours."""
        used = {device.partition("/")[0] for device in trial.used}
        gpus = tuple(gpu.uuid for gpu in machine.gpus if f"cuda:{gpu.index}" in used)
        return cls(trial.strangers, len(machine.cpus), gpus, nvidia if gpus else None, helpers)

    def refusal(self) -> str | None:
        """Listen before the trial, if the policy wants it; return why not to measure, or null."""
        if self.policy == "warn":
            return None
        deadline = time.monotonic() + (WAIT_AT_MOST_S if self.policy == "wait" else 0.0)
        while True:
            activity = look_for(LISTEN_S, cpus=self.cpus, gpus=self.gpus, vendor=self.vendor, helpers=self.helpers)
            if not activity.complaints:
                return None
            if time.monotonic() >= deadline:
                waited = f" and stayed so for {WAIT_AT_MOST_S:.0f} s" if self.policy == "wait" else ""
                return (
                    f"it is not quiet here{waited}: {'; '.join(complaint.message for complaint in activity.complaints)}"
                )

    def begin(self) -> tuple[GpuMoment, ...]:
        """Take the look before; return what the GPUs in use were doing."""
        self._before = snapshot(vendor=self.vendor)
        return self._moments()

    def end(self) -> tuple[Disturbance, tuple[GpuMoment, ...]]:
        """Take the look after; return what others did in between, and what the GPUs in use are doing now."""
        if self._before is None:
            raise RuntimeError("a watch ends only after it has begun")
        moments = self._moments()
        after = snapshot(vendor=self.vendor)
        return disturbance(self._before, after, cpus=self.cpus, gpus=self.gpus, helpers=self.helpers), moments

    def _moments(self) -> tuple[GpuMoment, ...]:
        shown = self.vendor.look().gpus if self.vendor is not None else ()
        return tuple(
            GpuMoment(
                uuid=gpu.uuid,
                sm_mhz=gpu.state.sm_mhz,
                memory_mhz=gpu.state.memory_mhz,
                temperature_c=gpu.state.temperature_c,
                power_w=gpu.state.power_w,
                throttle=gpu.state.throttle,
            )
            for gpu in shown
            if gpu.uuid in self.gpus and gpu.state is not None
        )
