"""Trials that are about power, on fake GPUs in real time: watts, clocks and joules whose truth is known."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from assay.core import leases
from assay.core.values import Continuous, Role, Trial
from assay.launch.local import LocalStarter
from assay.launch.trial import Launcher
from assay.machine.detect import detect
from assay.workloads import registry
from tests.fakes import fake_kernel
from tests.fakes.fake_nvml import attached, hopper
from tests.fakes.metered import contains_true_energy
from tests.once import measured
from tests.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import Record, Series
    from assay.core.values import Duty, Subject
    from tests.conftest import StartPython
    from tests.fakes.plugin import MakeFakeNvml

MCYCLES, WATTS, CAP_W = 40.0, 500.0, 300.0


def role(device: str, subject: Subject, duty: Duty = "timed") -> Role:
    return Role(name=f"{duty} on {device}", subjects=(subject,), devices=(device,), duty=duty, isolation="gpu")


def series_of(record: Record, name: str, quantity: str) -> Series:
    return next(s for s in record.series if (s.role, s.quantity) == (name, quantity))


@pytest.mark.full
def test_under_a_cap_calls_take_longer_and_joules_are_those_that_were_spent(
    make_fake_nvml: MakeFakeNvml, tmp_path: Path, assay_home: Path
) -> None:
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)
    trial = Trial(
        block="b",
        roles=(
            role("cuda:0", fake_kernel.subject(MCYCLES, WATTS)),
            role("cuda:1", fake_kernel.subject(MCYCLES, WATTS), "load"),
        ),
        schedule="together",
        mode=Continuous(duration_s=4.5, settle_s=4.0),
        settings={"power_limit_w": CAP_W},
    )
    with attached(fake):
        record, records = measured(trial, tmp_path)
    assert (record.status, record.origin) == ("ok", "fake"), record.reason
    calls = series_of(record, "timed on cuda:0", "call_us")
    beside = series_of(record, "load on cuda:1", "call_us")
    middle_s = (calls.start_ns + calls.end_ns) / 2e9
    capped_mhz = max(s.sm_mhz for s in fake.segments(0) if s.capped)
    assert capped_mhz < 1600
    assert fake.true_power_w(0, middle_s) <= CAP_W
    # The shortest call: a busy machine lengthens the others.
    assert records.samples(calls).min() == pytest.approx(1e3 * MCYCLES / capped_mhz * 1e3, rel=0.05)
    assert records.samples(beside).min() == pytest.approx(1e3 * MCYCLES / 1980 * 1e3, rel=0.05)
    starts_us = records.samples(series_of(record, "timed on cuda:0", "start_us"))
    assert len(starts_us) == calls.n
    assert record.during is not None
    metered = True
    for gpu in record.during.gpus:
        truth_j = fake.true_energy_j(gpu.gpu, calls.start_ns / 1e9, calls.end_ns / 1e9)
        metered &= contains_true_energy(gpu.energy, gpu.energy_missing, truth_j)
    if metered:
        assert record.energy is not None
        assert record.energy.value == pytest.approx(sum(g.energy.value for g in record.during.gpus if g.energy))
    assert record.settled is not None
    assert record.settled.steady
    assert record.settled.waited_s >= 3.0
    assert set(record.settled.temperature_c.values()) == {35.0}
    assert {"set_w": 300.0, "read_w": 300.0} in [n.params for n in record.notes if n.code == "power_limit_set"]
    assert {s.role for s in record.estimates} == {"timed on cuda:0"}
    assert {s.quantity for s in record.estimates} == {"call_us"}
    assert [fake.gpu(index).power_limit_mw for index in range(2)] == [700_000, 700_000]
    assert list((assay_home / "leases").glob("*.json")) == []


MEASURE = """
import sys
from pathlib import Path
from assay.core.guardian import Guardian
from assay.core.values import Trial
from assay.launch.local import LocalStarter
from assay.launch.trial import Launcher
from assay.machine.detect import detect
here = Path.cwd()
with Guardian():
    outcome = Launcher(detect(), LocalStarter(here, here)).measure(Trial.model_validate_json(sys.argv[1]))
print(outcome.status, outcome.reason, *outcome.notes, sep="|")
"""


@pytest.mark.full
def test_a_gpu_lost_while_it_is_timed_fails_the_trial_and_its_limit_is_restored_once_it_is_back(
    make_fake_nvml: MakeFakeNvml, start_python: StartPython, tmp_path: Path, assay_home: Path
) -> None:
    fake = make_fake_nvml([hopper()], virtual=False)
    trial = Trial(
        block="b",
        roles=(role("cuda:0", fake_kernel.subject(MCYCLES, WATTS)),),
        mode=Continuous(duration_s=60),
        settings={"power_limit_w": CAP_W, "sm_mhz": 1200},
    )
    measuring = start_python(MEASURE, trial.model_dump_json(), env=fake.env(), cwd=tmp_path)

    def lose() -> None:
        wait_for(lambda: fake.true_power_w(0) > 100)
        fake.lose(0)

    losing = threading.Thread(target=lose)
    losing.start()
    assert measuring.stdout is not None
    status, reason, *notes = measuring.stdout.read().strip().split("|")
    losing.join()
    measuring.wait()
    assert status == "failed"
    assert "the GPU has fallen off the bus" in reason
    assert sum("Could not undo" in note for note in notes) == 2
    assert fake.gpu(0).power_limit_mw == 300_000
    with attached(fake):
        assert [report.outcome for report in leases.reap_leases()] == ["failed", "failed"]
        fake.find(0)
        assert [report.outcome for report in leases.reap_leases()] == ["released", "released"]
    assert (fake.gpu(0).power_limit_mw, fake.gpu(0).sm_lock_max_mhz) == (700_000, 0)
    assert list((assay_home / "leases").glob("*.json")) == []


def test_a_gpu_lost_while_nothing_ran_on_it_fails_the_trial_too(make_fake_nvml: MakeFakeNvml, tmp_path: Path) -> None:
    fake = make_fake_nvml([hopper()], virtual=False)
    idle = registry.resolve_subject("idle", device_kind="cuda", explicit={"context": "false", "period_s": "0.02"})
    trial = Trial(block="b", roles=(role("cuda:0", idle),), mode=Continuous(duration_s=0.3))
    with attached(fake):
        launcher = Launcher(detect(), LocalStarter(tmp_path, tmp_path))
        fake.lose(0)
        outcome = launcher.measure(trial)
    assert outcome.status == "failed"
    assert (outcome.reason or "").startswith("cuda:0: it was lost meanwhile: GPU GPU-fa4e")
