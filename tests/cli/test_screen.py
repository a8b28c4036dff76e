"""What is shown while a recording goes on: a row for each GPU and the host, in a table or in one line."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from rich.console import Console

from assay.cli.monitor import print_samples, sample_rows, samples_table
from assay.monitor.samples import GpuLost, GpuProcesses, GpuSample, HostSample

if TYPE_CHECKING:
    from assay.monitor.client import Recording
    from assay.monitor.samples import RecordingLine

LATEST: list[RecordingLine] = [
    GpuSample(
        t_ns=0,
        tick=0,
        gpu=0,
        utilisation_percent=98,
        memory_used_mib=2048.0,
        memory_total_mib=81920.0,
        power_average_w=300.4,
        temperature_c=61,
        sm_mhz=1410,
        throttle=("power cap",),
    ),
    GpuProcesses(t_ns=0, gpu=0, count=1),
    GpuSample(t_ns=0, tick=0, gpu=1, power_instant_w=5.0),
    GpuLost(t_ns=1, gpu=1, reason="GPU is lost"),
    HostSample(t_ns=0, tick=0, cpu_percent=12.4, steal_percent=3.0, running=2, core_mhz={0: 2100.0, 1: 2800.0}),
]


def test_each_gpu_has_a_row_and_so_has_the_host() -> None:
    gpu, lost, host = sample_rows(LATEST)
    assert gpu == ("GPU 0", "98 %", "2.0 of 80 GiB", "300 W", "61 °C", "1410 MHz", "power cap", "1 process")
    assert lost[:2] == ("GPU 1", "ended: GPU is lost")
    assert host == ("host", "12 %", "", "", "", "2800 MHz", "the hypervisor, 3 %", "2 run")


def test_the_table_fits_its_rows() -> None:
    made = samples_table(sample_rows(LATEST), "a.jsonl, 5.0 s")
    assert made.row_count == 3


def test_elsewhere_than_on_a_terminal_a_line_says_it_all() -> None:
    out = io.StringIO()
    recording = cast("Recording", SimpleNamespace(latest=lambda: tuple(LATEST)))
    print_samples(recording, Console(file=out, width=60))
    (line,) = out.getvalue().splitlines()
    assert line.startswith("GPU 0 98 %, 2.0 of 80 GiB, 300 W, 61 °C, 1410 MHz, power cap, 1 process; GPU 1 ended:")
