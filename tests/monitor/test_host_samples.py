"""The host, from trees of sysfs and procfs: what is read, what is missing, what wraps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.monitor.samplers import (
    CpuUsage,
    HostSampler,
    RaplCounters,
    TopProcessSampler,
    cpu_usage_between,
    read_cpus,
    read_disks,
    read_network,
)
from tests.fakes.trees import write
from tests.monitor.pacing import VirtualPace

if TYPE_CHECKING:
    from pathlib import Path

    from assay.monitor.samples import HostSample

NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 999999    1    0    0    0     0          0         0 999999    1    0    0    0     0       0          0
  eth0: 5000      1    0    0    0     0          0         0 700       1    0    0    0     0       0          0
docker0: 4000     1    0    0    0     0          0         0 600       1    0    0    0     0       0          0"""


def stat(*cpus: tuple[int, ...], switches: int = 1000) -> str:
    """Write /proc/stat for CPUs given as user, nice, system, idle, iowait, irq, softirq, steal."""
    whole = [sum(column) for column in zip(*cpus, strict=True)]
    lines = [f"cpu  {' '.join(map(str, whole))} 0 0"]
    lines += [f"cpu{number} {' '.join(map(str, ticks))} 0 0" for number, ticks in enumerate(cpus)]
    return "\n".join([*lines, "intr 1 2 3", f"ctxt {switches}", "btime 1", "processes 5", "procs_running 3"])


IDLE = (0, 0, 0, 100, 0, 0, 0, 0)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(
        tmp_path,
        {
            "proc/stat": stat(IDLE, IDLE),
            "proc/loadavg": "0.52 0.41 0.30 2/345 6789",
            "proc/meminfo": "MemTotal:       2097152 kB\nMemFree: 5 kB\nMemAvailable:   1048576 kB\n"
            "SwapTotal:  1024 kB\nSwapFree:  512 kB",
            "proc/pressure/cpu": "some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000",
            "proc/pressure/memory": "some avg10=0 avg60=0 total=40000\nfull avg10=0 avg60=0 total=10000",
            "proc/pressure/io": "some avg10=0 avg60=0 total=1\nfull avg10=0 avg60=0 total=0",
            "proc/diskstats": "254 0 vda 1 1 100 1 1 1 200 1\n254 1 vda1 1 1 90 1 1 1 180 1\n7 0 loop0 1 1 9 1 1 1 9 1",
            "proc/net/dev": NET,
            "sys/block/vda/device/model": "disk",
            "sys/class/net/eth0/device/vendor": "nic",
            "sys/devices/system/node/node0/numastat": "numa_hit 10\nnuma_miss 2\nnuma_foreign 3\ninterleave_hit 1",
            "sys/devices/system/node/node1/numastat": "numa_hit 20\nnuma_miss 3\nnuma_foreign 2\ninterleave_hit 1",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": 2500000,
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": 800000,
        },
    )
    return tmp_path


def second_look(tree: Path, changes: dict[str, object], *, after_s: float = 1.0) -> HostSample:
    pace = VirtualPace()
    source = HostSampler(tree, pace)
    write(tree, changes)
    pace.spend(after_s)
    return source.sample(1)


def test_everything_that_the_kernel_shows_is_read(tree: Path) -> None:
    after = stat((20, 0, 10, 150, 0, 0, 0, 20), (0, 0, 0, 200, 0, 0, 0, 0), switches=5000)
    sample = second_look(tree, {"proc/stat": after})
    assert sample.core_percent == {0: 30.0, 1: 0.0}
    assert (sample.cpu_percent, sample.steal_percent) == (15.0, 10.0)
    assert sample.core_mhz == {0: 2500.0, 1: 800.0}
    assert (sample.context_switches, sample.running, sample.load_1m) == (5000, 3, 0.52)
    assert (sample.memory_total_mib, sample.memory_used_mib, sample.swap_used_mib) == (2048.0, 1024.0, 0.5)
    assert sample.numa_hit == {0: 10, 1: 20}
    assert sample.numa_miss == {0: 2, 1: 3}
    assert sample.numa_foreign == {0: 3, 1: 2}
    assert (sample.disk_read_bytes, sample.disk_written_bytes) == (51_200, 102_400)
    assert (sample.network_received_bytes, sample.network_sent_bytes) == (5000, 700)
    assert (sample.pressure_cpu_s, sample.pressure_memory_s, sample.pressure_memory_full_s) == (2.5, 0.04, 0.01)
    assert (sample.pressure_io_s, sample.pressure_io_full_s) == (1e-6, 0.0)
    assert sample.package_energy_j == {}


def test_what_a_kernel_does_not_show_is_null_and_spoils_nothing(tmp_path: Path) -> None:
    pace = VirtualPace()
    sample = HostSampler(tmp_path, pace).sample(0)
    measured = sample.model_dump(exclude_none=True, exclude={"kind", "t_ns", "tick"})
    assert all(value == {} for value in measured.values())


def test_shares_of_too_short_a_time_are_null_and_counted_in_the_next(tree: Path) -> None:
    pace = VirtualPace()
    source = HostSampler(tree, pace)
    write(tree, {"proc/stat": stat((1, 0, 0, 100, 0, 0, 0, 0), IDLE)})
    pace.spend(0.01)
    assert source.sample(0).cpu_percent is None
    write(tree, {"proc/stat": stat((10, 0, 0, 190, 0, 0, 0, 0), (0, 0, 0, 200, 0, 0, 0, 0))})
    pace.spend(1.0)
    assert source.sample(1).core_percent == {0: 10.0, 1: 0.0}


def test_a_cpu_that_was_switched_on_meanwhile_is_left_out_until_it_was_seen_twice(tree: Path) -> None:
    sample = second_look(tree, {"proc/stat": stat((50, 0, 0, 150, 0, 0, 0, 0), IDLE, (9, 0, 0, 9, 0, 0, 0, 0))})
    assert set(sample.core_percent) == {0}


def test_an_idle_time_that_goes_back_is_not_a_negative_share() -> None:
    from assay.monitor.samplers import CpuSnapshot, CpuTicks

    before, after = CpuSnapshot({-1: CpuTicks(100, 500, 5)}), CpuSnapshot({-1: CpuTicks(99, 510, 4)})
    assert cpu_usage_between(before, after) == CpuUsage(cpu_percent=0.0, steal_percent=0.0)


def test_clocks_come_from_cpuinfo_where_sysfs_has_none(tree: Path) -> None:
    for cpu in (0, 1):
        (tree / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq").unlink()
    write(tree, {"proc/cpuinfo": "processor\t: 0\ncpu MHz\t\t: 2793.436\n\nprocessor\t: 1\ncpu MHz\t\t: 2100.000"})
    assert second_look(tree, {}).core_mhz == {0: 2793.436, 1: 2100.0}


def test_partitions_and_loops_are_not_counted_beside_their_disk(tree: Path) -> None:
    assert read_disks(tree) == (100 * 512, 200 * 512)


def test_a_container_without_hardware_of_its_own_counts_its_interfaces(tree: Path) -> None:
    (tree / "sys/class/net/eth0/device/vendor").unlink()
    (tree / "sys/class/net/eth0/device").rmdir()
    assert read_network(tree) == (9000, 1300)


def test_old_kernels_without_steal_time_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"proc/stat": "cpu  1 2 3 4\ncpu0 1 2 3 4"})
    assert read_cpus(tmp_path).ticks[0].whole == 10


def rapl(tree: Path, energy_uj: int, *, domain: str = "intel-rapl:0", name: str = "package-0") -> None:
    folder = f"sys/class/powercap/{domain}"
    write(tree, {f"{folder}/name": name, f"{folder}/max_energy_range_uj": 1_000_000, f"{folder}/energy_uj": energy_uj})


def test_processor_energy_counts_from_the_beginning_and_goes_on_where_the_counter_wraps(tmp_path: Path) -> None:
    rapl(tmp_path, 900_000)
    rapl(tmp_path, 5, domain="intel-rapl:0:0", name="core")
    rapl(tmp_path, 10, domain="intel-rapl:0:1", name="dram")
    meter = RaplCounters(tmp_path)
    assert meter.read_j() == {"package-0": 0.0, "package-0/dram": 0.0}
    rapl(tmp_path, 100_000)
    rapl(tmp_path, 500_010, domain="intel-rapl:0:1", name="dram")
    assert meter.read_j() == {"package-0": 0.2, "package-0/dram": 0.5}
    rapl(tmp_path, 50_000)
    assert meter.read_j()["package-0"] == pytest.approx(1.15)


def test_processor_energy_that_may_not_be_read_is_left_out(tmp_path: Path) -> None:
    rapl(tmp_path, 1)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    assert RaplCounters(tmp_path).read_j() == {}


def process(tree: Path, pid: int, name: str, ticks: int, allowed: str) -> None:
    fields = ["S", "1", *["0"] * 9, str(ticks), "0", "0", "0", *["0"] * 4, "77", *["0"] * 5]
    write(tree, {f"proc/{pid}/stat": f"{pid} ({name}) {' '.join(fields)}"})
    write(tree, {f"proc/{pid}/status": f"Name:\t{name}\nCpus_allowed_list:\t{allowed}"})


def test_the_busiest_processes_are_told_with_where_they_may_run(tree: Path) -> None:
    write(tree, {"proc/uptime": "100.00 50.00"})
    process(tree, 10, "train (gpu)", 0, "0-3,8")
    process(tree, 11, "idle", 500, "0-15")
    source = TopProcessSampler(tree, VirtualPace())
    write(tree, {"proc/uptime": "110.00 50.00"})
    process(tree, 10, "train (gpu)", 800, "0-3,8")
    process(tree, 12, "new", 200, "1")
    (top,) = source.read(0)
    assert top.kind == "top"
    assert [(p.pid, p.name, p.cores, p.cpus) for p in top.processes] == [
        (10, "train (gpu)", 0.8, (0, 1, 2, 3, 8)),
        (12, "new", 0.2, (1,)),
    ]


def test_this_very_machine_can_be_read() -> None:
    from pathlib import Path

    pace = VirtualPace()
    source = HostSampler(Path("/"), pace)
    assert source.shape().core_percent.keys() == {cpu for cpu in read_cpus(Path("/")).ticks if cpu >= 0}
    assert source.sample(0).context_switches
