"""The level that holds is what was read back and shared with nobody: from values, and from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.values import Adaptive, Role, Subject, Trial
from assay.isolation.binding import HeldIsolation
from assay.isolation.placement import LEVELS, RunningWorker, allot_cores, overlap_limits
from assay.isolation.probe import check_isolation, max_fully_isolated
from assay.launch.trial import TrialPlacement, predict_isolation, roles_overlap
from assay.machine.detect import detect
from tests.machines import machine, machines
from tests.running import function, quickly, role

if TYPE_CHECKING:
    from assay.core.values import Isolation
    from assay.machine.model import Machine
    from tests.running import Measure

FOUR = machine(cores=(4,), smt=2)
"""Cores 0 to 3 with their siblings 4 to 7."""


def levels(*workers: RunningWorker, on: Machine = FOUR) -> list[tuple[str, list[str]]]:
    """Return what holds for each of some workers at the same time, and the codes of what limits it."""
    limits = overlap_limits(workers, {"": on})
    held = [HeldIsolation(worker.level).limited(*more) for worker, more in zip(workers, limits, strict=True)]
    return [(each.level, [limit.code for limit in each.limits]) for each in held]


def test_disjoint_workers_hold_what_they_were_given() -> None:
    assert levels(RunningWorker("a", "full", (0, 4)), RunningWorker("b", "full", (1, 5))) == [
        ("full", []),
        ("full", []),
    ]


def test_two_workers_on_one_core_hold_nothing() -> None:
    (one, other) = overlap_limits((RunningWorker("a", "full", (0, 1)), RunningWorker("b", "cpu", (1, 2))), {"": FOUR})
    assert (one[0].code, one[0].level, one[0].shared_with, one[0].cpus) == ("shared_cores", "none", ("b",), (1,))
    assert one[0].message == "a shares core 1 with b"
    assert other[0].message == "b shares core 1 with a"


def test_two_siblings_of_one_physical_core_are_one_core() -> None:
    assert (
        levels(RunningWorker("a", "full", (2,)), RunningWorker("b", "full", (6,))) == [("none", ["shared_cores"])] * 2
    )


def test_a_worker_that_is_not_pinned_takes_the_cores_of_those_that_are() -> None:
    found = levels(RunningWorker("victim", "full", (0, 4)), RunningWorker("load", "none", tuple(range(8))))
    assert found == [("none", ["shared_cores"]), ("none", [])]


def test_workers_of_gpus_keep_their_gpu_where_they_share_a_core() -> None:
    found = levels(
        RunningWorker("a", "full", (0,), {"GPU-0": "cuda:0"}), RunningWorker("b", "full", (0,), {"GPU-1": "cuda:1"})
    )
    assert found == [("gpu", ["shared_cores"])] * 2


def test_two_workers_on_one_gpu_have_no_gpu_of_their_own() -> None:
    one, other = (
        RunningWorker("a", "full", (0,), {"GPU-0": "cuda:0"}),
        RunningWorker("b", "gpu", (1,), {"GPU-0": "cuda:0"}),
    )
    assert levels(one, other) == [("none", ["shared_gpu"])] * 2


def test_workers_on_different_machines_share_nothing() -> None:
    here, there = RunningWorker("a", "full", (0,), boot_id="x"), RunningWorker("b", "full", (0,), boot_id="y")
    assert overlap_limits((here, there), {}) == [(), ()]


cpus = st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True).map(tuple)
occupants = st.lists(st.builds(RunningWorker, st.text("ab", max_size=2), st.sampled_from(LEVELS), cpus), max_size=5)


@settings(deadline=None)
@given(occupants)
def test_a_level_of_cores_holds_only_where_no_physical_core_is_anothers(workers: list[RunningWorker]) -> None:
    cores = [{cpu % 4 for cpu in worker.cpus} for worker in workers]
    for at, (level, _) in enumerate(levels(*workers)):
        alone = not any(cores[at] & cores[other] for other in range(len(workers)) if other != at)
        asked = workers[at].level
        assert level == (asked if alone or asked in {"none", "gpu"} else "none")


@settings(deadline=None, max_examples=60)
@given(machines(), st.integers(1, 8), st.sampled_from(("cpu", "numa", "full")))
def test_what_is_placed_holds_or_a_note_says_that_cores_are_shared(made: Machine, gpus: int, level: Isolation) -> None:
    made = machine(cores=[len(made.cores)], gpus=[0] * gpus)
    devices = tuple(f"cuda:{n}" for n in range(gpus))
    placement = allot_cores(made, devices, level)
    workers = [RunningWorker(a.device, level, a.cpus or (), {str(a.gpu_uuid): a.device}) for a in placement.allotments]
    shared = any(overlap_limits(workers, {"": made}))
    assert shared == (gpus > len(made.cores))
    assert shared == ("gpus_share_cores" in {note.code for note in placement.notes})


def trial(schedule: str, *roles: Role) -> Trial:
    return Trial.model_validate({"block": "b", "roles": roles, "mode": Adaptive(duration_s=1), "schedule": schedule})


def on(device: str, name: str = "", *, duty: str = "timed", isolation: str = "full") -> Role:
    made = {"name": name or device, "subjects": (Subject(workload="w", impl="numpy"),), "devices": (device,)}
    return Role.model_validate({**made, "duty": duty, "isolation": isolation})


def test_workers_in_turns_or_one_after_another_do_not_run_together_and_loads_always_do() -> None:
    one, other, load = on("cpu:0", "a"), on("cpu:0", "b"), on("host", "load", duty="load")
    for schedule, together in (("alone", False), ("turns", False), ("together", True)):
        assert roles_overlap(trial(schedule, one, other, load), one, other) == together
        assert roles_overlap(trial(schedule, one, other, load), one, load)


@pytest.mark.parametrize(("schedule", "level"), [("together", "gpu"), ("alone", "full")])
def test_eight_gpus_on_two_cores_cannot_all_be_isolated_at_once(schedule: str, level: str) -> None:
    made = machine(cores=(2,), gpus=[0] * 8)
    asked = trial(schedule, *(on(f"cuda:{n}") for n in range(8)))
    found = predict_isolation(asked, TrialPlacement(asked, made, {}))
    assert {held.level for held in found.values()} == {level}


def test_the_doctor_says_the_level_that_holds_for_all_devices_at_once() -> None:
    here = detect()
    made = here.model_copy(update={"gpus": machine(gpus=[0] * 8).gpus, "cores": here.cores[:2]})
    (full, _) = check_isolation(made)
    assert full.verdict == "no"
    assert (full.facts["level"], full.facts["limit"], full.facts["devices"]) == ("gpu", "shared_cores", 8)
    assert full.facts["most_devices_at_once"] == len(made.cores)
    assert "measure" in str(full.facts["fix"])
    assert "shares core" in str(full.reason)
    (few, _) = check_isolation(made, ("cuda:0",))
    assert (few.facts["devices"], few.facts["limit"] == "shared_cores") == (1, False)


def test_how_many_devices_fit_is_found_from_the_cores() -> None:
    made = machine(cores=(3,), smt=2, gpus=[0] * 8)
    assert max_fully_isolated(made, tuple(f"cuda:{n}" for n in range(8))) == 3
    assert max_fully_isolated(machine(cores=(1,), gpus=[0, 0]), ("cuda:0", "cuda:1")) == 1


def test_two_real_workers_on_one_core_do_not_hold_full(measure: Measure) -> None:
    both = [role(name, function("fine"), isolation="full") for name in ("first", "second")]
    outcome = measure(*both, mode=quickly(duration_s=0.6), schedule="together")
    assert outcome.status == "ok", outcome.reason
    assert outcome.evidence[0].allowed_cores == outcome.evidence[1].allowed_cores
    assert [e.isolation_held for e in outcome.evidence] == ["none", "none"]
    codes = {(e.role, limit.code, limit.shared_with) for e in outcome.evidence for limit in e.isolation_limits}
    assert {("first", "shared_cores", ("second",)), ("second", "shared_cores", ("first",))} <= codes
    (note,) = [
        note for note in outcome.notes if note.message.startswith("isolation full did not hold, only none: first")
    ]
    assert (note.code, note.params) == ("shared_cores", {"requested": "full", "held": "none"})


def test_two_real_workers_in_turns_on_one_core_each_had_it_for_themselves(measure: Measure) -> None:
    both = [role(name, function("fine"), isolation="cpu") for name in ("first", "second")]
    outcome = measure(*both, mode=quickly(duration_s=0.6), schedule="turns")
    assert [e.isolation_held for e in outcome.evidence] == ["cpu", "cpu"], outcome.notes


THREADED = """
import os, threading
from assay.isolation.binding import process_cpus, pin_threads
stop = threading.Event()
started = threading.Thread(target=stop.wait)
started.start()
os.sched_setaffinity(0, {0})
assert process_cpus() == tuple(sorted(os.sched_getaffinity(started.native_id))) != (0,), process_cpus()
pin_threads({0})
assert process_cpus() == (0,), process_cpus()
stop.set()
"""


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or 0 not in os.sched_getaffinity(0), reason="needs core 0 and one more"
)
def test_threads_that_were_there_before_are_pinned_too() -> None:
    subprocess.run([sys.executable, "-c", THREADED], check=True, timeout=60)
