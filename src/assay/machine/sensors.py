"""What a GPU's sensors say at one moment, whoever made it: plain readings, nothing estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from assay.core.values import Value

if TYPE_CHECKING:
    from assay.machine.vendor import GpuProcess


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
