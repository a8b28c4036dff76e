"""Real recorders: what they write, what they survive, and that they never outlive who started them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.core.processes import identify_process
from assay.machine import nvidia
from assay.monitor.client import RecorderDied, Recording
from assay.monitor.options import RecordingOptions, driver_origin, select_gpus
from assay.monitor.recording_file import read_recording, read_window
from assay.monitor.samples import GpuLost, GpuSample, HostSample, Mark, RecordingEnd
from tests.fakes.fake_nvml import attached, hopper
from tests.running import wait_for

if TYPE_CHECKING:
    from tests.conftest import StartPython
    from tests.fakes.plugin import MakeFakeNvml

NO_SLOW_LOOKS = {"processes_interval_s": None, "top_interval_s": None}


def options(path: Path, **changes: object) -> RecordingOptions:
    told: dict[str, object] = {"path": str(path), "interval_s": 0.01, **NO_SLOW_LOOKS, **changes}
    return RecordingOptions.model_validate(told)


def samples(path: Path) -> list[HostSample]:
    return [line for line in read_recording(path) if isinstance(line, HostSample)]


def test_a_recording_begins_with_its_header_and_ends_with_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Recording.start(options(path)) as recording:
        wait_for(lambda: any(line.kind == "host" for line in recording.latest()))
        recording.mark("  a\nname ")
        recording.span("a span", recording.header.t_ns, recording.header.t_ns + 5)
    lines = list(read_recording(path))
    assert lines[0] == recording.header
    assert lines[-1] == recording.end
    assert [(m.name, m.end_ns is None) for m in lines if isinstance(m, Mark)] == [("a name", True), ("a span", False)]
    assert recording.end is not None
    assert recording.end.reason == "stopped"
    assert identify_process(recording.pid) is None


def test_a_flush_puts_all_until_then_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Recording.start(options(path, host_interval_s=0.01)) as recording:
        wait_for(lambda: len(samples(path)) > 0 or not recording.flush())
        until_ns = recording.flush()
        written = samples(path)
        assert written[-1].t_ns <= until_ns
        seen = read_window(path, recording.header.t_ns, until_ns)
    later = [line for line in read_window(path, recording.header.t_ns, until_ns) if line.kind == "host"]
    assert [line for line in seen if line.kind == "host"] == later


def test_the_recorder_keeps_to_the_cores_it_is_given(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    with Recording.start(options(tmp_path / "a.jsonl", cpus=(core,))) as recording:
        assert recording.header.cpus == (core,)
        assert os.sched_getaffinity(recording.pid) == {core}


def test_cores_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineCannot, match="may not run on CPU 9999"):
        Recording.start(options(tmp_path / "a.jsonl", cpus=(9999,)))


def test_a_recorder_that_is_killed_leaves_its_data_and_its_parent_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    recording = Recording.start(options(path, host_interval_s=0.01))
    wait_for(lambda: len(samples(path)) > 5)  # nothing asks for a flush: they are written by themselves
    promised = samples(path)
    os.kill(recording.pid, signal.SIGKILL)
    with pytest.raises(RecorderDied, match="killed by SIGKILL"):
        recording.flush()
    with pytest.raises(RecorderDied, match=r"a\.jsonl keeps what it had written"):
        recording.mark("too late")
    with pytest.raises(RecorderDied):
        recording.stop()
    kept = samples(path)
    assert not any(isinstance(line, RecordingEnd) for line in read_recording(path))
    assert kept[: len(promised)] == promised
    assert recording.close() is not None


def test_a_recorder_told_to_end_by_a_signal_finishes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    recording = Recording.start(options(path))
    os.kill(recording.pid, signal.SIGTERM)
    assert recording.stop().reason == "the recorder got SIGTERM"
    assert list(read_recording(path))[-1].kind == "end"


def test_ctrl_c_is_for_the_parent_alone(tmp_path: Path) -> None:
    with Recording.start(options(tmp_path / "a.jsonl")) as recording:
        os.kill(recording.pid, signal.SIGINT)
        assert recording.flush()
        assert os.getsid(recording.pid) != os.getsid(0)


STARTER = """
import os, signal, sys, threading, time
from assay.monitor.options import RecordingOptions
from assay.monitor.client import Recording

def start():
    global recording
    recording = Recording.start(RecordingOptions(path=sys.argv[1], interval_s=0.01, host_interval_s=0.01))

if sys.argv[2] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
print(recording.pid, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_recorder_ends_with_its_parent_however_that_ends(
    where: str, tmp_path: Path, start_python: StartPython
) -> None:
    path = tmp_path / "a.jsonl"
    parent = start_python(STARTER, path, where)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_for(lambda: len(samples(path)) > 0)
    assert identify_process(pid) is not None
    parent.kill()
    wait_for(lambda: identify_process(pid) is None)
    assert len(samples(path)) > 0


def test_a_recorder_started_by_a_thread_outlives_it_and_ends_in_good_order(
    tmp_path: Path, start_python: StartPython
) -> None:
    path = tmp_path / "a.jsonl"
    parent = start_python(STARTER, path, "thread")
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_for(lambda: len(samples(path)) > 3)
    parent.kill()
    wait_for(lambda: identify_process(pid) is None)
    last = list(read_recording(path))[-1]
    assert isinstance(last, RecordingEnd)
    assert last.reason == "the process that started it ended"


def test_threads_may_speak_to_a_recorder_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Recording.start(options(path)) as recording:
        threads = [threading.Thread(target=_chatter, args=(recording, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = {line.name for line in read_recording(path) if isinstance(line, Mark)}
    assert names == {f"{number}-{n}" for number in range(4) for n in range(20)}


def _chatter(recording: Recording, number: int) -> None:
    for n in range(20):
        recording.mark(f"{number}-{n}")
        recording.flush()


def test_a_file_that_may_not_be_written_is_refused() -> None:
    with pytest.raises(MachineCannot, match="not writable"):
        Recording.start(options(Path("/sys/kernel/a.jsonl")))


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("gone/a.jsonl", BadInput, "does not exist"), ("folder.jsonl", BadInput, "is a folder")],
)
def test_a_file_that_makes_no_sense_is_refused(name: str, kind: type[Exception], words: str, tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(kind, match=words):
        Recording.start(options(tmp_path / name))


@pytest.mark.parametrize(("interval_s", "words"), [(0.0, "longer than zero"), (-1.0, "longer than zero"),
                                                   (float("nan"), "longer than zero"), (0.001, "too short"),
                                                   (3600.0, "too long")])  # fmt: skip
def test_an_interval_that_cannot_be_kept_is_refused(interval_s: float, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words):
        options(tmp_path / "a.jsonl", interval_s=interval_s)


def test_a_gpu_lost_midway_ends_its_series_and_the_recording_goes_on(
    tmp_path: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)
    path = tmp_path / "a.jsonl"
    with attached(fake):
        view = nvidia.list_gpus()
        told = options(path, gpus=select_gpus(view, None), origin=driver_origin(view), host=False)
        with Recording.start(told) as recording:
            wait_for(lambda: recording.flush() and _ticks(path, 1) > 3)
            fake.lose(1)
            before = _ticks(path, 0)
            wait_for(lambda: recording.flush() and _ticks(path, 0) > before + 5)
    lines = list(read_recording(path))
    (ended,) = [line for line in lines if isinstance(line, GpuLost)]
    assert ended.gpu == 1
    assert recording.header.origin == "fake"


def _ticks(path: Path, gpu: int) -> int:
    return sum(isinstance(line, GpuSample) and line.gpu == gpu for line in read_recording(path))


def test_a_driver_that_is_gone_before_the_beginning_is_said(tmp_path: Path, make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()], virtual=False)
    with attached(fake):
        told = options(tmp_path / "a.jsonl", gpus=select_gpus(nvidia.list_gpus(), [0]), host=False)
        fake.fail("nvmlInit_v2", 9)
        with pytest.raises(MachineCannot, match="NVML does not answer"):
            Recording.start(told)


def test_a_defect_in_the_recorder_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/pynvml.py").write_text("raise RuntimeError('these bindings are broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    told = options(tmp_path / "a.jsonl", host=False, gpus=({"index": 0, "uuid": "GPU-0"},))
    with pytest.raises(RecorderDied, match="these bindings are broken"):
        Recording.start(told)


def test_nothing_to_watch_is_no_recording() -> None:
    with pytest.raises(ValueError, match="GPUs, the host, or both"):
        options(Path("/tmp/a.jsonl"), host=False)
