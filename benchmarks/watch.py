"""What a recorder costs: memory over an hour, ticks missed at 100 Hz with eight fake GPUs, what it moves on a real one.

python benchmarks/watch.py flat                 an hour of virtual time: the recorder's memory as it goes on (minutes)
python benchmarks/watch.py ticks                a minute of real time, a recorder in its own process: ticks missed
python benchmarks/watch.py gpu [--to FOLDER]    on this GPU (200 s at most): does watching move a kernel of 10 µs?
python benchmarks/watch.py verify               compute the tables again from the kept results
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.machine import nvidia
from assay.monitor.client import Recording, StopRecording
from assay.monitor.options import RecordingOptions, driver_origin, select_gpus
from assay.monitor.recorder import BackgroundSampler, Recorder
from assay.monitor.recording_file import JsonlFormatter, read_recording
from assay.monitor.samplers import GpuSampler, HostSampler
from assay.monitor.samples import GpuSample
from benchmarks import watch_gpu
from tests.fakes.fake_nvml import FakeNvml, attached, hopper
from tests.monitor.pacing import VirtualPace, at_once, header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.monitor.samples import RecordingLine

RESULTS = Path(__file__).parent / "results" / "watch.json"
GPUS = 8
INTERVAL_S = 0.01
HOUR_S = 3600.0
MINUTE_S = 60.0
EVERY_S = 300.0


class Nowhere:
    """Writes as a recording does, into nothing; an hour of it would fill a disk."""

    def __init__(self) -> None:
        self.bytes = 0
        self._writer = JsonlFormatter()
        self._waiting: list[str] = []
        self._null = os.open(os.devnull, os.O_WRONLY)

    def write(self, lines: Sequence[RecordingLine]) -> None:
        """Take the lines of one tick."""
        self._waiting.append(self._writer.text(lines))

    def flush(self) -> None:
        """Let go of what was taken."""
        self.bytes += os.write(self._null, "".join(self._waiting).encode())
        self._waiting.clear()


def resident_mib() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def flat() -> dict[str, Any]:
    """Return the recorder's memory every five minutes of a virtual hour."""
    results: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeNvml.create(Path(folder) / "scenario.nvml", [hopper()] * GPUS)
        pace = VirtualPace(fake)
        pace.order(HOUR_S + INTERVAL_S / 2, StopRecording(reason="an hour is over"))
        with (
            attached(fake),
            nvidia.open_sensors([gpu.uuid for gpu in select_gpus(nvidia.list_gpus(), None)]) as sensors,
        ):
            gpus, host = GpuSampler(dict(enumerate(sensors)), pace), HostSampler(Path("/"), pace)

            def look(tick: int) -> list[RecordingLine]:
                if tick % round(EVERY_S / INTERVAL_S) == 0 or tick == 1000:
                    results.append((tick * INTERVAL_S, resident_mib()))
                    print(f"{tick * INTERVAL_S:6.0f} s  {results[-1][1]:.2f} MiB", file=sys.stderr)
                return gpus.read(tick)

            sink = Nowhere()
            slow = {gpus.read_meters: 10, host.read: 10, gpus.read_processes_and_pcie: 100}
            background = [BackgroundSampler(slow_look, every, at_once) for slow_look, every in slow.items()]
            head = header(INTERVAL_S, GPUS, host_every=10)
            end = Recorder(head, sink, pace, sample=look, background=background, answer=lambda _: None).run()
    return {"resident_mib": results, "written_mib": sink.bytes / 2**20, "ticks": end.ticks, "missed": end.missed}


def ticks() -> dict[str, Any]:
    """Return what a real recorder of eight fakes at 100 Hz missed in a minute, and how late its looks began."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeNvml.create(Path(folder) / "scenario.nvml", [hopper()] * GPUS, virtual=False)
        path = Path(folder) / "a.jsonl"
        with attached(fake):
            view = nvidia.list_gpus()
            options = RecordingOptions(
                path=str(path), gpus=select_gpus(view, None), origin=driver_origin(view), interval_s=INTERVAL_S
            )
            with Recording.start(options) as recording:
                time.sleep(MINUTE_S)
        begin_ns = recording.header.t_ns
        samples = [line for line in read_recording(path) if isinstance(line, GpuSample)]
        firsts = [sample for sample in samples if sample.gpu == 0]
        late_us = sorted((s.t_ns - begin_ns - s.tick * INTERVAL_S * 1e9) / 1e3 for s in firsts)
        lasts = {sample.tick: sample.t_ns for sample in samples if sample.gpu == GPUS - 1}
        took_us = sorted((lasts[s.tick] - s.t_ns) / 1e3 for s in firsts if s.tick in lasts)
        end = recording.end
        size_mib = path.stat().st_size / 2**20
    return {
        "ticks": end.ticks if end else None,
        "missed": end.missed if end else None,
        "late_us": _quantiles(late_us),
        "seven_gpus_took_us": _quantiles(took_us),
        "written_mib": size_mib,
        "cpus": os.cpu_count(),
        "load_1m": os.getloadavg()[0],
    }


def _quantiles(ordered: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(ordered, n=1000)
    return {"median": cuts[499], "p99": cuts[989], "p99.9": cuts[998], "most": ordered[-1]}


def table(results: dict[str, Any]) -> str:
    """Return what is published."""
    lines: list[str] = []
    if "flat" in results:
        result = results["flat"]
        lines += ["| eight fakes at 100 Hz, after | memory, MiB |", "|---|---|"]
        lines += [f"| {at_s:.0f} s | {mib:.2f} |" for at_s, mib in result["resident_mib"]]
        lines += [f"{result['ticks']} ticks, {result['missed']} missed, {result['written_mib']:.0f} MiB written", ""]
    if "ticks" in results:
        result = results["ticks"]
        share = result["missed"] / (result["missed"] + result["ticks"])
        where = f"on {result['cpus']} CPUs, load {result['load_1m']:.1f}"
        lines += [
            f"A minute for real {where}: {result['ticks']} ticks kept, {result['missed']} missed ({share:.2%}).",
            "",
            "| µs | median | p99 | p99.9 | most |",
            "|---|---|---|---|---|",
        ]
        for name, title in (("late_us", "begun late by"), ("seven_gpus_took_us", "first GPU to eighth")):
            lines.append(f"| {title} | {' | '.join(f'{value:.0f}' for value in result[name].values())} |")
    return "\n".join(lines)


def main() -> int:
    """Measure or verify."""
    available = {"flat": flat, "ticks": ticks}
    match sys.argv[1:]:
        case ["gpu"]:
            return gpu(watch_gpu.RESULTS)
        case ["gpu", "--to", target]:
            return gpu(Path(target))
        case [("flat" | "ticks" | "verify") as what]:
            pass
        case _:
            print(__doc__)
            return 2
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if what in available:
        results[what] = available[what]()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results))
    if what == "verify" and (watch_gpu.RESULTS / "watch.json").exists():
        print("\n" + watch_gpu.verified(watch_gpu.RESULTS))
    return 0


def gpu(folder: Path) -> int:
    """Measure on this GPU, keep it in a folder, and print what was found."""
    watch_gpu.run(folder)
    print(watch_gpu.verified(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
