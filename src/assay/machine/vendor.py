"""The interface to the GPUs of one vendor: inventory, processes, settings and sensors.

Another vendor is another file like ``nvidia.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.leases import Lease
    from assay.machine.model import Gpu, GpuLink, UnreachableGpu


class GpuProcess(Value):
    """A process that holds memory or a context on a GPU."""

    gpu: str = Field(description="UUID of the whole GPU, also when it runs on an instance of it.")
    pid: int = Field(description="As the driver numbers it: in a container not always as the container does.")
    name: str | None = Field(default=None, description="Null: no such process is to be seen from here.")
    memory_mib: float | None = None


@dataclass(frozen=True)
class NodeHint:
    """What the driver says about where a GPU hangs, for machines whose sysfs does not."""

    cpus: tuple[int, ...] = ()
    memory_node: int | None = None
    """The memory node that the GPU's own memory is: it may have no cores."""


@dataclass(frozen=True)
class GpuInventory:
    """The GPUs of one maker, the driver, and in words why there are none."""

    gpus: tuple[Gpu, ...] = ()
    lost: tuple[UnreachableGpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    hints: Mapping[str, NodeHint] = field(default_factory=dict)
    """By UUID."""
    driver: str | None = None
    cuda_driver: str | None = None
    note: str | None = None


class Vendor(Protocol):
    """A maker's GPUs; a module with these functions is one."""

    def list_gpus(self) -> GpuInventory:
        """Return what is there. No driver and no GPU are normal answers."""

    def smoke_test(self, uuid: str) -> None:
        """Make sure that a GPU, or an instance of one, answers.

        Raises:
            MachineCannot: It does not, and why.
        """

    def processes(self) -> tuple[GpuProcess, ...]:
        """Return who is on the GPUs, unnamed. Slow, and it takes the driver's lock: never while something is timed."""

    def set_power_limit(self, uuid: str, watts: float) -> Lease:
        """Limit a GPU's power in W; releasing the lease restores the limit it had.

        Raises:
            BadInput: Out of the range that the GPU offers.
            MachineCannot: The GPU offers none, it is gone, or this process may not.
        """

    def lock_sm_clocks(self, uuid: str, low_mhz: int, high_mhz: int) -> Lease:
        """Keep a GPU's SM clock within bounds in MHz; releasing the lease unlocks it.

        Raises:
            BadInput: Out of the range that the GPU offers.
            MachineCannot: The GPU offers none, it is gone, or this process may not.
        """


class GpuReading(Value):
    """One look at a GPU. Null: the card does not offer it. What counts up has counted since the driver was loaded."""

    utilisation_percent: int | None = Field(default=None, description="Of the last period: some kernel ran.")
    memory_utilisation_percent: int | None = Field(default=None, description="Of the last period: memory was accessed.")
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    power_average_w: float | None = Field(default=None, description="Over about the last second (field 185).")
    power_instant_w: float | None = Field(default=None, description="As of the sensor's last tick (field 186).")
    power_usage_w: float | None = Field(
        default=None,
        description="For cards that name neither of the two: an average on some, an instant value on others.",
    )
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttle: tuple[str, ...] | None = Field(default=None, description="Why the clock is not higher, in words.")
    power_cap_s: float | None = Field(default=None, description="Counts up: time held back by the power cap.")
    pcie_tx_bytes: int | None = Field(default=None, description="Counts up: sent by the GPU, headers included.")
    pcie_rx_bytes: int | None = Field(default=None, description="Counts up: received by the GPU, likewise.")
    nvlink_tx_bytes: int | None = Field(default=None, description="Counts up: data sent over all links.")
    nvlink_rx_bytes: int | None = Field(default=None, description="Counts up: data received over all links.")


class GpuMeter(Value):
    """Counters that a card takes milliseconds to read. Null: it does not offer them."""

    energy_j: float | None = Field(default=None, description="Counts up.")
    took_us: float | None = Field(
        default=None, description="How long the card took to say so; it is of some moment in it."
    )
    too_hot_s: float | None = Field(default=None, description="Counts up: time held back by heat.")
    power_brake_s: float | None = Field(default=None, description="Counts up: time held back by the power brake.")


class PcieRate(Value):
    """PCIe traffic of a card that does not count bytes, over the last 20 ms, in MB/s. Null: not offered."""

    tx_mb_per_s: float | None = None
    rx_mb_per_s: float | None = None


class GpuSensor(Protocol):
    """The sensors of one GPU, held open."""

    @property
    def lost(self) -> str | None:
        """Why the GPU does not answer any more; null as long as it may."""

    @property
    def last_error(self) -> str:
        """What the driver said last when it did not answer."""

    def read(self, *, traffic: bool = True) -> GpuReading | None:
        """Return what the sensors say, by cheap calls only; null when not one of them answers.

        Without ``traffic`` the bytes moved, which take an H200 longer than all the rest, are left out.
        """

    def pcie_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes sent and received, as the card counts them, by one cheap call."""

    def meter(self) -> GpuMeter | None:
        """Return the dear counters; null when none of them answers. Slow: 3 to 20 ms on an H200."""

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return who is on the GPU; null when it does not say. Slow: at most once a second."""

    def pcie_rate(self) -> PcieRate:
        """Return the PCIe traffic. Very slow (20 ms each way): only for a card that does not count bytes."""
