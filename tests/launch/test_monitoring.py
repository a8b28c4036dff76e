"""A recorder beside trials: real processes, and a fake GPU of known power."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from assay.core.processes import identify_process
from assay.core.values import Adaptive, Role, Subject, Trial
from assay.joules.sensor_model import SensorModel, save_sensor_model
from assay.joules.trial_energy import ASSUMED_SENSOR_MODEL
from assay.launch.monitoring import TrialMonitor, trial_label
from assay.launch.workers import RawSeries, TrialOutcome
from assay.machine.detect import detect
from assay.machine.devices import metered_gpus
from assay.monitor.recording_file import read_recording
from assay.monitor.samples import Mark
from tests.fakes.fake_nvml import attached, hopper
from tests.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml


def trial(device: str) -> Trial:
    subject = Subject(workload="softmax", impl="numpy")
    role = Role(name=device, subjects=(subject,), devices=(device,))
    return Trial(block="b", roles=(role,), mode=Adaptive(duration_s=1))


def lasted(seconds: float) -> TrialOutcome:
    """Return what comes of a trial that is timed for so long, from now on."""
    start_ns = time.perf_counter_ns()
    time.sleep(seconds)
    end_ns = time.perf_counter_ns()
    series = RawSeries("r", 0, 0, 0, "call_us", 1, start_ns, end_ns, b"")
    return TrialOutcome(start_ns, end_ns, "2026-01-01T00:00:00+00:00", series=[series])


def test_a_trial_on_a_gpu_has_its_energy_and_what_was_seen(tmp_path: Path, make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper()], virtual=False)
    fake.set_power(0, 400.0)
    with attached(fake), TrialMonitor(detect(), tmp_path) as monitoring:
        planned = trial("cuda:0")
        monitoring.begin(planned)
        time.sleep(0.6)
        outcome = lasted(2.5)
        seen = monitoring.end(planned, outcome)
    assert seen.sensors is not None
    assert seen.during is not None
    assert seen.during.gpus[0].power_w == pytest.approx(400.0, rel=0.02)
    assert seen.during.cpu_percent is not None
    assert seen.energy is not None
    assert seen.energy.value == pytest.approx(1000.0, rel=0.15)
    (gpu,) = seen.during.gpus
    assert (gpu.energy, gpu.energy_note) == (seen.energy, seen.energy_note)
    assert (gpu.temperature_mean_c, gpu.sm_mhz_mean) == pytest.approx((35.0, 1980.0))
    lines = list(read_recording(tmp_path / seen.sensors))
    spans = [line.name for line in lines if isinstance(line, Mark)]
    assert spans == [trial_label(planned), f"timed {trial_label(planned)}"]
    assert "softmax@numpy on cuda:0" in spans[0]


def test_how_sensors_see_that_were_looked_at_is_kept_beside_what_they_said(
    tmp_path: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    with attached(make_fake_nvml([hopper(), hopper()])):
        machine = detect()
        looked = ASSUMED_SENSOR_MODEL.model_copy(
            update={"device": machine.gpus[1].uuid, "driver": machine.driver or "unknown"}
        )
        save_sensor_model(looked)
        with TrialMonitor(machine, tmp_path) as monitoring:
            monitoring.begin(trial("cuda:0"))
    (kept,) = (tmp_path / "monitor").glob("sensors-*.json")
    assert kept.name == "sensors-gpu1.json"
    assert SensorModel.model_validate_json(kept.read_text()) == looked


def test_where_what_was_timed_is_too_short_the_energy_is_that_of_the_whole_trial(
    tmp_path: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = make_fake_nvml([hopper()], virtual=False)
    fake.set_power(0, 400.0)
    with attached(fake), TrialMonitor(detect(), tmp_path) as monitoring:
        planned = trial("cuda:0")
        monitoring.begin(planned)
        time.sleep(0.6)
        outcome = lasted(2.5)
        short = replace(outcome.series[0], start_ns=outcome.end_ns - 30_000_000)
        seen = monitoring.end(planned, replace(outcome, series=[short]))
    assert seen.energy is not None
    assert seen.energy.value == pytest.approx(1000.0, rel=0.15)
    assert seen.energy_window == "whole_trial"
    assert seen.energy_missing is not None
    assert seen.energy_missing.code == "too_few_ticks"


def test_on_a_cpu_the_host_is_watched_and_untold_energy_has_its_reason(tmp_path: Path) -> None:
    with TrialMonitor(detect(), tmp_path) as monitoring:
        planned = trial("cpu:0")
        monitoring.begin(planned)
        seen = monitoring.end(planned, lasted(0.7))
    assert seen.during is not None
    assert seen.during.samples > 0
    assert seen.during.gpus == ()
    assert (seen.energy is None) == (seen.energy_missing is not None and seen.energy_window == "timed")


def test_a_recorder_that_is_killed_harms_no_trial_and_the_next_has_a_new_one(tmp_path: Path) -> None:
    with TrialMonitor(detect(), tmp_path) as monitoring:
        planned = trial("cpu:0")
        monitoring.begin(planned)
        recording = monitoring.recording
        assert recording is not None
        os.kill(recording.pid, signal.SIGKILL)
        seen = monitoring.end(planned, lasted(0.05))
        assert seen.during is None
        assert seen.note is not None
        assert seen.note.code == "not_watched"
        assert "killed by SIGKILL" in seen.note.message
        monitoring.begin(planned)
        again = monitoring.end(planned, lasted(0.5))
        assert again.note is None
        assert again.during is not None
    assert len(list((tmp_path / "monitor").iterdir())) == 2


def test_a_folder_that_cannot_be_written_leaves_the_trial_unwatched_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "monitor").write_text("in the way")
    with TrialMonitor(detect(), tmp_path) as monitoring:
        planned = trial("cpu:0")
        monitoring.begin(planned)
        seen = monitoring.end(planned, lasted(0.01))
    assert seen.sensors is None
    assert seen.note is not None
    assert seen.note.code == "not_watched"


def test_the_recorder_is_gone_after_the_run(tmp_path: Path) -> None:
    with TrialMonitor(detect(), tmp_path) as monitoring:
        monitoring.begin(trial("cpu:0"))
        recording = monitoring.recording
        assert recording is not None
    wait_for(lambda: identify_process(recording.pid) is None)


def test_the_gpus_of_a_trial_are_whole_ones_by_number(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml([hopper(), hopper()])):
        machine = detect()
    assert list(metered_gpus(machine, trial("cuda:1").watched)) == [1]
    assert metered_gpus(machine, trial("cpu:0").watched) == {}


def test_a_metered_gpu_that_is_lost_is_named_in_the_record_and_in_those_after_it(
    tmp_path: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)
    with attached(fake), TrialMonitor(detect(), tmp_path) as monitoring:
        first, other = trial("cuda:1"), trial("cuda:0")
        monitoring.begin(first)
        outcome = lasted(0.3)
        assert monitoring.end(first, outcome).lost_gpus == ()
        fake.lose(1)
        seen = monitoring.end(first, lasted(1.0))
        again = monitoring.end(first, lasted(0.2))
        unharmed = monitoring.end(other, lasted(0.2))
        uuid = fake.gpu(1).uuid.decode()
    (lost,) = seen.lost_gpus
    assert (lost.gpu, lost.uuid) == (1, uuid)
    assert "lost" in lost.reason.lower()
    assert lost.after_s > 0
    assert seen.energy is None
    assert [gpu.after_s for gpu in again.lost_gpus] == [0.0]
    assert unharmed.lost_gpus == ()
