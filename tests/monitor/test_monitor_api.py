"""``assay.Monitor`` from within a program: windows, marks, and what is left when it is over."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import assay
from assay.core.errors import BadInput, MachineCannot
from assay.core.processes import identify_process
from assay.monitor.client import RecorderDied
from assay.monitor.samples import GpuSample, HostSample
from tests.fakes.fake_nvml import FakeNvml, attached, hopper
from tests.running import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.plugin import MakeFakeNvml


@pytest.fixture
def two_gpus(make_fake_nvml: MakeFakeNvml) -> Iterator[FakeNvml]:
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)
    with attached(fake):
        yield fake


def until_sampled(monitor: assay.Monitor, more: int = 3) -> None:
    """Wait until some more samples were taken."""
    before = len(monitor.samples)
    wait_for(lambda: len(monitor.samples) >= before + more)


def test_a_window_holds_the_samples_taken_in_it(two_gpus: FakeNvml) -> None:
    with assay.Monitor(gpus=[0, 1], interval_s=0.01) as monitor:
        until_sampled(monitor)
        with monitor.window("work") as window:
            until_sampled(monitor, 10)
        during = window.samples
        until_sampled(monitor)
    assert window.samples == during
    assert window.start_ns is not None
    assert window.end_ns is not None
    assert len(during) >= 10
    assert all(window.start_ns <= sample.t_ns <= window.end_ns for sample in during)
    assert len(monitor.samples) > len(during)


def test_windows_have_statistics_of_their_own(two_gpus: FakeNvml) -> None:
    two_gpus.set_power(1, 300.0)
    with assay.Monitor(gpus=[1], interval_s=0.01, host=False) as monitor, monitor.window("work") as window:
        until_sampled(monitor, 10)
    found = window.statistics
    (source,) = found.sources
    assert (source.source, found.origin) == ("gpu:1", "fake")
    power = source.level("power_instant_w")
    assert power is not None
    assert power.maximum <= 300.0
    assert found.lasted_s > 0


def test_marks_and_windows_are_in_the_file_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with assay.Monitor(gpus=[], interval_s=0.05, path=path) as monitor:
        monitor.mark("loaded")
        with monitor.window("step"):
            pass
    assert [mark.name for mark in monitor.statistics.marks] == ["loaded", "step"]
    assert path.exists()


def test_a_window_shorter_than_the_interval_is_empty_and_not_wrong(two_gpus: FakeNvml) -> None:
    with assay.Monitor(interval_s=60.0, host=False) as monitor:
        until_sampled(monitor, 0)
        with monitor.window("blink") as window:
            pass
    assert window.samples == ()
    assert window.statistics.sources[0].levels == ()
    assert window.statistics.together.energy_j is None


def test_a_window_that_is_not_over_has_nothing_to_say_yet() -> None:
    with assay.Monitor(gpus=[], interval_s=0.05) as monitor:
        window = monitor.window("early")
        with pytest.raises(BadInput, match="'early' is not over yet"), window:
            _ = window.samples


@pytest.mark.full
def test_samples_that_nobody_asked_to_keep_go_with_the_monitor() -> None:
    with assay.Monitor(gpus=[], interval_s=0.05) as monitor, monitor.window("w") as window:
        pass
    folder = monitor.path.parent
    assert folder.is_dir()
    del monitor
    gc.collect()
    assert folder.is_dir()  # the window may still be asked
    assert window.samples is not None
    del window
    gc.collect()
    assert not folder.exists()


def test_without_a_gpu_the_host_is_watched_and_the_reason_is_said() -> None:
    with assay.Monitor(interval_s=0.05) as monitor:
        until_sampled(monitor)
    assert {type(sample) for sample in monitor.samples} == {HostSample}
    assert "NVML" in " ".join(monitor.statistics.notes)


def test_gpus_that_are_named_must_be_there(two_gpus: FakeNvml) -> None:
    for wrong, kind, words in (
        ([2], MachineCannot, "There is no GPU 2 here; there are 0, 1"),
        ([0, 0], BadInput, "named twice: 0"),
        (["GPU-fa4e"], BadInput, "fits several"),
        (["GPU-none"], MachineCannot, "There is no GPU GPU-none"),
        (["cuda:0"], BadInput, "not a GPU's number"),
    ):
        with pytest.raises(kind, match=words):
            assay.Monitor(gpus=wrong)


def test_a_lost_gpu_that_is_named_is_refused_with_its_reason(two_gpus: FakeNvml) -> None:
    two_gpus.lose(1)
    with pytest.raises(MachineCannot, match="GPU 1 cannot be reached: GPU is lost"):
        assay.Monitor(gpus=[0, 1])


def test_gpus_can_be_named_by_uuid_and_hidden_ones_too(two_gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with assay.Monitor(gpus=[two_gpus.gpu(1).uuid.decode()], interval_s=0.01, host=False) as monitor:
        until_sampled(monitor)
    assert {sample.gpu for sample in monitor.samples if isinstance(sample, GpuSample)} == {1}


@pytest.mark.parametrize(
    "wrong", [{"interval_s": 0}, {"interval_s": -1}, {"path": "a.txt"}, {"gpus": [], "host": False}]
)
def test_what_makes_no_sense_is_refused_before_anything_starts(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        assay.Monitor(**wrong)  # type: ignore[arg-type]


def test_a_monitor_is_used_in_a_with_block_and_once() -> None:
    monitor = assay.Monitor(gpus=[], interval_s=0.05)
    with pytest.raises(BadInput, match="has not begun"):
        monitor.mark("early")
    with monitor:
        pass
    with pytest.raises(BadInput, match="used already"), monitor:
        pass


def test_a_recorder_that_dies_is_told_at_the_latest_at_the_end() -> None:
    monitor = assay.Monitor(gpus=[], interval_s=0.05)
    with pytest.raises(RecorderDied, match="killed by SIGKILL"), monitor:
        os.kill(monitor.recording.pid, signal.SIGKILL)
    assert monitor.recording.trouble is not None


def test_an_error_of_the_program_is_what_the_program_gets() -> None:
    monitor = assay.Monitor(gpus=[], interval_s=0.05)
    with pytest.raises(KeyError, match="mine"), monitor:
        raise KeyError("mine")
    assert monitor.recording.end is not None
    assert "KeyError" in monitor.recording.end.reason
    assert identify_process(monitor.recording.pid) is None


def test_an_error_of_the_program_counts_more_than_the_recorders_death() -> None:
    def work(monitor: assay.Monitor) -> None:
        os.kill(monitor.recording.pid, signal.SIGKILL)
        raise KeyError("mine")

    monitor = assay.Monitor(gpus=[], interval_s=0.05)
    with pytest.raises(KeyError, match="mine"), monitor:
        work(monitor)
    assert isinstance(monitor.recording.trouble, RecorderDied)


def test_the_documented_example_works_as_written() -> None:
    from tests.test_docs import ROOT

    text = (Path(ROOT) / "docs/monitoring.md").read_text(encoding="utf-8")
    example = text.split("```python\n")[1].split("```")[0]
    left: dict[str, Any] = {"print": lambda *words: None}
    exec(compile(example, "monitoring.md", "exec"), left)  # noqa: S102
    assert left["w"].samples
    assert [mark.name for mark in left["m"].statistics.marks] == ["loaded", "step"]
