"""What others do is judged against what a measurement bears."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.values import Adaptive, Role, Subject, Trial
from assay.launch import trial
from assay.machine import interference
from assay.machine.interference import (
    ProcessSnapshot,
    ProcessUsage,
    assess_disturbance,
    observe_disturbance,
    take_snapshot,
)
from assay.machine.model import GpuProcess
from tests.machines import machine
from tests.running import function, quickly, role

if TYPE_CHECKING:
    from tests.conftest import StartPython
    from tests.running import Measure

OUTSIDER = 999_999_999


def looks(
    outside_s: float, steal_s: float = 0.0, on_gpu: tuple[GpuProcess, ...] = ()
) -> tuple[ProcessSnapshot, ProcessSnapshot]:
    """Return two looks ten seconds apart, between which an outsider used so much CPU time."""
    before = ProcessSnapshot(
        at_s=0, processes=(ProcessUsage(pid=OUTSIDER, start_ticks=1, parent=1, name="hog", own_s=0),)
    )
    used = ProcessUsage(pid=OUTSIDER, start_ticks=1, parent=1, name="hog", own_s=outside_s)
    idle_s = 20 - outside_s - steal_s
    after = ProcessSnapshot(
        at_s=10, busy_s=outside_s, idle_s=idle_s, steal_s=steal_s, processes=(used,), gpu_processes=on_gpu
    )
    return before, after


def test_a_quiet_machine_gives_no_cause_for_complaint() -> None:
    assert assess_disturbance(*looks(0.5), cpus=2).complaints == ()


def test_load_from_outside_is_complained_of_with_its_name() -> None:
    seen = assess_disturbance(*looks(8.0), cpus=2)
    assert seen.outside_cores == pytest.approx(0.8)
    (complaint,) = seen.complaints
    assert complaint.message == "others used 0.80 cores, most of it hog"
    assert (complaint.kind, complaint.source, complaint.unit) == ("processes", "hog", "cores")
    assert complaint.amount == pytest.approx(0.8)
    assert [(who.pid, who.name, round(who.cores, 6)) for who in seen.busiest] == [(OUTSIDER, "hog", 0.8)]


def test_load_of_many_is_not_put_on_the_busiest_alone() -> None:
    before = ProcessSnapshot(at_s=0)
    names = [
        ProcessUsage(pid=OUTSIDER + n, start_ticks=1, parent=1, name=f"hog{n}", own_s=4 + n / 10) for n in range(4)
    ]
    after = ProcessSnapshot(at_s=10, busy_s=16.6, idle_s=20, processes=tuple(names))
    (complaint,) = assess_disturbance(before, after, cpus=4).complaints
    assert (complaint.source, complaint.message) == ("several processes", "others used 1.66 cores")


def test_load_that_cannot_be_seen_is_not_put_on_a_small_process_that_can() -> None:
    idle = ProcessUsage(pid=OUTSIDER, start_ticks=1, parent=1, name="cron", own_s=0.5)
    after = ProcessSnapshot(at_s=10, busy_s=15, idle_s=20, processes=(idle,))
    (complaint,) = assess_disturbance(ProcessSnapshot(at_s=0), after, cpus=4).complaints
    assert complaint.source == "processes that cannot be seen from here"


def test_a_busy_thread_of_the_kernel_is_complained_of_as_one() -> None:
    thread = ProcessUsage(pid=OUTSIDER, start_ticks=1, parent=2, name="kswapd0", own_s=9.0, kernel=True)
    after = ProcessSnapshot(at_s=10, busy_s=9, idle_s=11, processes=(thread,))
    (complaint,) = assess_disturbance(ProcessSnapshot(at_s=0), after, cpus=2).complaints
    assert (complaint.kind, complaint.source) == ("kernel", "kernel thread kswapd0")


def test_helpers_that_somebody_else_started_for_us_are_ours() -> None:
    assert assess_disturbance(*looks(8.0), cpus=2, helpers={OUTSIDER}).complaints == ()


def test_time_taken_by_the_hypervisor_is_complained_of() -> None:
    (complaint,) = assess_disturbance(*looks(0.0, steal_s=2.0), cpus=2).complaints
    assert (complaint.kind, complaint.unit) == ("hypervisor", "%")
    assert complaint.amount == pytest.approx(10.0)
    assert complaint.message == "the hypervisor took 10.0 % of the CPU time away"


def test_strangers_on_a_gpu_matter_only_if_it_is_one_of_ours() -> None:
    stranger = GpuProcess(gpu="GPU-a", pid=OUTSIDER, memory_mib=512.0, name="train")
    assert assess_disturbance(*looks(0.0, on_gpu=(stranger,)), cpus=2, gpus=("GPU-b",)).complaints == ()
    (complaint,) = assess_disturbance(*looks(0.0, on_gpu=(stranger,)), cpus=2, gpus=("GPU-a",)).complaints
    assert complaint.message == f"other processes are on the GPU: train ({OUTSIDER}, 512 MiB)"
    assert (complaint.kind, complaint.source) == ("gpu_processes", "train on the GPU")


def test_our_own_work_is_no_disturbance(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("fine")), mode=quickly(duration_s=1.0))
    assert outcome.disturbance is not None
    assert outcome.disturbance.outside_cores is not None
    assert not any("assay.worker" in who.name for who in outcome.disturbance.busiest)


def a_trial(policy: str) -> Trial:
    subject = Subject(workload="w", impl="numpy")
    only = Role(name="cpu:0", subjects=(subject,), devices=("cpu:0",))
    return Trial.model_validate(
        {"block": "b", "roles": (only,), "mode": Adaptive(duration_s=1), "on_interference": policy}
    )


def test_the_policies_warn_refuse_and_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy, quiet = assess_disturbance(*looks(8.0), cpus=2), assess_disturbance(*looks(0.0), cpus=2)
    heard = iter([noisy, noisy, quiet])
    monkeypatch.setattr(trial, "observe_disturbance", lambda *_, **__: next(heard))
    assert trial.InterferenceWatch.over(machine(), a_trial("warn")).refusal() is None
    refused = trial.InterferenceWatch.over(machine(), a_trial("refuse")).refusal()
    assert refused == "it is not quiet here: others used 0.80 cores, most of it hog"
    assert trial.InterferenceWatch.over(machine(), a_trial("wait")).refusal() is None
    assert list(heard) == []


def test_waiting_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "observe_disturbance", lambda *_, **__: assess_disturbance(*looks(8.0), cpus=2))
    monkeypatch.setattr(trial, "MAX_WAIT_S", 0.0)
    refused = trial.InterferenceWatch.over(machine(), a_trial("wait")).refusal()
    assert refused is not None
    assert "stayed so" in refused


def test_a_real_hog_that_is_not_ours_is_heard(start_python: StartPython, monkeypatch: pytest.MonkeyPatch) -> None:
    adopted = start_python(
        "import os, sys\n"
        "if os.fork():\n    sys.exit(0)\n"
        "print(os.getpid(), flush=True)\n"
        "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end:\n    pass\n"
    )
    assert adopted.stdout is not None
    hog = int(adopted.stdout.readline())
    adopted.wait()

    def without_busier_ones(**options: Any) -> ProcessSnapshot:
        seen = take_snapshot(**options)
        return seen.model_copy(update={"processes": tuple(p for p in seen.processes if p.pid in {hog, os.getpid()})})

    monkeypatch.setattr(interference, "take_snapshot", without_busier_ones)
    try:
        seen = observe_disturbance(1.0, cpus=len(os.sched_getaffinity(0)))
        assert any(who.pid == hog for who in seen.busiest)
        assert seen.complaints
    finally:
        os.kill(hog, 9)
