"""``assay monitor`` as a user runs it: real processes, a real terminal, real signals."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.core.errors import BadInput
from assay.monitor.recording_file import read_recording
from assay.monitor.samples import GpuLost, GpuSample, RecordingEnd
from tests.fakes.fake_nvml import FakeNvml, hopper
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay

NOTHING = (["monitor"], 2, "Missing argument 'OUT")
CASES = [
    NOTHING,
    (["monitor", "a.txt", "--duration", "1"], 2, "a recording is a file that ends in .jsonl, .json or .csv"),
    (["monitor", "a.jsonl", "--interval", "0"], 2, "longer than zero"),
    (["monitor", "a.jsonl", "--interval", "-1"], 2, "'-1' is not a duration"),
    (["monitor", "a.jsonl", "--interval", "1ms"], 2, "too short; the shortest is 5 ms"),
    (["monitor", "a.jsonl", "--interval", "2h"], 2, "too long"),
    (["monitor", "a.jsonl", "--duration", "0"], 2, "longer than zero"),
    (["monitor", "a.jsonl", "--gpu-only", "--host-only"], 2, "--gpu-only and --host-only exclude each other"),
    (["monitor", "a.jsonl", "--gpus", "0", "--host-only"], 2, "--gpus and --host-only exclude each other"),
    (["monitor", "a.jsonl", "--gpus", "zero"], 2, "not a GPU's number"),
    (["monitor", "a.jsonl", "--gpus", "0"], 3, "There is no GPU 0 here: NVML does not answer"),
    (["monitor", "a.jsonl", "--gpu-only"], 3, "No GPU to monitor"),
    (["monitor", "gone/a.jsonl", "--duration", "1"], 2, "a folder on the way to it does not exist"),
    (["monitor", "folder.json", "--duration", "1"], 2, "is a folder"),
    (["monitor", "mine.json", "--duration", "1"], 2, "exists and is not a recording"),
    (["monitor", "/sys/kernel/a.jsonl", "--duration", "1"], 3, "is not writable"),
    (["monitor", "a.jsonl", "--perfetto", "gone/t.json", "--duration", "1"], 2, "does not exist"),
    (["monitor", "a.json", "--perfetto", "a.json", "--duration", "1"], 2, "name the same file"),
    (["monitor", "a.jsonl", "--", "no-such-command-anywhere"], 2, "There is no command 'no-such-command-anywhere'"),
    (["report", "mine.json"], 2, "mine.json is not a recording of `assay monitor`"),
    (["report", "mine.txt"], 2, "ends in .jsonl, .json or .csv"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "words"), CASES, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_what_makes_no_sense_gets_one_line_and_its_exit_code(
    arguments: list[str], code: int, words: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "folder.json").mkdir()
    for name in ("mine.json", "mine.txt"):
        (workplace / name).write_text('{"mine": 1}\n')
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert not (workplace / "a.jsonl").exists()
    assert (workplace / "mine.json").read_text() == '{"mine": 1}\n'


@pytest.mark.full
@pytest.mark.parametrize("form", ["jsonl", "json", "csv"])
def test_the_host_is_recorded_for_a_time_in_each_form(form: str, assay: Assay, workplace: Path) -> None:
    ran = assay("monitor", f"a.{form}", "--duration", "0.5", "--interval", "0.05")
    assert ran.code == 0, ran.err
    assert "Watched the host for" in ran.out
    assert f"assay report a.{form}" in ran.err
    lines = list(read_recording(workplace / f"a.{form}"))
    assert isinstance(lines[-1], RecordingEnd)
    assert lines[-1].reason == "its time was over"
    assert sum(line.kind == "host" for line in lines) >= 2


def test_statistics_come_as_json_on_stdout_and_all_else_on_stderr(assay: Assay, workplace: Path) -> None:
    ran = assay("monitor", "a.jsonl", "--duration", "0.3", "--json")
    assert ran.code == 0
    assert ran.data["schema"] == 1
    assert ran.data["sources"][0]["source"] == "host"
    assert ran.data["command_exit_code"] is None
    assert "Recording the host" in ran.err


def test_a_command_is_watched_to_its_end_and_its_exit_code_reported(assay: Assay, workplace: Path) -> None:
    ran = assay("monitor", "a.jsonl", "--", "sh", "-c", "echo from the command; exit 7")
    assert ran.code == 0
    assert "from the command" in ran.out
    assert "The command ended with exit code 7." in ran.err


def test_the_output_of_a_command_leaves_json_on_stdout_alone(assay: Assay, workplace: Path) -> None:
    ran = assay("monitor", "a.jsonl", "--json", "--", "sh", "-c", "echo from the command; kill -9 $$")
    assert ran.code == 0
    assert ran.data["command_exit_code"] == -9
    assert "from the command" in ran.err
    assert "The command was ended by SIGKILL." in ran.err


def test_a_command_that_outlasts_the_duration_is_ended_with_the_recording(
    assay: Assay, workplace: Path, assay_home: Path
) -> None:
    ran = assay("monitor", "a.jsonl", "--duration", "0.5", "--", "sleep", "1000")
    assert ran.code == 0
    assert "The command was ended by SIGTERM." in ran.err
    assert survivors(assay_home) == []


def test_what_a_command_left_running_ends_with_it(assay: Assay, workplace: Path, assay_home: Path) -> None:
    assert assay("monitor", "a.jsonl", "--", "sh", "-c", "setsid sleep 1000 & exit 0").code == 0
    assert survivors(assay_home) == []


def test_a_trace_for_perfetto_is_written_beside(assay: Assay, workplace: Path) -> None:
    assert assay("monitor", "a.csv", "--duration", "0.5", "--perfetto", "t.json").code == 0
    events = json.loads((workplace / "t.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "C"}


# Signals


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "monitor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def recorded(path: str, least: int = 2) -> bool:
    """Whether a recording has begun and holds some samples."""
    if not Path(path).exists() or not Path(path).stat().st_size:
        return False
    return sum(line.kind in {"host", "gpu"} for line in read_recording(Path(path))) >= least


@pytest.mark.full
@pytest.mark.parametrize(
    ("sent", "more", "code"),
    [
        (signal.SIGINT, (), 0),
        (signal.SIGTERM, (), 0),
        (signal.SIGHUP, (), 0),
        (signal.SIGTERM, ("--duration", "100"), 4),
    ],
)
def test_a_signal_finishes_the_file(
    sent: signal.Signals, more: tuple[str, ...], code: int, workplace: Path, assay_home: Path
) -> None:
    with running("a.json", "--interval", "0.02", *more) as process:
        wait_for(lambda: recorded("a.json"))
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Watched the host" in out
    content = json.loads((workplace / "a.json").read_text())
    assert content[-1]["reason"] == f"stopped by {sent.name}"
    assert survivors(assay_home) == []


@pytest.mark.full
def test_a_signal_reaches_the_command_too(workplace: Path, assay_home: Path) -> None:
    trap = "trap 'echo told; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    with running("a.jsonl", "--", "sh", "-c", trap) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "told" in out
    assert "The command ended with exit code 3." in err
    assert survivors(assay_home) == []


def recorder_of(home: Path) -> int | None:
    for pid in survivors(home):
        with contextlib.suppress(OSError):  # it has just ended
            if b"assay.monitor.recorder" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


@pytest.mark.full
def test_a_recorder_that_is_killed_is_told_and_what_it_wrote_is_shown(workplace: Path, assay_home: Path) -> None:
    with running("a.jsonl", "--interval", "0.02", "--duration", "100") as process:
        wait_for(lambda: recorded("a.jsonl"))
        pid = recorder_of(assay_home)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "The recorder ended before its time (killed by SIGKILL)" in err
    assert "the recording was cut off" in out
    assert "Traceback" not in err


@pytest.mark.full
def test_a_command_goes_on_when_the_recorder_dies(workplace: Path, assay_home: Path) -> None:
    script = "until [ -e go ]; do sleep 0.05; done; echo done"
    with running("a.jsonl", "--interval", "0.02", "--", "sh", "-c", script) as process:
        wait_for(lambda: recorded("a.jsonl"))
        pid = recorder_of(assay_home)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert process.stderr is not None
        told = process.stderr.readline()
        while told and "goes on unwatched" not in told:
            told = process.stderr.readline()
        assert told
        (workplace / "go").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "done" in out
    assert "The command ended with exit code 0." in err


@pytest.mark.full
def test_nothing_outlives_a_monitor_that_is_killed(workplace: Path, assay_home: Path) -> None:
    with running("a.jsonl", "--interval", "0.02", "--", "sh", "-c", "setsid sleep 1000 & sleep 1000") as process:
        wait_for(lambda: recorded("a.jsonl"))
        process.kill()
        process.communicate()
        wait_for(lambda: not survivors(assay_home))
    assert recorded("a.jsonl")
    assert list((assay_home / "leases").iterdir()) == []


@pytest.mark.full
def test_a_disk_that_fills_up_is_told(workplace: Path) -> None:
    limited = "ulimit -f 20; trap '' XFSZ; exec \"$0\" -m assay monitor a.jsonl --interval 0.01 --duration 100"
    ran = subprocess.run(
        ["bash", "-c", limited, sys.executable], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 3
    assert "a.jsonl could not be written: it would exceed the file size limit" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert recorded("a.jsonl")


# A terminal


@contextmanager
def in_a_terminal(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command in a terminal of its own, 120 letters wide; give it and the other end of the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "monitor", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads here
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):
            os.close(ours)


@pytest.mark.full
def test_a_terminal_that_is_closed_finishes_the_file(workplace: Path, assay_home: Path) -> None:
    with in_a_terminal("a.jsonl", "--interval", "0.02") as (process, terminal):
        wait_for(lambda: recorded("a.jsonl"))
        os.close(terminal)
        assert process.wait() == 0
    last = list(read_recording(Path("a.jsonl")))[-1]
    assert isinstance(last, RecordingEnd)
    assert last.reason == "stopped by SIGHUP"
    assert not (assay_home / "defects").exists()
    assert survivors(assay_home) == []


@pytest.mark.full
def test_on_a_terminal_a_live_table_is_shown_and_ctrl_c_ends_it(workplace: Path, assay_home: Path) -> None:
    shown = b""
    asked = False
    with in_a_terminal("a.jsonl", "--interval", "0.05") as (process, terminal):
        with suppress(OSError):  # that is how a terminal ends
            while part := os.read(terminal, 65536):
                shown += part
                if b"a.jsonl, " in shown and b"GiB" in shown and not asked:
                    asked = True
                    os.write(terminal, b"\x03")
        assert process.wait() == 0
    assert asked
    assert b"Watched the host" in shown
    assert isinstance(list(read_recording(Path("a.jsonl")))[-1], RecordingEnd)
    assert survivors(assay_home) == []


# GPUs


@pytest.fixture
def two_gpus(make_fake_nvml: MakeFakeNvml) -> FakeNvml:
    return make_fake_nvml([hopper(), hopper()], virtual=False)


def fake_environment(fake: FakeNvml) -> dict[str, str]:
    return {name: value for name, value in fake.env({}).items() if name in {"LD_LIBRARY_PATH", "ASSAY_FAKE_NVML"}}


def test_gpus_are_recorded_by_their_numbers(assay: Assay, two_gpus: FakeNvml, workplace: Path) -> None:
    ran = assay(
        "monitor", "a.csv", "--gpus", "1", "--gpu-only", "--duration", "0.5", "--json", **fake_environment(two_gpus)
    )
    assert ran.code == 0, ran.err
    assert ran.data["origin"] == "fake"
    assert [source["source"] for source in ran.data["sources"]] == ["gpu:1"]
    with (workplace / "a.csv").open(newline="") as file:
        columns = next(csv.reader(file))
    assert "gpu1_power_instant_w" in columns
    assert not any(column.startswith(("gpu0_", "host_c")) for column in columns)


@pytest.mark.full
def test_a_gpu_lost_midway_is_told_and_the_other_goes_on(two_gpus: FakeNvml, workplace: Path) -> None:
    with running("a.jsonl", "--interval", "0.02", "--gpu-only", **fake_environment(two_gpus)) as process:
        wait_for(lambda: recorded("a.jsonl"))
        two_gpus.lose(0)
        wait_for(lambda: any(isinstance(line, GpuLost) for line in read_recording(Path("a.jsonl"))))
        seen = _samples_of(1)
        wait_for(lambda: _samples_of(1) > seen)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    said = " ".join(out.split())
    assert "GPU 0, NVIDIA H200: lost before the end, GPU is lost" in said
    assert "Partial: GPU 0 was lost." in said
    assert "These numbers come from a fake source" in out


@pytest.mark.full
@pytest.mark.parametrize("form", ["jsonl", "json", "csv"])
def test_a_gpu_lost_midway_makes_the_result_partial_in_each_form(
    form: str, two_gpus: FakeNvml, workplace: Path
) -> None:
    path = Path(f"a.{form}")
    arguments = (str(path), "--interval", "0.02", "--gpu-only", "--json")
    with running(*arguments, **fake_environment(two_gpus)) as process:
        wait_for(lambda: _has_rows(path))
        two_gpus.lose(1)
        wait_for(lambda: any(isinstance(line, GpuLost) for line in read_recording(path)))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    told = json.loads(out)
    assert told["partial"] is True
    assert [source["ended"] is not None for source in told["sources"]] == [False, True]
    assert told["together"]["energy_j"] is None


@pytest.mark.full
def test_a_sensor_that_stops_answering_is_told_with_how_much_was_seen(two_gpus: FakeNvml, workplace: Path) -> None:
    two_gpus.fail_field(0, 185, 3)
    two_gpus.fail_field(0, 186, 3)
    arguments = ("a.jsonl", "--interval", "0.02", "--gpu-only", "--gpus", "0")
    with running(*arguments, **fake_environment(two_gpus)) as process:
        wait_for(lambda: recorded("a.jsonl"))
        two_gpus.fail("nvmlDeviceGetPowerUsage", 3, gpu=0)
        wait_for(lambda: _without_power() > 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    said = " ".join(out.split())
    found = re.search(r"GPU 0, NVIDIA H200: (\d+) of (\d+) samples had power, as reported", said)
    assert found is not None, out
    assert 0 < int(found[1]) < int(found[2])


def _has_rows(path: Path) -> bool:
    """Whether a recording holds samples; a table is none before its first row."""
    with suppress(BadInput):
        return recorded(str(path))
    return False


def _without_power() -> int:
    return sum(isinstance(line, GpuSample) and line.power_usage_w is None for line in read_recording(Path("a.jsonl")))


def _samples_of(gpu: int) -> int:
    return sum(isinstance(line, GpuSample) and line.gpu == gpu for line in read_recording(Path("a.jsonl")))


def test_a_driver_that_is_gone_is_told_and_the_host_is_watched(assay: Assay, two_gpus: FakeNvml) -> None:
    two_gpus.fail("nvmlInit_v2", 9)
    ran = assay("monitor", "a.jsonl", "--duration", "0.3", **fake_environment(two_gpus))
    assert ran.code == 0
    assert "No GPU is watched: NVML does not answer" in ran.err


# The report


@pytest.mark.full
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_the_report_of_a_recording_has_statistics_and_a_figure_for_each(
    form: str, assay: Assay, two_gpus: FakeNvml, workplace: Path
) -> None:
    environment = fake_environment(two_gpus)
    assert assay("monitor", f"a.{form}", "--duration", "0.5", "--interval", "0.05", **environment).code == 0
    ran = assay("report", f"a.{form}")
    assert ran.code == 0, ran.err
    assert "time mean" in ran.out
    assert "energy, counter difference" in ran.out
    assert "These numbers come from a fake source" in ran.out
    figures = {path.stem for path in (workplace / "a-report/figures").iterdir()}
    assert {"gpu0_power", "gpu1_power", "host_use"} <= figures
    assert (workplace / "a-report/report.html").exists()


@pytest.mark.full
def test_the_report_of_a_recording_comes_as_json_too(assay: Assay, workplace: Path) -> None:
    assert assay("monitor", "a.jsonl", "--duration", "0.3").code == 0
    ran = assay("report", "a.jsonl", "--json")
    assert ran.data["finished"] is True


def test_a_recording_that_was_cut_off_has_a_report(assay: Assay, workplace: Path) -> None:
    assert assay("monitor", "a.jsonl", "--duration", "0.5", "--interval", "0.02").code == 0
    data = (workplace / "a.jsonl").read_bytes()
    (workplace / "a.jsonl").write_bytes(data[: len(data) * 2 // 3])
    ran = assay("report", "a.jsonl")
    assert ran.code == 0
    assert "the recording was cut off" in ran.out
