"""What is asked of a maker's GPUs, whoever made them: one more maker is one more file like ``nvidia.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.leases import Lease
    from assay.machine.model import Gpu, Link, LostGpu


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
class View:
    """The GPUs of one maker, the driver, and in words why there are none."""

    gpus: tuple[Gpu, ...] = ()
    lost: tuple[LostGpu, ...] = ()
    links: tuple[Link, ...] = ()
    hints: Mapping[str, NodeHint] = field(default_factory=dict)
    """By UUID."""
    driver: str | None = None
    cuda_driver: str | None = None
    note: str | None = None


class Vendor(Protocol):
    """A maker's GPUs; a module with these functions is one."""

    def look(self) -> View:
        """Return what is there. No driver and no GPU are normal answers."""

    def touch(self, uuid: str) -> None:
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
