"""What isolation can hold here, at the edges of what was tried."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.core.results import IsolationLimit
from assay.isolation import probe
from assay.isolation.binding import HeldIsolation
from assay.isolation.placement import Allotment
from tests.machines import machine

if TYPE_CHECKING:
    from assay.core.results import IsolationCode
    from assay.core.values import Isolation
    from assay.machine.model import Machine


def limit(code: IsolationCode, level: Isolation, message: str = "") -> IsolationLimit:
    return IsolationLimit(code=code, level=level, message=message or code)


@pytest.mark.parametrize(
    ("cores", "gpus", "most"),
    [
        ((2,), (0, 0), 2),
        ((1,), (0, 0), 1),
        ((3,), (0,) * 8, 3),
        ((4,), (0,) * 8, 4),
        ((1, 2), (0, 0, 1), 1),
        ((1, 1), (0, 1, 0), 2),
    ],
)
def test_the_first_devices_that_share_no_core_are_counted(
    cores: tuple[int, ...], gpus: tuple[int, ...], most: int
) -> None:
    names = tuple(f"cuda:{n}" for n in range(len(gpus)))
    assert probe.max_fully_isolated(machine(cores=cores, gpus=gpus), names) == most


def test_a_child_has_half_a_minute_and_what_devices_share_limits_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], object]] = []

    def child(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append((words, options["timeout"]))
        return subprocess.CompletedProcess(words, 0, json.dumps([{"level": "full", "limits": []}] * (len(words) - 3)))

    monkeypatch.setattr(subprocess, "run", child)
    held = probe.probe_full_isolation(machine(cores=(2,), gpus=(0, 0, 0)), ("cuda:0", "cuda:1", "cuda:2"))
    assert [(each.level, [one.code for one in each.limits]) for each in held] == [
        ("gpu", ["shared_cores"]),
        ("full", []),
        ("gpu", ["shared_cores"]),
    ]
    ((words, timeout),) = asked
    assert timeout == 30
    assert [json.loads(word)["device"] for word in words[3:]] == ["cuda:0", "cuda:1", "cuda:2"]
    alone = probe.probe_full_isolation(machine(cores=(1,)), ("cpu:0",))
    assert [each.level for each in alone] == ["full"]


def tried(monkeypatch: pytest.MonkeyPatch, *held: HeldIsolation) -> list[tuple[str, ...]]:
    """Let a child have held this; return the devices that it will have been asked about."""
    asked: list[tuple[str, ...]] = []

    def child(_: Machine, names: tuple[str, ...]) -> list[HeldIsolation]:
        asked.append(names)
        return list(held)

    monkeypatch.setattr(probe, "probe_full_isolation", child)
    return asked


def test_all_gpus_are_tried_or_all_groups_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tried(monkeypatch, HeldIsolation("full"))
    (one, _) = probe.check_isolation(machine(cores=(4,), gpus=(0,)))
    (two, _) = probe.check_isolation(machine(cores=(4,), gpus=(0, 0)))
    (groups, _) = probe.check_isolation(machine(cores=(4,)))
    probe.check_isolation(machine(cores=(1,)))
    probe.check_isolation(machine(cores=(4,), gpus=(0, 0)), ("cuda:1",))
    assert asked == [("cuda:0",), ("cuda:0", "cuda:1"), ("cpu:0", "cpu:1"), ("cpu:0",), ("cuda:1",)]
    assert one.claim == "Full isolation can hold here"
    assert two.claim == groups.claim == "Full isolation can hold here for 2 devices at once"


@pytest.mark.parametrize(
    ("level", "word"),
    [
        ("none", "sched_setaffinity"),
        ("gpu", "sched_setaffinity"),
        ("cpu", "set_mempolicy"),
        ("numa", "more cores"),
        ("full", None),
    ],
)
def test_the_way_to_the_next_level_is_told(level: Isolation, word: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    tried(monkeypatch, HeldIsolation(level))
    (found, _) = probe.check_isolation(machine(cores=(4,)))
    assert (found.verdict, found.facts["level"]) == ("yes" if level == "full" else "no", level)
    assert (found.reason, found.facts["limit"]) == (f"{level} was tried and read back", None)
    assert (found.facts["devices"], found.facts["cores"], found.facts["most_devices_at_once"]) == (2, 4, 2)
    assert found.facts["fix"] is None if word is None else word in str(found.facts["fix"])


def test_the_reasons_for_the_lowest_level_are_told_three_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    first = HeldIsolation("cpu", (limit("memory_refused", "cpu", "one"), limit("shared_gpu", "none", "other")))
    tried(monkeypatch, first, HeldIsolation("full"))
    (found, _) = probe.check_isolation(machine(cores=(4,)))
    assert (found.reason, found.facts["limit"]) == ("one", "memory_refused")
    tried(monkeypatch, HeldIsolation("cpu", tuple(limit("memory_refused", "cpu", word) for word in "abcd")))
    (found, _) = probe.check_isolation(machine(cores=(4,)))
    assert found.reason == "a; b; c"


@pytest.mark.parametrize(("cores", "way"), [(1, "measure one after another"), (2, "measure at most 2 at once")])
def test_devices_that_share_cores_are_better_measured_fewer_at_once(
    cores: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(monkeypatch, HeldIsolation("gpu", (limit("shared_cores", "gpu"),)))
    (found, _) = probe.check_isolation(machine(cores=(cores,), gpus=(0, 0, 0)))
    assert str(found.facts["fix"]).endswith(way)


def test_a_core_for_the_parent_is_named_or_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried(monkeypatch, HeldIsolation("full"))
    (_, left) = probe.check_isolation(machine(cores=(4,)))
    assert (left.verdict, left.reason, left.facts["fix"]) == ("yes", "CPUs 2, 3", None)
    (_, none) = probe.check_isolation(machine(cores=(2,)))
    assert (none.verdict, none.reason) == ("no", "no core is left for the parent: every core is allotted")
    assert "more cores" in str(none.facts["fix"])


def test_the_child_answers_for_every_allotment_it_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [Allotment.model_validate({"device": "x", "level": level}).model_dump_json() for level in ("none", "gpu")]
    answer = [{"level": "none", "limits": []}, {"level": "gpu", "limits": []}]
    assert probe.main(*words) == 0
    assert json.loads(capsys.readouterr().out) == answer
    monkeypatch.setattr(sys, "argv", ["probe", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(probe.__file__), run_name="__main__")
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == answer
