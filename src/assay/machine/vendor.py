"""The interface to the GPUs of one vendor: inventory, processes, settings and sensors.

Another vendor is another module like ``nvidia.py``.
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
    pid: int = Field(description="As reported by the driver: in a container not always the container's PID.")
    name: str | None = Field(default=None, description="Null: no such process is visible from here.")
    memory_mib: float | None = None


@dataclass(frozen=True)
class NodeHint:
    """The driver's information on a GPU's location, for machines whose sysfs has none."""

    cpus: tuple[int, ...] = ()
    memory_node: int | None = None
    """The memory node formed by the GPU's own memory: it may have no cores."""


@dataclass(frozen=True)
class GpuInventory:
    """The GPUs of one vendor, the driver, and a note on why there are none."""

    gpus: tuple[Gpu, ...] = ()
    lost: tuple[UnreachableGpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    hints: Mapping[str, NodeHint] = field(default_factory=dict)
    """By UUID."""
    driver: str | None = None
    cuda_driver: str | None = None
    note: str | None = None


class Vendor(Protocol):
    """A vendor's GPUs; any module with these functions implements it."""

    def list_gpus(self) -> GpuInventory:
        """Return the inventory. No driver and no GPU are normal results."""

    def smoke_test(self, uuid: str) -> None:
        """Check that a GPU, or an instance of one, answers.

        Raises:
            MachineCannot: It does not, and why.
        """

    def processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes on the GPUs, unnamed. Slow, and takes the driver's lock: never call during timing."""

    def set_power_limit(self, uuid: str, watts: float) -> Lease:
        """Limit a GPU's power in W; releasing the lease restores the limit it had.

        Raises:
            BadInput: Out of the range that the GPU supports.
            MachineCannot: The GPU supports none, it is gone, or this process lacks permission.
        """

    def lock_sm_clocks(self, uuid: str, low_mhz: int, high_mhz: int) -> Lease:
        """Keep a GPU's SM clock within bounds in MHz; releasing the lease unlocks it.

        Raises:
            BadInput: Out of the range that the GPU supports.
            MachineCannot: The GPU supports none, it is gone, or this process lacks permission.
        """


class GpuReading(Value):
    """One reading of a GPU. Null: not supported by the card. Counters start when the driver is loaded."""

    utilisation_percent: int | None = Field(default=None, description="Share of the last period in which a kernel ran.")
    memory_utilisation_percent: int | None = Field(
        default=None, description="Share of the last period in which memory was accessed."
    )
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    power_average_w: float | None = Field(default=None, description="Over about the last second (field 185).")
    power_instant_w: float | None = Field(default=None, description="As of the sensor's last tick (field 186).")
    power_usage_w: float | None = Field(
        default=None,
        description="For cards that report neither of the two: an average on some, an instant value on others.",
    )
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttle: tuple[str, ...] | None = Field(default=None, description="Why the clock is not higher, as text.")
    power_cap_s: float | None = Field(default=None, description="Counts up: time throttled by the power cap.")
    pcie_tx_bytes: int | None = Field(default=None, description="Counts up: sent by the GPU, headers included.")
    pcie_rx_bytes: int | None = Field(default=None, description="Counts up: received by the GPU, likewise.")
    nvlink_tx_bytes: int | None = Field(default=None, description="Counts up: data sent over all links.")
    nvlink_rx_bytes: int | None = Field(default=None, description="Counts up: data received over all links.")


class GpuMeter(Value):
    """Counters that take milliseconds to read. Null: not supported by the card."""

    energy_j: float | None = Field(default=None, description="Counts up.")
    took_us: float | None = Field(
        default=None, description="How long reading it took; the value is from some moment within."
    )
    too_hot_s: float | None = Field(default=None, description="Counts up: time throttled by heat.")
    power_brake_s: float | None = Field(default=None, description="Counts up: time throttled by the power brake.")


class PcieRate(Value):
    """PCIe traffic of a card that does not count bytes, over the last 20 ms, in MB/s. Null: not available."""

    tx_mb_per_s: float | None = None
    rx_mb_per_s: float | None = None


class GpuSensor(Protocol):
    """The sensors of one GPU, kept open."""

    @property
    def lost(self) -> str | None:
        """Why the GPU does not answer any more; null as long as it may."""

    @property
    def last_error(self) -> str:
        """The driver's last error message when it did not answer."""

    def read(self, *, traffic: bool = True) -> GpuReading | None:
        """Return a reading of the sensors, using cheap calls only; null when none of them answers.

        Without ``traffic``, skip the byte counters, which take an H200 longer than all the rest.
        """

    def pcie_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes sent and received, as counted by the card, with one cheap call."""

    def meter(self) -> GpuMeter | None:
        """Return the expensive counters; null when none of them answers. Slow: 3 to 20 ms on an H200."""

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return the processes on the GPU; null when it does not report them. Slow: at most once a second."""

    def pcie_rate(self) -> PcieRate:
        """Return the PCIe traffic. Very slow (20 ms per direction): only for a card that does not count bytes."""
