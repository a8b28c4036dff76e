"""One look at the machine, from a tree of sysfs and procfs: what it does not show is null and spoils nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.monitor.host_cpu import Clocks, CpuUse, load_1m, look_at_cpus, use_between
from assay.monitor.host_memory import Nodes, read_memory, read_pressure_s
from assay.monitor.host_traffic import read_disks, read_network
from assay.monitor.lines import HostSample
from assay.monitor.rapl import Rapl

if TYPE_CHECKING:
    from pathlib import Path

    from assay.monitor.lines import Line
    from assay.monitor.pace import Clock


LEAST_NS = 50_000_000
"""The kernel counts CPU time in ticks of 10 ms; a share of fewer than five of them says nothing."""


CLOCKS_NS = 1_000_000_000
"""To tell its clock, each CPU is interrupted: of many CPUs, at most once a second."""


class HostSource:
    """Looks at the machine; shares are since the look before, the first since this was made."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._before, self._before_ns = look_at_cpus(root), clock.now_ns()
        self._clocks = Clocks(root, tuple(cpu for cpu in self._before.ticks if cpu >= 0))
        self._clocks_due_ns = 0
        self._nodes = Nodes(root)
        self._rapl = Rapl(root)

    def read(self, tick: int) -> list[Line]:
        """Return one sample, as a source does."""
        return [self.look(tick)]

    def shape(self) -> HostSample:
        """Return a sample with a place for everything that later ones may hold."""
        cpus = {cpu: 0.0 for cpu in self._before.ticks if cpu >= 0}
        return self.look(0).model_copy(update={"core_percent": cpus})

    def look(self, tick: int) -> HostSample:
        """Return one sample."""
        t_ns = self._clock.now_ns()
        cpus = look_at_cpus(self._root)
        use = CpuUse()
        if t_ns - self._before_ns >= LEAST_NS:
            use = use_between(self._before, cpus)
            self._before, self._before_ns = cpus, t_ns
        memory, waited = read_memory(self._root), read_pressure_s(self._root)
        disks, network = read_disks(self._root) or (None, None), read_network(self._root) or (None, None)
        return HostSample(
            t_ns=t_ns,
            tick=tick,
            cpu_percent=use.cpu_percent,
            steal_percent=use.steal_percent,
            core_percent=use.core_percent,
            core_mhz=self._core_mhz(t_ns),
            context_switches=cpus.context_switches,
            load_1m=load_1m(self._root),
            running=cpus.running,
            memory_total_mib=memory.total_mib,
            memory_used_mib=memory.used_mib,
            swap_used_mib=memory.swap_used_mib,
            disk_read_bytes=disks[0],
            disk_written_bytes=disks[1],
            network_received_bytes=network[0],
            network_sent_bytes=network[1],
            pressure_cpu_s=waited.get("cpu"),
            pressure_memory_s=waited.get("memory"),
            pressure_memory_full_s=waited.get("memory_full"),
            pressure_io_s=waited.get("io"),
            pressure_io_full_s=waited.get("io_full"),
            package_energy_j=self._rapl.read_j(),
            **self._nodes.read(),
        )

    def _core_mhz(self, t_ns: int) -> dict[int, float]:
        """Return the clocks; nothing where they were told a moment ago."""
        if t_ns < self._clocks_due_ns:
            return {}
        self._clocks_due_ns = t_ns + CLOCKS_NS
        return self._clocks.read_mhz()
