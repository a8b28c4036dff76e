"""Sample GPUs and the host: fast sensors at every tick, slow ones less often. A failing one does not affect the rest.

GPUs. PCIe byte counters (NVML fields 197 and 198) have 32 bits on an H200: at the 63 GB/s of PCIe 5 x16 they wrap after
68 ms. Read more often than that, no byte is lost. The counts include packet headers.

Host. From sysfs and procfs: CPUs, memory, NUMA, disks, network, pressure, RAPL energy, busiest processes. A quantity
that the kernel does not show is null. RAPL counters are in µJ, are readable only by root on most machines, and wrap.
Listing the busiest processes reads every process, so it is done rarely.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.machine.interference import take_snapshot
from assay.machine.linux import parse_cpu_list, path_exists, read_number, read_text_or_none
from assay.monitor.samples import (
    BusyProcess,
    GpuLost,
    GpuMeterSample,
    GpuPcie,
    GpuProcesses,
    GpuSample,
    HostSample,
    TopProcesses,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from assay.machine.interference import ProcessSnapshot
    from assay.machine.model import GpuProcess, GpuSensor
    from assay.monitor.recorder import SampleClock
    from assay.monitor.samples import RecordingLine


COUNTER_WRAP = 2**32
PCIE_WRAP_LIMIT_S = 0.06
"""Read at least this often; a recorder delayed by 68 ms under full traffic loses 4.3 GB."""
PCIE_READ_INTERVAL_NS = 54_000_000
"""Read no more often than this: it takes 0.4 ms on an H200, more than the rest of a sample."""


class ByteCounter:
    """Unwraps the byte counter of one direction of one GPU; the value at the first reading is kept as offset."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._wraps = 0

    def add(self, raw: int | None) -> int | None:
        """Add a raw reading and return the bytes so far; a value above 32 bits does not wrap."""
        if raw is None:
            return None
        if self._last is not None and raw < self._last < COUNTER_WRAP:
            self._wraps += 1
        self._last = raw
        return raw + self._wraps * COUNTER_WRAP


GIVE_UP_AFTER = 3
"""Consecutive samples without any reply after which a GPU is no longer sampled."""


PCIE_READ_SLACK_NS = 1_000_000
"""A sample that is early by up to this much counts as on time."""


class GpuSampler:
    """Samples GPUs one after another; sensors are keyed by GPU index."""

    def __init__(self, sensors: Mapping[int, GpuSensor], clock: SampleClock) -> None:
        self._sensors = dict(sensors)
        self._clock = clock
        self._silent: dict[int, int] = {}
        self._bytes = {index: (ByteCounter(), ByteCounter()) for index in sensors}
        self._counted_ns: dict[int, int] = {}
        self._counts_bytes: dict[int, bool] = {}
        """Whether a GPU counts the bytes it moves over PCIe; missing until known."""

    def read(self, tick: int) -> list[RecordingLine]:
        """Return a sample of each GPU, or the reason for one that was lost."""
        return [line for index, sensor in list(self._sensors.items()) for line in self._sample_gpu(tick, index, sensor)]

    def _sample_gpu(self, tick: int, index: int, sensor: GpuSensor) -> list[RecordingLine]:
        t_ns = self._clock.now_ns()
        traffic = (
            t_ns - self._counted_ns.get(index, -PCIE_READ_INTERVAL_NS) >= PCIE_READ_INTERVAL_NS - PCIE_READ_SLACK_NS
        )
        reading = sensor.read(traffic=traffic)
        self._silent[index] = 0 if reading is not None else self._silent.get(index, 0) + 1
        if sensor.lost is not None:
            return [self._give_up(t_ns, index, sensor.lost)]
        if reading is not None:
            readings = dict(reading.__dict__)
            if traffic:
                self._counted_ns[index] = t_ns
                self._counts_bytes[index] = reading.pcie_tx_bytes is not None
                sent, received = self._counted(index, reading.pcie_tx_bytes, reading.pcie_rx_bytes)
                readings |= {"pcie_tx_bytes": sent, "pcie_rx_bytes": received}
            return [GpuSample(t_ns=t_ns, tick=tick, gpu=index, **readings)]
        if self._silent[index] >= GIVE_UP_AFTER:
            return [self._give_up(t_ns, index, f"it stopped answering: {sensor.last_error}")]
        return []

    def _counted(self, index: int, sent: int | None, received: int | None) -> tuple[int | None, int | None]:
        counters = self._bytes[index]
        return counters[0].add(sent), counters[1].add(received)

    def pulse(self) -> None:
        """Read the counters that would wrap between two samples."""
        for index, sensor in list(self._sensors.items()):
            if self._counts_bytes.get(index):
                self._counted(index, *sensor.pcie_bytes())

    def _give_up(self, t_ns: int, index: int, reason: str) -> GpuLost:
        del self._sensors[index]
        return GpuLost(t_ns=t_ns, gpu=index, reason=reason)

    def read_meters(self, tick: int) -> list[RecordingLine]:
        """Return the counters of each GPU that take milliseconds to read."""
        lines: list[RecordingLine] = []
        for index, sensor in list(self._sensors.items()):
            t_ns = self._clock.now_ns()
            meter = sensor.meter()
            if meter is not None:
                lines.append(GpuMeterSample(t_ns=t_ns, tick=tick, gpu=index, **meter.__dict__))
        return lines

    def read_processes_and_pcie(self, tick: int) -> list[RecordingLine]:
        """Return the processes on each GPU, and the PCIe rate of GPUs that do not count bytes."""
        lines: list[RecordingLine] = []
        for index, sensor in list(self._sensors.items()):
            listed = sensor.processes()
            if listed is not None:
                lines.append(_processes(self._clock.now_ns(), index, listed))
            if self._counts_bytes.get(index) is False:
                rate = sensor.pcie_rate()
                lines.append(GpuPcie(t_ns=self._clock.now_ns(), gpu=index, **rate.__dict__))
        return lines


def _processes(t_ns: int, index: int, listed: tuple[GpuProcess, ...]) -> GpuProcesses:
    memories_mib = [process.memory_mib for process in listed if process.memory_mib is not None]
    total_mib = sum(memories_mib) if len(memories_mib) == len(listed) else None
    return GpuProcesses(t_ns=t_ns, gpu=index, count=len(listed), memory_mib=total_mib, processes=listed)


_ALL = -1
_MHZ = re.compile(r"^processor\s*:\s*(\d+)$|^cpu MHz\s*:\s*([0-9.]+)$", re.MULTILINE)


@dataclass(frozen=True)
class CpuTicks:
    """Cumulative CPU time, in kernel ticks."""

    busy: int
    idle: int
    steal: int

    @property
    def whole(self) -> int:
        """Busy, idle and steal time together."""
        return self.busy + self.idle + self.steal


@dataclass(frozen=True)
class CpuSnapshot:
    """CPU counters at one moment; key -1 is all CPUs together."""

    ticks: dict[int, CpuTicks] = field(default_factory=dict)
    context_switches: int | None = None
    running: int | None = None


def read_cpus(root: Path) -> CpuSnapshot:
    """Parse ``/proc/stat``."""
    ticks: dict[int, CpuTicks] = {}
    single: dict[str, int] = {}
    for line in (read_text_or_none(root / "proc/stat") or "").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu"):
            ticks[int(name[3:] or _ALL)] = _parse_ticks(fields)
        elif name in {"ctxt", "procs_running"}:
            single[name] = int(fields[0])
    return CpuSnapshot(ticks, single.get("ctxt"), single.get("procs_running"))


def _parse_ticks(fields: list[str]) -> CpuTicks:
    """Parse user, nice, system, idle, iowait, irq, softirq and steal; guest time is already included in user."""
    user, nice, system, idle, iowait, irq, softirq, steal = (*map(int, fields[:8]), *([0] * (8 - len(fields[:8]))))
    return CpuTicks(busy=user + nice + system + irq + softirq, idle=idle + iowait, steal=steal)


@dataclass(frozen=True)
class CpuUsage:
    """Shares of CPU time between two snapshots, in percent; null: too short a time for the kernel's ticks."""

    cpu_percent: float | None = None
    steal_percent: float | None = None
    core_percent: dict[int, float] = field(default_factory=dict)


def cpu_usage_between(before: CpuSnapshot, after: CpuSnapshot) -> CpuUsage:
    """Return CPU usage between two snapshots; a CPU that went online or offline in between is left out."""
    shares = {
        cpu: shares
        for cpu, now in after.ticks.items()
        if cpu in before.ticks and (shares := _cpu_shares(before.ticks[cpu], now)) is not None
    }
    busy, steal = shares.pop(_ALL, (None, None))
    return CpuUsage(busy, steal, {cpu: share[0] for cpu, share in shares.items()})


def _cpu_shares(before: CpuTicks, after: CpuTicks) -> tuple[float, float] | None:
    """Return busy and steal percent; the kernel's idle time may decrease by a tick, which counts as zero."""
    total_ticks = after.whole - before.whole
    if total_ticks <= 0:
        return None
    busy, steal = (max(0, now - was) for now, was in ((after.busy, before.busy), (after.steal, before.steal)))
    return round(min(100.0, 100 * busy / total_ticks), 2), round(min(100.0, 100 * steal / total_ticks), 2)


class CpuClocks:
    """The clock of each logical CPU, from cpufreq or ``/proc/cpuinfo``."""

    def __init__(self, root: Path, cpus: tuple[int, ...]) -> None:
        self._info = root / "proc/cpuinfo"
        folder = root / "sys/devices/system/cpu"
        paths = {cpu: folder / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in cpus}
        self._paths = {cpu: path for cpu, path in paths.items() if read_number(path) is not None}

    def read_mhz(self) -> dict[int, float]:
        """Return the clocks in MHz; empty where the kernel does not show them."""
        if self._paths:
            kilohertz = {cpu: read_number(path) for cpu, path in self._paths.items()}
            return {cpu: khz / 1e3 for cpu, khz in kilohertz.items() if khz is not None}
        clocks_mhz: dict[int, float] = {}
        cpu: int | None = None
        for number, mhz in _MHZ.findall(read_text_or_none(self._info) or ""):
            if number:
                cpu = int(number)
            elif cpu is not None:
                clocks_mhz[cpu] = float(mhz)
        return clocks_mhz


def read_load_1m(root: Path) -> float | None:
    """Return the load average of the last minute; null: not readable."""
    fields = (read_text_or_none(root / "proc/loadavg") or "").split()
    return float(fields[0]) if fields else None


_ENTRY = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_PRESSURE = re.compile(r"^(some|full) .*total=(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class HostMemory:
    """The machine's memory in MiB. Null: the kernel does not say."""

    total_mib: float | None
    used_mib: float | None
    swap_used_mib: float | None


def read_memory(root: Path) -> HostMemory:
    """Parse ``/proc/meminfo``; used memory is what is not available to new programs."""
    mib = {name: int(kib) / 1024 for name, kib in _ENTRY.findall(read_text_or_none(root / "proc/meminfo") or "")}
    return HostMemory(
        total_mib=mib.get("MemTotal"),
        used_mib=_difference(mib.get("MemTotal"), mib.get("MemAvailable")),
        swap_used_mib=_difference(mib.get("SwapTotal"), mib.get("SwapFree")),
    )


def _difference(whole: float | None, rest: float | None) -> float | None:
    return None if whole is None or rest is None else round(whole - rest, 3)


class NumaNodes:
    """Page allocation counters by memory node."""

    def __init__(self, root: Path) -> None:
        folders = (root / "sys/devices/system/node").glob("node[0-9]*")
        self._paths = {int(folder.name[len("node") :]): folder / "numastat" for folder in sorted(folders)}

    def read(self) -> dict[str, dict[int, int]]:
        """Return the cumulative pages numa_hit, numa_miss and numa_foreign, by node."""
        counts: dict[str, dict[int, int]] = {"numa_hit": {}, "numa_miss": {}, "numa_foreign": {}}
        for node, path in self._paths.items():
            for name, _, pages in (line.partition(" ") for line in (read_text_or_none(path) or "").splitlines()):
                if name in counts:
                    counts[name][node] = int(pages)
        return counts


def read_pressure_s(root: Path) -> dict[str, float]:
    """Return cumulative stall times in s, of some or of all threads: ``cpu``, ``memory``, ``memory_full`` and so on."""
    waited: dict[str, float] = {}
    for name in ("cpu", "memory", "io"):
        for scope, total_us in _PRESSURE.findall(read_text_or_none(root / f"proc/pressure/{name}") or ""):
            waited[name if scope == "some" else f"{name}_full"] = int(total_us) / 1e6
    return waited


_SECTOR_BYTES = 512
"""The kernel's unit, independent of the disk's sector size."""


def read_disks(root: Path) -> tuple[int, int] | None:
    """Return cumulative bytes read and written by whole disks; null where the kernel shows none.

    Partitions, loop devices and mapped volumes are left out: their traffic is counted on the underlying disk.
    """
    byte_counts = [
        (int(fields[5]), int(fields[9]))
        for fields in map(str.split, (read_text_or_none(root / "proc/diskstats") or "").splitlines())
        if len(fields) > 9 and path_exists(root / "sys/block" / fields[2] / "device")
    ]
    return _sum_pairs(byte_counts, _SECTOR_BYTES)


def read_network(root: Path) -> tuple[int, int] | None:
    """Return cumulative bytes received and sent, without loopback; null where the kernel shows no interface.

    If there are interfaces with hardware, only those count: bridges and tunnels run over them.
    """
    byte_counts: dict[str, tuple[int, int]] = {}
    for line in (read_text_or_none(root / "proc/net/dev") or "").splitlines():
        name, colon, counts = line.partition(":")
        fields = counts.split()
        if colon and name.strip() != "lo" and len(fields) > 8:
            byte_counts[name.strip()] = int(fields[0]), int(fields[8])
    hardware = [bytes_ for name, bytes_ in byte_counts.items() if path_exists(root / "sys/class/net" / name / "device")]
    return _sum_pairs(hardware or list(byte_counts.values()), 1)


def _sum_pairs(moved: list[tuple[int, int]], unit: int) -> tuple[int, int] | None:
    return (sum(one for one, _ in moved) * unit, sum(other for _, other in moved) * unit) if moved else None


class RaplCounters:
    """Joules by domain since construction: ``package-0``, ``package-0/dram``."""

    def __init__(self, root: Path) -> None:
        folders = {name: folder for folder in _rapl_folders(root) if (name := _rapl_domain_name(folder)) is not None}
        self._counters = {name: _RaplDomain(folder) for name, folder in folders.items()}

    def read_j(self) -> dict[str, float]:
        """Return the joules so far; a domain that cannot be read is left out."""
        joules = {name: counter.read_j() for name, counter in self._counters.items()}
        return {name: spent for name, spent in joules.items() if spent is not None}


class _RaplDomain:
    """Unwraps one counter that restarts at its maximum; nothing is lost if it is read more often than it wraps."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "energy_uj"
        self._range_uj = read_number(folder / "max_energy_range_uj")
        self._last_uj = read_number(self._path)
        self._spent_uj = 0

    def read_j(self) -> float | None:
        now_uj = read_number(self._path)
        if now_uj is None or self._last_uj is None:
            return None
        step = now_uj - self._last_uj
        if step < 0:
            if self._range_uj is None:
                return None
            step += self._range_uj
        self._spent_uj += step
        self._last_uj = now_uj
        return self._spent_uj / 1e6


def _rapl_folders(root: Path) -> list[Path]:
    return sorted((root / "sys/class/powercap").glob("intel-rapl:*"))


def _rapl_domain_name(folder: Path) -> str | None:
    """Return a domain's name with that of its package; cores and graphics, parts of a package, are left out."""
    own = read_text_or_none(folder / "name")
    parent = folder.name.rpartition(":")[0]
    if own is None or parent == "intel-rapl":
        return own
    package = read_text_or_none(folder.with_name(parent) / "name")
    return f"{package}/{own}" if own == "dram" else None


MIN_SHARE_INTERVAL_NS = 50_000_000
"""The kernel counts CPU time in ticks of 10 ms; a share of fewer than five of them is meaningless."""


CLOCKS_INTERVAL_NS = 1_000_000_000
"""Reading a clock interrupts the CPU: on many CPUs, do it at most once a second."""


class HostSampler:
    """Samples the host; shares are relative to the previous sample, the first to construction."""

    def __init__(self, root: Path, clock: SampleClock) -> None:
        self._root = root
        self._clock = clock
        self._before, self._before_ns = read_cpus(root), clock.now_ns()
        self._clocks = CpuClocks(root, tuple(cpu for cpu in self._before.ticks if cpu >= 0))
        self._clocks_due_ns = 0
        self._nodes = NumaNodes(root)
        self._rapl = RaplCounters(root)

    def read(self, tick: int) -> list[RecordingLine]:
        """Return one sample as a list, as every source does."""
        return [self.sample(tick)]

    def shape(self) -> HostSample:
        """Return a sample with an entry for everything that later samples may contain."""
        cpus = {cpu: 0.0 for cpu in self._before.ticks if cpu >= 0}
        return self.sample(0).model_copy(update={"core_percent": cpus})

    def sample(self, tick: int) -> HostSample:
        """Return one sample."""
        t_ns = self._clock.now_ns()
        cpus = read_cpus(self._root)
        use = CpuUsage()
        if t_ns - self._before_ns >= MIN_SHARE_INTERVAL_NS:
            use = cpu_usage_between(self._before, cpus)
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
            load_1m=read_load_1m(self._root),
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
        """Return the clocks; empty if they were read less than a second ago."""
        if t_ns < self._clocks_due_ns:
            return {}
        self._clocks_due_ns = t_ns + CLOCKS_INTERVAL_NS
        return self._clocks.read_mhz()


MAX_PROCESSES = 5
MIN_CORES = 0.01
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S+)$", re.MULTILINE)


class TopProcessSampler:
    """Samples the busiest processes since the previous sample, or since construction."""

    def __init__(self, root: Path, clock: SampleClock) -> None:
        self._root = root
        self._clock = clock
        self._before = take_snapshot(root, vendor=None)

    def read(self, tick: int) -> list[RecordingLine]:
        """Return the processes that used most CPU time."""
        t_ns = self._clock.now_ns()
        now = take_snapshot(self._root, vendor=None)
        busy = busiest_processes(self._before, now)
        self._before = now
        processes = tuple(
            BusyProcess(pid=pid, name=name, cores=round(cores, 3), cpus=self._allowed(pid)) for pid, name, cores in busy
        )
        return [TopProcesses(t_ns=t_ns, processes=processes)]

    def _allowed(self, pid: int) -> tuple[int, ...] | None:
        match = _ALLOWED.search(read_text_or_none(self._root / f"proc/{pid}/status") or "")
        return parse_cpu_list(match[1]) if match else None


def busiest_processes(before: ProcessSnapshot, after: ProcessSnapshot) -> list[tuple[int, str, float]]:
    """Return PID, name and cores' worth of CPU time of the busiest processes between two snapshots, busiest first."""
    took_s = after.at_s - before.at_s
    if took_s <= 0:
        return []
    earlier = {process.key: process.own_s for process in before.processes}
    usage = [(p.pid, p.name, (p.own_s - earlier.get(p.key, 0.0)) / took_s) for p in after.processes]
    return sorted((entry for entry in usage if entry[2] >= MIN_CORES), key=lambda entry: (-entry[2], entry[0]))[
        :MAX_PROCESSES
    ]
