"""Does watching a GPU move what runs on it? A kernel of 10 µs, timed with and without somebody watching, in turns.

    round   │ nothing │ 50 Hz │ nvidia-smi │ nothing, again │ 10 Hz │ 100 Hz │     in another random order each round
    block   who watches begins │ warm up │ 2 s: kernels by the GPU's own stamps, calls as a caller waits │ it ends

Whoever watches is a process of its own, begun before the block and ended after it. What was measured is kept after
each round; no round begins that would not end in time, and a hang ends the program.
"""

from __future__ import annotations

import faulthandler
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from assay.core.errors import AssayError
from assay.machine import nvidia
from assay.monitor.client import Recording
from assay.monitor.options import RecordingOptions, driver_origin, select_gpus
from assay.timing.wall import gc_paused
from benchmarks.watch_gpu_tables import AGAIN, ALONE, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results" / "h200"
INTERVALS_S = {"assay monitor, 10 Hz": 0.1, "assay monitor, 50 Hz": 0.02, "assay monitor, 100 Hz": 0.01}
SMI = "nvidia-smi, 50 Hz"
SMI_COMMAND = (
    "nvidia-smi", "--query-gpu=power.draw,utilization.gpu,clocks.sm,memory.used", "--format=csv", "-lms", "20",
)  # fmt: skip
ROUNDS, BLOCK_S = 9, 2.0
REST_S, SETTLE_S, WARM_S = 0.7, 0.3, 0.2
"""How long nothing is started for, about as long as something is; how long who watches is let be; how long calls run
before the first that counts."""
MEANT_S, MOST_S = 190.0, 200.0
"""No round begins that would not end within the first; the second ends the program wherever it is."""
SIDE = 2048
CALLS = 32
AT_ONCE = 200
"""Calls that are waited for one by one before kernels have their turn again."""
KEPT = 1000
"""Samples of each quantity that are kept of a block, evenly spread; its quantiles are of all."""
Kept = dict[str, Any]


class Subject(Protocol):
    """A kernel of about 10 µs that is timed in two ways."""

    def kernels_us(self) -> Samples:
        """Run some and return how long each took on the GPU."""

    def calls_us(self, count: int) -> Samples:
        """Call so often, wait for each, and return how long that took."""


class Softmax:
    """A softmax of 2048 × 2048 on the GPU: stamped in a graph of many, or called and waited for."""

    def __init__(self) -> None:
        import torch

        from assay.timing.cuda.device import gpu_timing_device
        from assay.timing.cuda.timers import GpuCallBatch, GraphTimer, calibrate_device, slot_layout

        torch.manual_seed(0)
        x = torch.randn(SIDE, SIDE, device="cuda")
        self._bench = gpu_timing_device(0)
        calibrate_device(self._bench)
        self._call: Callable[[], object] = lambda: torch.softmax(x, -1)
        self._wait: Callable[[], object] = torch.cuda.synchronize
        self.calls_us(10)
        self._clock = GraphTimer(self._bench, GpuCallBatch(self._call, "warm", CALLS, operations=1))
        self._places = np.array(slot_layout(CALLS))
        self._offset_us = self._stamps_take_us()

    def _stamps_take_us(self) -> float:
        """Return what the stamps take themselves, as spins of known length show it; once, and the same for all."""
        results = []
        for _ in range(64):
            self._clock.take()
            stamps = self._bench.slots.read(len(self._places))
            for kind in ("spin", "wide"):
                true_us = self._bench.calibration.reference_us[f"{kind} warm"]
                results.append(float(np.median(stamps.select(self._places == kind).us)) - true_us)
        return float(np.median(results))

    def kernels_us(self) -> Samples:
        """Replay the graph and read what its stamps say of each kernel."""
        self._clock.take()
        stamps = self._bench.slots.read(len(self._places)).select(self._places == "call")
        return np.asarray(stamps.us - self._offset_us, dtype=np.float64)

    def calls_us(self, count: int) -> Samples:
        """Call and wait."""
        call, wait, now = self._call, self._wait, time.perf_counter_ns
        samples = np.empty(count)
        for index in range(count):
            begin = now()
            call()
            wait()
            samples[index] = now() - begin
        return samples / 1e3


class Watcher(Protocol):
    """Somebody who may watch the GPU; ``pid`` is null where nobody does."""

    pid: int | None

    def start(self) -> None:
        """Begin to watch."""

    def stop(self) -> Kept:
        """End, and return how often it looked and how many looks it missed; null where it does not say."""


class Nobody:
    """Nothing beside; it takes as long to begin as somebody would."""

    pid: int | None = None

    def start(self) -> None:
        """Wait."""
        time.sleep(REST_S)

    def stop(self) -> Kept:
        """Nothing was seen."""
        return {"looks": None, "missed": None}


class Recorder:
    """``assay monitor``: a recording in a process of its own, of all GPUs and the host."""

    pid: int | None = None

    def __init__(self, interval_s: float, folder: Path) -> None:
        view = nvidia.list_gpus()
        self._options = RecordingOptions(
            path=str(folder / "watched.jsonl"),
            gpus=select_gpus(view, None),
            origin=driver_origin(view),
            interval_s=interval_s,
        )
        self._recording: Recording | None = None

    def start(self) -> None:
        """Start the recorder; it records when this returns."""
        self._recording = Recording.start(self._options)
        self.pid = self._recording.pid

    def stop(self) -> Kept:
        """Have it finished."""
        assert self._recording is not None
        end = self._recording.stop()
        return {"looks": end.ticks, "missed": end.missed}


class Smi:
    """``nvidia-smi`` in a loop, as many run it; its lines go into a file."""

    pid: int | None = None

    def __init__(self, folder: Path) -> None:
        self._lines = folder / "smi.csv"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait for as long as it takes to have begun."""
        with self._lines.open("wb") as lines:
            tied = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()  # ends with us, however we end
            command = (*tied, *SMI_COMMAND)
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=lines, stderr=lines)
        self.pid = self._process.pid
        time.sleep(REST_S)

    def stop(self) -> Kept:
        """End it; the first of its lines is the title.

        Raises:
            OSError: It had ended by itself.
        """
        assert self._process is not None
        code = self._process.poll()
        self._process.terminate()
        self._process.wait()
        text = self._lines.read_text(encoding="utf-8", errors="replace").splitlines()
        if code is not None:
            raise OSError(f"it ended with exit code {code}: {' '.join(text[-1:])[:100]}")
        return {"looks": max(0, len(text) - 1), "missed": None}


def watchers(folder: Path) -> tuple[dict[str, Watcher], dict[str, str]]:
    """Return who may watch, and who cannot here with the reason."""
    results: dict[str, Watcher] = {ALONE: Nobody(), AGAIN: Nobody()}
    results.update({name: Recorder(interval_s, folder) for name, interval_s in INTERVALS_S.items()})
    if shutil.which(SMI_COMMAND[0]) is None:
        return results, {SMI: f"there is no {SMI_COMMAND[0]} here"}
    return {**results, SMI: Smi(folder)}, {}


def one_block(watcher: Watcher, subject: Subject) -> Kept:
    """Return what was timed while somebody watched, and what that cost."""
    watcher.start()
    try:
        time.sleep(SETTLE_S)
        with pinned(), gc_paused():
            _timed(subject, WARM_S)
            cpu_s, begin = cpu_time_s(watcher.pid), time.monotonic()
            kernels_us, calls_us = _timed(subject, BLOCK_S)
            took_s = time.monotonic() - begin
            used_s = None if cpu_s is None else (cpu_time_s(watcher.pid) or cpu_s) - cpu_s
    finally:
        observed = watcher.stop()
    return {"s": took_s, "cpu_s": used_s, **observed, "kernel": _kept(kernels_us), "call": _kept(calls_us)}


def _timed(subject: Subject, seconds: float) -> tuple[Samples, Samples]:
    """Time kernels and calls in turns for so long."""
    kernels: list[Samples] = []
    calls: list[Samples] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        kernels += [subject.kernels_us() for _ in range(4)]
        calls.append(subject.calls_us(AT_ONCE))
    return np.concatenate(kernels), np.concatenate(calls)


def _kept(taken_us: Samples) -> Kept:
    p50, p99 = np.quantile(taken_us, [0.5, 0.99])
    thinned = taken_us[:: max(1, len(taken_us) // KEPT)]
    samples_ns = np.rint(1e3 * thinned).astype(int).tolist()
    return {"n": len(taken_us), "p50": round(float(p50), 5), "p99": round(float(p99), 5), "samples_ns": samples_ns}


@contextmanager
def pinned() -> Iterator[None]:
    """Keep this thread on one core meanwhile; processes that were started before may run anywhere."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def cpu_time_s(pid: int | None) -> float | None:
    """Return the CPU time that a process has used; null where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(folder: Path, made: Callable[[], Subject] = Softmax) -> None:
    """Measure round after round, and keep what there is after each."""
    faulthandler.dump_traceback_later(MOST_S, exit=True)
    begin = time.monotonic()
    from benchmarks.clock import fingerprint

    subject, machine, chance = made(), fingerprint(), random.Random(0)
    raw: Kept = {"block_s": BLOCK_S, "began_s": round(time.monotonic() - begin, 1), "blocks": []}
    with tempfile.TemporaryDirectory() as directory:
        who, raw["left_out"] = watchers(Path(directory))
        raw["conditions"] = list(who)
        longest_s = 0.0
        for number in range(ROUNDS):
            round_begin = time.monotonic()
            if round_begin - begin + 1.1 * longest_s > MEANT_S:
                break
            _one_round(number, who, subject, chance, raw)
            longest_s = max(longest_s, time.monotonic() - round_begin)
            raw["took_s"] = round(time.monotonic() - begin, 1)
            keep(folder, raw, machine)
    faulthandler.cancel_dump_traceback_later()


def _one_round(number: int, who: dict[str, Watcher], subject: Subject, chance: random.Random, raw: Kept) -> None:
    """Take a block of each condition, in random order; a watcher that fails is left out from then on, and named."""
    order = list(who)
    chance.shuffle(order)
    for condition in order:
        try:
            block = one_block(who[condition], subject)
        except (AssayError, OSError) as error:
            raw["left_out"][condition] = str(error)
            del who[condition]
            continue
        raw["blocks"].append({"round": number, "condition": condition, **block})


def keep(folder: Path, raw: Kept, machine: Kept) -> None:
    """Write down what was measured, and the table that follows from it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "watch.samples.json.xz").write_bytes(lzma.compress(json.dumps(raw).encode()))
    summary = {"command": "python benchmarks/watch.py gpu", "machine": machine, "table": table(raw)}
    (folder / "watch.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def verified(folder: Path) -> str:
    """Return the table that follows from what was kept, having made sure that it is the published one."""
    raw = json.loads(lzma.decompress((folder / "watch.samples.json.xz").read_bytes()))
    published = json.loads((folder / "watch.json").read_text(encoding="utf-8"))["table"]
    results = table(raw)
    if results != published:
        print("What is published does not follow from what was kept.", file=sys.stderr)
        sys.exit(1)
    return results
