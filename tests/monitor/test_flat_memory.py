"""A recorder's memory stays what it is, however long it records: eight GPUs at 100 Hz, on virtual time.

`benchmarks/watch.py flat` does the same for a whole hour.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.machine import nvidia
from assay.monitor.client import StopRecording
from assay.monitor.recorder import BackgroundSampler, Recorder
from assay.monitor.recording_file import RecordingFile, formatter_for
from assay.monitor.recording_file import read_header as header_of
from assay.monitor.samplers import GpuSampler, HostSampler
from tests.fakes.fake_nvml import GpuProcess, attached, hopper
from tests.monitor.pacing import VirtualPace, at_once, header

if TYPE_CHECKING:
    from assay.monitor.samples import RecordingLine
    from tests.fakes.plugin import MakeFakeNvml

WARM, LAST = 1000, 3000


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.full
def test_eight_gpus_at_100_hz_take_no_more_memory_as_time_goes_on(tmp_path: Path, make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()] * 8)
    for gpu in range(8):
        fake.set_processes(gpu, [GpuProcess(pid=1, memory_bytes=2**30)])
    pace = VirtualPace(fake)
    pace.order(LAST / 100 + 0.005, StopRecording(reason="enough"))
    blocks: dict[int, int] = {}
    resident: dict[int, int] = {}

    with attached(fake), nvidia.open_sensors([fake.gpu(index).uuid.decode() for index in range(8)]) as sensors:
        gpus, host = GpuSampler(dict(enumerate(sensors)), pace), HostSampler(Path("/"), pace)

        def look(tick: int) -> list[RecordingLine]:
            if tick in {WARM, LAST}:
                gc.collect()
                blocks[tick], resident[tick] = sys.getallocatedblocks(), resident_bytes()
            return gpus.read(tick)

        path = tmp_path / "a.jsonl"
        sink = RecordingFile(path, formatter_for(path, None))
        slow = {gpus.read_meters: 10, host.read: 10, gpus.read_processes_and_pcie: 100}
        beside = [BackgroundSampler(look_slowly, every, at_once) for look_slowly, every in slow.items()]
        head = header(0.01, 8, host_every=10)
        end = Recorder(head, sink, pace, sample=look, background=beside, answer=lambda answer: None).run()
        sink.close()
    assert (end.ticks, end.missed) == (LAST + 1, 0)
    assert header_of(path) == head
    assert blocks[LAST] - blocks[WARM] < 0.01 * blocks[WARM]
    assert resident[LAST] - resident[WARM] < 4 * 2**20
