"""A role in stages: one process, one subject after another, each with a window and joules of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from pydantic import ValidationError

from assay.core.values import Role, Staged, Subject, Trial
from tests.fakes import fake_kernel
from tests.fakes.fake_nvml import attached, hopper
from tests.fakes.metered import contains_true_energy
from tests.once import measured
from tests.running import function, quickly

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Measure


def in_stages(*subjects: Subject, device: str = "cpu:0", metered: tuple[str, ...] = ()) -> Role:
    isolation = "gpu" if device.startswith("cuda") else "none"
    return Role(name="model", subjects=subjects, devices=(device,), isolation=isolation, metered=metered)


def staged(stage_s: float = 0.05, **changes: object) -> Staged:
    return quickly(Staged, duration_s=60.0, stage_s=stage_s, **changes)


@pytest.mark.full
def test_stages_follow_one_another_in_one_process_and_one_that_fails_is_left_out(measure: Measure) -> None:
    named = ("fine", "raises", "fine")
    found = measure(in_stages(*map(function, named)), mode=staged(min_calls=3), restarts=2)
    assert (found.status, found.reason) == ("ok", None)
    calls = {(s.subject, s.restart): len(s.data) // 8 for s in found.series if s.quantity == "call_us"}
    assert set(calls) == {(0, 0), (0, 1), (2, 0), (2, 1)}
    assert min(calls.values()) >= 3
    windows = {(s.subject, s.restart): (s.start_ns, s.end_ns) for s in found.series}
    assert windows[0, 0][1] <= windows[2, 0][0]
    assert all(end - start >= 50e6 for start, end in windows.values())
    assert len({e.pid for e in found.evidence}) == 2
    facts = found.evidence[0].subjects
    assert [bool(each.skipped) for each in facts] == [False, True, False]
    assert all(each.is_reached for each in facts)


def test_what_was_measured_before_a_stage_that_ends_the_process_is_kept(measure: Measure) -> None:
    found = measure(in_stages(function("fine"), function("killed"), function("fine")), mode=staged())
    assert found.status == "failed"
    assert {s.subject for s in found.series} == {0}


def test_what_the_first_stage_lacks_nobody_has(measure: Measure) -> None:
    found = measure(in_stages(Subject(workload="nowhere.py:x", impl="python"), function("fine")), mode=staged())
    assert found.status in {"failed", "refused"}
    assert "nowhere.py" in (found.reason or "")


@pytest.mark.full
def test_what_cannot_be_on_any_machine_is_told_as_such(measure: Measure) -> None:
    nonsense = Subject(workload="sofmax", impl="numpy")
    found = measure(in_stages(nonsense, function("fine")), mode=staged())
    assert (found.status, found.invalid_request) == ("failed", True)
    assert not found.stderr_tail
    later = measure(in_stages(function("fine"), nonsense), mode=staged())
    assert [each.skipped and each.skipped.code for each in later.evidence[0].subjects] == [None, "bad_input"]


def test_stages_that_do_not_fit_the_duration_are_said(measure: Measure) -> None:
    method = staged(stage_s=0.3).model_copy(update={"duration_s": 0.2})
    found = measure(in_stages(function("fine"), function("fine")), mode=method)
    assert [note.params for note in found.notes if note.code == "stages_cut"] == [{"stages": 1, "requested": 2}]
    assert [each.is_reached for each in found.evidence[0].subjects] == [True, False]


@pytest.mark.full
def test_each_stage_has_the_joules_that_were_spent_in_it_on_all_metered_gpus(
    make_fake_nvml: MakeFakeNvml, tmp_path: Path
) -> None:
    fake = make_fake_nvml([hopper(), hopper(), hopper()], virtual=False)
    work = (fake_kernel.subject(40.0, 100.0), fake_kernel.subject(40.0, 500.0))
    trial = Trial(
        block="b",
        roles=(in_stages(*work, device="cuda:0", metered=("cuda:2",)),),
        mode=Staged(duration_s=60.0, stage_s=2.5),
    )
    with attached(fake):
        record, records = measured(trial, tmp_path)
    assert (record.status, record.origin) == ("ok", "fake"), record.reason
    assert [stage.subject for stage in record.stages] == [0, 1]
    for stage in record.stages:
        assert stage.during is not None
        assert [gpu.gpu for gpu in stage.during.gpus] == [0, 2]
        true_j = [fake.true_energy_j(gpu, stage.start_ns / 1e9, stage.end_ns / 1e9) for gpu in (0, 2)]
        if contains_true_energy(stage.energy, stage.energy_missing, sum(true_j)):
            idle = stage.during.gpus[1].energy
            assert idle is not None
            assert idle.value == pytest.approx(true_j[1], rel=0.1)
    per_call_j = [stage.energy.value / stage.calls for stage in record.stages if stage.energy is not None]
    assert len(per_call_j) < 2 or per_call_j[1] > 1.5 * per_call_j[0]
    starts = [s for s in record.series if s.quantity == "start_us"]
    assert all(np.all(np.diff(records.samples(s)) > 0) for s in starts)
    assert {each.quantity for each in record.estimates} == {"call_us"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedule": "turns"}, "turns alternate"),
        ({"profile": True}, "prepared one after another"),
    ],
)
def test_stages_are_measured_alone(changes: dict[str, object], said: str) -> None:
    role = in_stages(function("fine"))
    with pytest.raises(ValidationError, match=said):
        Trial(**{"block": "b", "roles": (role,), "mode": staged(), **changes})
