"""Where isolation tips over: one core, one worker, one CPU or one word more or fewer, worked out by hand."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.core.plan import HOST
from assay.core.results import IsolationLimit
from assay.isolation import bind as binding
from assay.isolation import devices, probe
from assay.isolation.allot import LEVELS, Allotment, allot, at_least, parse_level
from assay.isolation.bind import Held, bind, bind_memory, bound_nodes, memory_limits, memory_policy, still_held
from assay.isolation.overlap import Occupant, overlap_limits
from assay.isolation.shares import equal_groups, group_count, share_out
from assay.isolation.targets import targets
from assay.machine.model import Core, Limits, LostGpu, MigInstance, Node
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from assay.core.plan import Isolation
    from assay.core.results import IsolationCode
    from assay.isolation.allot import Placement
    from assay.machine.model import Machine

NOTHING: dict[str, str] = {}
KILOBIT = 1024
"""How many memory nodes the kernel's mask has room for."""


def cut(*, instances: int = 2) -> Machine:
    """Return a machine whose GPU 0 is in MIG mode and whose GPU 1 is whole."""
    made = machine(cores=(8,), gpus=(0, 0))
    pieces = tuple(MigInstance(number=n, uuid=f"MIG-{n}", parent="GPU-0", profile="1g.18gb") for n in range(instances))
    first = made.gpus[0].model_copy(update={"mig": True, "instances": pieces})
    return made.model_copy(update={"gpus": (first, made.gpus[1])})


def cpus(placement: Placement, *names: str) -> list[tuple[int, ...]]:
    """Return the CPUs of the first worker of some devices."""
    return [placement.of(name).cpus or () for name in names]


# ----------------------------------------------------------------- who is who


def test_a_gpu_in_mig_mode_is_its_instances_and_every_other_is_itself() -> None:
    assert {name: (one.uuid, one.node, one.title) for name, one in targets(cut()).items()} == {
        "cuda:0/0": ("MIG-0", 0, "Example MIG 1g.18gb"),
        "cuda:0/1": ("MIG-1", 0, "Example MIG 1g.18gb"),
        "cuda:1": ("GPU-1", 0, "Example"),
    }


# ----------------------------------------------------------------- overlap


def told(*workers: Occupant, on: Machine | None = None) -> list[list[tuple[str, str, tuple[str, ...]]]]:
    """Return the code, the level and the neighbours of every limit of each worker."""
    limits = overlap_limits(workers, {"": on or machine()})
    return [[(limit.code, limit.level, limit.shared_with) for limit in each] for each in limits]


def test_only_workers_that_run_together_share() -> None:
    three = [Occupant(name, "cpu", (0,)) for name in "abc"]
    found = overlap_limits(three, {"": machine()}, lambda one, other: {one, other} == {0, 1})
    assert [[limit.shared_with for limit in each] for each in found] == [[("b",)], [("a",)], []]
    every = overlap_limits(three, {"": machine()})
    assert [[limit.shared_with for limit in each] for each in every] == [[("b", "c")], [("a", "c")], [("a", "b")]]


def test_workers_of_two_machines_share_nothing_and_those_of_one_do() -> None:
    three = [Occupant(name, "cpu", (0,), boot_id=boot) for name, boot in (("a", "x"), ("b", "y"), ("c", "x"))]
    found = overlap_limits(three, {"x": machine(), "y": machine()}, lambda *_: True)
    assert [[limit.shared_with for limit in each] for each in found] == [[("c",)], [], [("a",)]]


def test_a_cpu_that_is_not_known_is_a_core_of_no_package() -> None:
    there = machine(cores=(1,)).model_copy(update={"cores": (Core(package=1, core=9, node=0, cpus=(0,)),)})
    assert told(Occupant("a", "cpu", (0,)), Occupant("b", "cpu", (9,)), on=there) == [[], []]
    assert told(Occupant("a", "cpu", (9,)), Occupant("b", "cpu", (9,)), on=there) == [
        [("shared_cores", "none", ("b",))],
        [("shared_cores", "none", ("a",))],
    ]


def test_what_is_shared_limits_only_who_asked_for_it() -> None:
    gpu = {"GPU-0": "cuda:0"}
    both = [Occupant("none", "none", (0,), gpu), Occupant("gpu", "gpu", (0,), gpu), Occupant("cpu", "cpu", (0,), gpu)]
    assert told(*both) == [
        [],
        [("shared_gpu", "none", ("none", "cpu"))],
        [("shared_cores", "gpu", ("none", "gpu")), ("shared_gpu", "none", ("none", "gpu"))],
    ]
    assert told(Occupant("a", "cpu", (0,), gpu), Occupant("b", "cpu", (1,), {"GPU-1": "cuda:1"})) == [[], []]


def test_the_gpus_that_are_shared_are_named_and_the_others_are_not() -> None:
    one = Occupant("a", "gpu", (0,), {"GPU-2": "cuda:2", "GPU-1": "cuda:1", "GPU-0": "cuda:0"})
    (limit,), _ = overlap_limits((one, Occupant("b", "gpu", (1,), {"GPU-2": "cuda:2", "GPU-0": "cuda:0"})), {})
    assert limit.message == "a shares cuda:0, cuda:2 with b"


@pytest.mark.parametrize(
    ("others", "listed"),
    [
        ("b", "b"),
        ("bc", "b and c"),
        ("bcd", "b, c and d"),
        ("bcde", "b, c, d and 1 more"),
        ("bcdef", "b, c, d and 2 more"),
    ],
)
def test_three_neighbours_are_named_and_the_others_counted(others: str, listed: str) -> None:
    found = overlap_limits([Occupant(name, "cpu", (0, 1)) for name in ("a", *others)], {"": machine()})
    assert found[0][0].message == f"a shares cores 0, 1 with {listed}"
    assert found[0][0].cpus == (0, 1)


# ----------------------------------------------------------------- allotments


def test_levels_go_from_none_to_full() -> None:
    for at, level in enumerate(LEVELS):
        assert [at_least(level, other) for other in LEVELS] == [True] * (at + 1) + [False] * (4 - at)
        assert parse_level(level) == level
    assert Allotment(device="cpu:0", level="none").worker == 0


def test_the_workers_of_a_device_are_told_apart() -> None:
    placement = allot(machine(cores=(8,), gpus=(0, 0)), ("cuda:0", "cuda:1"), "cpu", workers={"cuda:1": 2})
    assert [(a.device, a.worker, a.cpus, a.gpu_uuid) for a in placement.allotments] == [
        ("cuda:0", 0, (0, 1, 2, 3), "GPU-0"),
        ("cuda:1", 0, (4, 5), "GPU-1"),
        ("cuda:1", 1, (6, 7), "GPU-1"),
    ]
    assert placement.of("cuda:1") == placement.allotments[1]
    assert placement.of("cuda:1", 1) == placement.allotments[2]


@pytest.mark.parametrize(("level", "uuid"), [("none", None), ("gpu", "GPU-0")])
def test_below_the_level_of_cores_nothing_but_a_gpu_is_ones_own(level: Isolation, uuid: str | None) -> None:
    placement = allot(machine(gpus=(0,)), ("cuda:0", HOST), level, workers={"cuda:0": 2})
    assert [(a.device, a.worker, a.gpu_uuid) for a in placement.allotments] == [
        ("cuda:0", 0, uuid),
        ("cuda:0", 1, uuid),
        (HOST, 0, None),
    ]
    assert {a.cpus for a in placement.allotments} == {None}


def test_the_full_level_alone_keeps_a_core_and_limits_threads() -> None:
    there = machine(cores=(4,), smt=2)
    cpu, full = (allot(there, ("cpu:0", "cpu:1"), level) for level in ("cpu", "full"))
    assert (cpus(cpu, "cpu:0", "cpu:1"), cpu.kept_cpus, cpu.notes) == ([(0, 1, 4, 5), (2, 3, 6, 7)], (), ())
    assert (cpus(full, "cpu:0", "cpu:1"), full.kept_cpus, full.notes) == ([(0, 4), (1, 5)], (2, 3, 6, 7), ())
    assert [(p.of("cpu:0").threads, p.of("cpu:0").nodes) for p in (cpu, full)] == [(None, None), (1, (0,))]


def test_where_no_core_is_left_for_the_parent_only_the_full_level_says_so() -> None:
    there = machine(cores=(2,))
    assert allot(there, ("cpu:0", "cpu:1"), "numa").notes == ()
    full = allot(there, ("cpu:0", "cpu:1"), "full")
    assert full.notes == ("no core is left for the parent: every core is allotted",)
    assert full.kept_cpus == ()


def with_memory(*mib: float | None, distances: tuple[int, ...]) -> Machine:
    """Return a machine of three nodes of one core each, with so much memory and these distances from node 0."""
    far = (distances, (20, 10, 20), (20, 20, 10)) if distances else ((), (), ())
    nodes = tuple(Node(id=n, cpus=(n,), memory_mib=mib[n], distances=far[n]) for n in range(3))
    return machine(cores=(1, 1, 1), gpus=(0,), nodes=nodes)


@pytest.mark.parametrize(
    ("mib", "distances", "home"),
    [
        ((0.0, 64.0, 64.0), (10, 32, 16), 2),
        ((0.0, 64.0, 64.0), (10, 16, 32), 1),
        ((0.0, 64.0, 1.0), (10, 32, 16), 2),
        ((0.0, 64.0, None), (10, 32, 16), 2),
        ((0.0, 64.0, 0.0), (10, 32, 16), 1),
        ((1.0, 64.0, 64.0), (10, 32, 16), None),
        ((None, 64.0, 64.0), (10, 32, 16), None),
        ((0.0, 0.0, 0.0), (10, 32, 16), None),
        ((0.0, 64.0, 64.0), (), None),
    ],
)
def test_memory_comes_from_the_nearest_node_that_has_some(
    mib: tuple[float | None, ...], distances: tuple[int, ...], home: int | None
) -> None:
    placement = allot(with_memory(*mib, distances=distances), ("cuda:0",), "numa")
    assert placement.of("cuda:0").nodes == (home or 0,)
    told_of = [note for note in placement.notes if note.startswith("node 0 has no memory")]
    assert told_of == ([f"node 0 has no memory: that of node {home}, the nearest, is used"] if home else [])
    assert not [note for note in placement.notes if note.startswith("node 1") and mib[1]]


@pytest.mark.parametrize(("quota", "said"), [(None, False), (4.0, False), (4.5, False), (3.99, True)])
def test_a_quota_of_exactly_the_allotted_cpus_is_enough(quota: float | None, said: bool) -> None:
    there = machine(cores=(4,), limits=Limits(cpu_quota=quota))
    notes = allot(there, ("cpu:0", "cpu:1"), "cpu").notes
    assert notes == (
        ("the control group allows 3.99 CPUs' worth of time on 4 CPUs: busy workers are paused",) if said else ()
    )


# ----------------------------------------------------------------- shares


def test_the_cores_are_parted_in_two_or_as_wanted() -> None:
    assert [group_count(machine(cores=(n,)), None) for n in (1, 2, 3)] == [1, 2, 2]
    assert [group_count(machine(cores=(3,)), n) for n in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(BadInput):
        group_count(machine(cores=(3,)), 0)
    with pytest.raises(MachineCannot):
        group_count(machine(cores=(3,)), 4)


@pytest.mark.parametrize(
    ("cores", "count", "keep", "least", "parts"),
    [
        (4, 2, False, 1, [[0, 1], [2, 3]]),
        (5, 2, False, 1, [[0, 1], [2, 3]]),
        (6, 3, False, 1, [[0, 1], [2, 3], [4, 5]]),
        (4, 2, True, 1, [[0], [1]]),
        (4, 2, True, 2, [[0, 1], [2, 3]]),
        (5, 2, True, 2, [[0, 1], [2, 3]]),
        (6, 2, True, 2, [[0, 1], [2, 3]]),
        (2, 1, True, 1, [[0]]),
        (1, 1, True, 1, [[0]]),
        (3, 1, True, 1, [[0, 1]]),
    ],
)
def test_a_core_is_left_out_where_every_group_still_has_enough(
    cores: int, count: int, keep: bool, least: int, parts: list[list[int]]
) -> None:
    found = equal_groups(machine(cores=(cores,)).cores, count, keep=keep, least=least)
    assert [[core.core for core in part] for part in found] == parts


def test_one_core_is_enough_for_a_group_unless_more_is_said() -> None:
    assert [len(part) for part in equal_groups(machine(cores=(2,)).cores, 1, keep=True)] == [1]


@pytest.mark.parametrize(("gpus", "names"), [((), ("cpu:0", "cpu:1")), ((0, 0), ("cuda:0", "cuda:1"))])
def test_a_core_is_kept_only_where_the_device_with_most_workers_can_spare_it(
    gpus: tuple[int, ...], names: tuple[str, str]
) -> None:
    there = machine(cores=(4,), gpus=gpus)
    assert cpus(allot(there, names, "full"), *names) == [(0,), (1,)]
    for counts in ({names[0]: 2}, {names[1]: 2}):
        placement = allot(there, names, "full", workers=counts)
        assert sorted(cpu for each in placement.allotments for cpu in each.cpus or ()) == [0, 1, 2, 3]
        assert [len(each.cpus or ()) for each in placement.allotments if each.device in counts] == [1, 1]


@pytest.mark.parametrize(
    ("cores", "names", "groups", "shares", "notes"),
    [
        (6, ("cpu:0", "cpu:1"), 2, [(0, 1, 2), (3, 4, 5)], ()),
        (6, ("cpu:0", "cpu:1", HOST), 2, [(0, 1), (2, 3), (4, 5)], ()),
        (6, ("cpu:0", HOST), 2, [(0, 1, 2), (3, 4, 5)], ()),
        (6, ("cpu:1", HOST), 2, [(3, 4, 5), (0, 1, 2)], ()),
        (6, ("cpu:0", HOST), 3, [(0, 1), (2, 3)], ()),
        (3, ("cpu:0", "cpu:1", HOST), 2, [(0,), (1,), (2,)], ()),
        (4, (HOST,), 2, [(0, 1)], ()),
        (4, (HOST,), 1, [(0, 1, 2, 3)], ()),
        (1, (HOST,), 1, [(0,)], ()),
        (
            2,
            ("cpu:0", "cpu:1", HOST),
            2,
            [(0,), (1,), (0, 1)],
            ("2 cores for cpu:0, cpu:1 and the host: it shares their cores",),
        ),
    ],
)
def test_the_host_beside_groups_gets_a_free_group_or_one_more(
    cores: int, names: tuple[str, ...], groups: int, shares: list[tuple[int, ...]], notes: tuple[str, ...]
) -> None:
    placement = allot(machine(cores=(cores,)), names, "cpu", cpu_groups=groups)
    assert (cpus(placement, *names), placement.notes) == (shares, notes)


@pytest.mark.parametrize(
    ("cores", "gpus", "host", "rest", "notes"),
    [
        ((3,), (0,), (2,), [(0, 1)], 0),
        ((3,), (0, 0), (2,), [(0,), (1,)], 0),
        ((2,), (0, 0), (0, 1), [(0,), (1,)], 1),
        ((12,), (0, 0, 0), (9, 10, 11), [(0, 1, 2), (3, 4, 5), (6, 7, 8)], 0),
        ((6, 4), (0, 0, 0, 1), (8, 9), [(0, 1), (2, 3), (4, 5), (6, 7)], 0),
        ((2, 1), (0, 1, 1), (1,), [(0,), (2,), (2,)], 1),
    ],
)
def test_the_host_beside_gpus_takes_from_who_has_the_most_for_each(
    cores: tuple[int, ...],
    gpus: tuple[int, ...],
    host: tuple[int, ...],
    rest: list[tuple[int, ...]],
    notes: int,
) -> None:
    names = tuple(f"cuda:{n}" for n in range(len(gpus)))
    placement = allot(machine(cores=cores, gpus=gpus), (*names, HOST), "cpu")
    assert cpus(placement, HOST, *names) == [host, *rest]
    assert len(placement.notes) == notes


@pytest.mark.parametrize(("cores", "said"), [((2,), 0), ((1, 1), 1), ((1, 1, 1), 1)])
def test_a_gpu_of_no_known_node_is_told_of_where_there_are_several_nodes(cores: tuple[int, ...], said: int) -> None:
    placement = allot(machine(cores=cores, gpus=(None,)), ("cuda:0",), "cpu")
    assert cpus(placement, "cuda:0") == [tuple(range(sum(cores)))]
    assert [note.partition(";")[0] for note in placement.notes] == ["the memory node of cuda:0 is not known"] * said


def test_as_many_cores_as_gpus_are_enough_and_one_fewer_is_not() -> None:
    enough = allot(machine(cores=(2, 1), gpus=(0, 0)), ("cuda:0", "cuda:1"), "cpu")
    assert (cpus(enough, "cuda:0", "cuda:1"), enough.notes) == ([(0,), (1,)], ())
    names = ("cuda:0", "cuda:1", "cuda:2")
    short = allot(machine(cores=(2, 1), gpus=(0, 0, 0)), names, "cpu")
    assert cpus(short, *names) == [(0,), (1,), (0,)]
    assert short.notes == ("2 cores on node 0 for 3 GPUs: cuda:0, cuda:1, cuda:2 share cores",)


@pytest.mark.parametrize(
    ("count", "shares", "said"),
    [(1, [[0, 1]], False), (2, [[0], [1]], False), (3, [[0], [1], [0]], True)],
)
def test_the_cores_of_a_device_are_shared_out_to_its_workers(count: int, shares: list[list[int]], said: bool) -> None:
    seats, notes = share_out(machine(cores=(4,)), {"cpu:0": count}, keep=False)
    assert list(seats) == [("cpu:0", worker) for worker in range(count)]
    assert [[core.core for core in part] for part in seats.values()] == shares
    assert notes == (("2 cores of cpu:0 for 3 workers: they share cores",) if said else ())


@pytest.mark.parametrize("names", [("cuda:0", "cpu:0"), ("cpu:0", "cuda:0"), ("cuda:0", "cuda:1", "cpu:0")])
def test_gpus_beside_groups_of_cores_are_refused_in_any_order(names: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match="side by side"):
        allot(machine(gpus=(0, 0)), names, "cpu")


# ----------------------------------------------------------------- what can hold


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
    assert probe.most_at_full(machine(cores=cores, gpus=gpus), names) == most


def test_a_child_has_half_a_minute_and_what_devices_share_limits_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], object]] = []

    def child(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append((words, options["timeout"]))
        return subprocess.CompletedProcess(words, 0, json.dumps([{"level": "full", "limits": []}] * (len(words) - 3)))

    monkeypatch.setattr(subprocess, "run", child)
    held = probe.try_full(machine(cores=(2,), gpus=(0, 0, 0)), ("cuda:0", "cuda:1", "cuda:2"))
    assert [(each.level, [one.code for one in each.limits]) for each in held] == [
        ("gpu", ["shared_cores"]),
        ("full", []),
        ("gpu", ["shared_cores"]),
    ]
    ((words, timeout),) = asked
    assert timeout == 30
    assert [json.loads(word)["device"] for word in words[3:]] == ["cuda:0", "cuda:1", "cuda:2"]
    alone = probe.try_full(machine(cores=(1,)), ("cpu:0",))
    assert [each.level for each in alone] == ["full"]


def tried(monkeypatch: pytest.MonkeyPatch, *held: Held) -> list[tuple[str, ...]]:
    """Let a child have held this; return the devices that it will have been asked about."""
    asked: list[tuple[str, ...]] = []

    def child(_: Machine, names: tuple[str, ...]) -> list[Held]:
        asked.append(names)
        return list(held)

    monkeypatch.setattr(probe, "try_full", child)
    return asked


def test_all_gpus_are_tried_or_all_groups_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tried(monkeypatch, Held("full"))
    (one, _) = probe.checks(machine(cores=(4,), gpus=(0,)))
    (two, _) = probe.checks(machine(cores=(4,), gpus=(0, 0)))
    (groups, _) = probe.checks(machine(cores=(4,)))
    probe.checks(machine(cores=(1,)))
    probe.checks(machine(cores=(4,), gpus=(0, 0)), ("cuda:1",))
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
    tried(monkeypatch, Held(level))
    (found, _) = probe.checks(machine(cores=(4,)))
    assert (found.verdict, found.facts["level"]) == ("yes" if level == "full" else "no", level)
    assert (found.reason, found.facts["limit"]) == (f"{level} was tried and read back", None)
    assert (found.facts["devices"], found.facts["cores"], found.facts["most_devices_at_once"]) == (2, 4, 2)
    assert found.facts["fix"] is None if word is None else word in str(found.facts["fix"])


def test_the_reasons_for_the_lowest_level_are_told_three_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Held("cpu", (limit("memory_refused", "cpu", "one"), limit("shared_gpu", "none", "other")))
    tried(monkeypatch, first, Held("full"))
    (found, _) = probe.checks(machine(cores=(4,)))
    assert (found.reason, found.facts["limit"]) == ("one", "memory_refused")
    tried(monkeypatch, Held("cpu", tuple(limit("memory_refused", "cpu", word) for word in "abcd")))
    (found, _) = probe.checks(machine(cores=(4,)))
    assert found.reason == "a; b; c"


@pytest.mark.parametrize(("cores", "way"), [(1, "measure one after another"), (2, "measure at most 2 at once")])
def test_devices_that_share_cores_are_better_measured_fewer_at_once(
    cores: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(monkeypatch, Held("gpu", (limit("shared_cores", "gpu"),)))
    (found, _) = probe.checks(machine(cores=(cores,), gpus=(0, 0, 0)))
    assert str(found.facts["fix"]).endswith(way)


def test_a_core_for_the_parent_is_named_or_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried(monkeypatch, Held("full"))
    (_, left) = probe.checks(machine(cores=(4,)))
    assert (left.verdict, left.reason, left.facts["fix"]) == ("yes", "CPUs 2, 3", None)
    (_, none) = probe.checks(machine(cores=(2,)))
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


# ----------------------------------------------------------------- binding


class Kernel:
    """Affinities of threads and a memory policy, in place of those of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, architecture: str = "x86_64") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer = 0
        self.mode = 0
        self.words: dict[int, int] = {}
        monkeypatch.setattr(platform, "machine", lambda: architecture)
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: self)

    def syscall(self, number: int, first: Any, mask: Any, *more: Any) -> int:
        """Answer set_mempolicy, whose first argument is a number, or get_mempolicy, whose first is written to."""
        given = tuple(getattr(each, "value", each) for each in more)
        if isinstance(first, int):
            self.calls.append((number, first, {at: word for at, word in enumerate(mask) if word}, len(mask), *given))
        else:
            self.calls.append((number, len(mask), *given))
            first._obj.value = self.mode
            for at, word in self.words.items():
                mask[at] = word
        if self.answer:
            ctypes.set_errno(errno.EPERM)
        return self.answer


@pytest.mark.parametrize(("architecture", "setting", "getting"), [("x86_64", 238, 239), ("aarch64", 237, 236)])
def test_the_kernel_is_told_and_asked_by_the_numbers_of_its_architecture(
    architecture: str, setting: int, getting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch, architecture)
    assert bind_memory((0, 3, 65)) is None
    assert memory_policy() == (0, ())
    words = KILOBIT // 64
    assert kernel.calls == [
        (setting, 2, {0: 0b1001, 1: 0b10}, words, KILOBIT),
        (getting, words, KILOBIT, None, 0),
    ]


def test_what_the_kernel_says_about_memory_is_read_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    kernel.mode, kernel.words = 0x8002, {0: 0b1001, 1: 0b10, 15: 1 << 63}
    assert memory_policy() == (2, (0, 3, 65, 1023))
    assert bound_nodes() == (0, 3, 65, 1023)
    kernel.mode = 3
    assert memory_policy() == (3, (0, 3, 65, 1023))
    assert bound_nodes() is None
    kernel.mode, kernel.answer = 2, -1
    assert memory_policy() is None
    assert bound_nodes() is None
    assert bind_memory((0,)) == os.strerror(errno.EPERM)


def test_on_an_unknown_architecture_the_kernel_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, "pdp11")
    assert memory_policy() is None
    assert bind_memory((0,)) == "the system call is not known on pdp11"
    assert kernel.calls == []


@pytest.mark.parametrize(
    ("policy", "codes"),
    [
        (None, ["memory_unreadable"]),
        ((2, (0, 1)), []),
        ((2, (0,)), ["memory_changed"]),
        ((3, (0, 1)), ["memory_changed"]),
        ((0, ()), ["memory_changed"]),
    ],
)
def test_memory_is_bound_where_the_kernel_says_bound_and_names_these_nodes(
    policy: tuple[int, tuple[int, ...]] | None, codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "memory_policy", lambda: policy)
    assert [one.code for one in memory_limits((0, 1))] == codes


def test_the_lowest_of_all_reasons_is_what_holds() -> None:
    held = Held("numa").limited(
        limit("memory_refused", "cpu"), limit("shared_gpu", "none"), limit("shared_cores", "gpu")
    )
    assert (held.level, len(held.limits)) == ("none", 3)
    assert Held("gpu").limited(limit("memory_refused", "cpu")).level == "gpu"
    assert Held("cpu").limited() == Held("cpu")


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Let every pinning succeed; return what was asked for."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(binding, "pin_threads", lambda wanted: asked.append(tuple(wanted)))
    return asked


def test_a_worker_is_bound_as_far_as_its_level_asks(
    pinned: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "allowed_cpus", lambda: (0, 1))
    monkeypatch.setattr(binding, "bind_memory", lambda _: None)
    monkeypatch.setattr(binding, "memory_policy", lambda: (2, (0,)))
    assert bind(Allotment(device="x", level="none", cpus=(0, 1))) == Held("none")
    assert bind(Allotment(device="x", level="gpu", cpus=(0, 1))) == Held("gpu")
    assert pinned == []
    assert bind(Allotment(device="x", level="cpu", cpus=(0, 1))) == Held("cpu")
    assert bind(Allotment(device="x", level="cpu")) == Held("cpu")
    assert bind(Allotment(device="x", level="numa", cpus=(1,), nodes=(0,))) == Held("numa")
    assert pinned == [(0, 1), (), (1,)]
    assert bind(Allotment(device="x", level="full", cpus=(0,), nodes=(1,))).level == "cpu"


def test_cores_that_were_not_given_are_named_in_order(
    pinned: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "allowed_cpus", lambda: (0, 1))
    held = bind(Allotment(device="x", level="cpu", cpus=(5, 0, 3)))
    assert (held.level, [(one.code, one.cpus) for one in held.limits]) == ("none", [("cpus_missing", (3, 5))])
    assert pinned == [(5, 0, 3)]


@pytest.mark.parametrize(
    ("level", "allotted", "visible", "codes"),
    [
        ("none", {"cpus": (0,), "nodes": (9,), "gpu_uuid": "GPU-0"}, "GPU-1", []),
        ("gpu", {"cpus": (0,), "nodes": (9,), "gpu_uuid": "GPU-0"}, "GPU-0", []),
        ("gpu", {"cpus": (0,), "nodes": (9,), "gpu_uuid": "GPU-0"}, "GPU-1", ["gpu_changed"]),
        ("gpu", {"cpus": (0,), "gpu_uuid": "GPU-0"}, None, ["gpu_changed"]),
        ("gpu", {"cpus": (0,)}, "GPU-1", []),
        ("cpu", {"cpus": (0,), "nodes": (9,)}, None, ["cpus_changed"]),
        ("cpu", {"nodes": (9,)}, None, []),
        ("numa", {"cpus": (0, 1)}, None, []),
        ("numa", {"cpus": (0, 1), "nodes": (9,)}, None, ["memory_changed"]),
        ("full", {"cpus": (0, 1), "nodes": (3,)}, None, []),
    ],
)
def test_only_what_a_level_asks_for_is_looked_at_in_the_end(
    level: Isolation,
    allotted: dict[str, object],
    visible: str | None,
    codes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binding, "allowed_cpus", lambda: (0, 1))
    monkeypatch.setattr(binding, "memory_policy", lambda: (2, (3,)))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    allotment = Allotment.model_validate({"device": "x", "level": level, **allotted})
    assert [one.code for one in still_held(Held(level), allotment).limits] == codes


def test_threads_that_start_while_others_are_pinned_are_pinned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([{11, 12}, {11, 13}, {11, 13}])
    asked: list[tuple[int, Collection[int]]] = []

    def pin(thread: int, wanted: Collection[int]) -> None:
        asked.append((thread, wanted))
        if thread == 12:
            raise ProcessLookupError

    monkeypatch.setattr(os, "sched_setaffinity", pin)
    monkeypatch.setattr(binding, "_threads", lambda: next(seen))
    binding.pin_threads((4, 5))
    assert (asked[0], sorted(asked[1:3]), asked[3:]) == (
        (0, (4, 5)),
        [(11, (4, 5)), (12, (4, 5))],
        [(13, (4, 5))],
    )


def test_what_any_thread_may_run_on_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    may = {0: {7}, 11: {5, 2}}

    def ask(thread: int) -> set[int]:
        if thread == 12:
            raise ProcessLookupError
        return may[thread]

    monkeypatch.setattr(os, "sched_getaffinity", ask)
    monkeypatch.setattr(binding, "_threads", lambda: {11, 12})
    assert binding.allowed_cpus() == (2, 5, 7)


def test_pages_are_added_up_by_node_and_none_is_not_nothing(tmp_path: Path) -> None:
    maps = tmp_path / "numa_maps"
    maps.write_text("55d0 default N0=2 N1=5\n7ff default N1=3\n")
    assert binding.pages_by_node(maps) == {0: 2, 1: 8}
    maps.write_text("55d0 default\n")
    assert binding.pages_by_node(maps) is None


# ----------------------------------------------------------------- which devices are meant


WHOLE = machine(cores=(4,), gpus=(0, 0))


def meant(there: Machine, *, visible: str | None = None, **asked: Any) -> tuple[str, ...]:
    environment = NOTHING if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return devices.choose(there, environment=environment, **asked)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ("cuda:0/0", "cuda:0/1", "cuda:1")),
        ({"gpus": ("0/0",)}, ("cuda:0/0",)),
        ({"gpus": ("0/1", "1")}, ("cuda:0/1", "cuda:1")),
        ({"gpus": ("MIG-1",)}, ("cuda:0/1",)),
        ({"gpus": ("GPU-1", "MIG-0")}, ("cuda:1", "cuda:0/0")),
        ({"devices": ("cuda:0/1",)}, ("cuda:0/1",)),
        ({"devices": ("cuda:1",)}, ("cuda:1",)),
        ({"devices": ("cuda",)}, ("cuda:0/0", "cuda:0/1", "cuda:1")),
        ({"devices": ("cpu",)}, ("cpu:0", "cpu:1")),
        ({"devices": ("cpu:1",)}, ("cpu:1",)),
        ({"devices": ("cpu:2", "cpu:0"), "cpu_groups": 3}, ("cpu:2", "cpu:0")),
    ],
)
def test_words_mean_instances_whole_gpus_or_groups(asked: dict[str, Any], found: tuple[str, ...]) -> None:
    assert meant(cut(), **asked) == found


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"gpus": ("0",), "devices": ("cpu",)}, "either --gpus or --device"),
        ({"gpus": ("x",)}, "'x' is not a GPU's number"),
        ({"gpus": ("1", "GPU-1")}, "mixes numbers and UUIDs"),
        ({"gpus": ("1", "1")}, "named twice: cuda:1"),
        ({"gpus": ("MIG-",)}, "'MIG-' is not a GPU's number"),
        ({"gpus": ("GPU-0",)}, "GPU 0 is in MIG mode and cannot be used whole"),
        ({"gpus": ("GPU-7",)}, "There is no GPU GPU-7 here; there are GPU-0, GPU-1"),
        ({"gpus": ("0/2",)}, "GPU 0 is in MIG mode and has no instance 2"),
        ({"gpus": ("1/0",)}, "GPU 1 is not in MIG mode: it has no instance 0"),
        ({"gpus": ("2",)}, "the GPUs are 0 to 1"),
        ({"devices": ("cpu:0", "cuda:1")}, "cannot be measured in one run"),
        ({"devices": ("cpu:0/1",)}, "'cpu:0/1' is not a device"),
        ({"devices": ("tpu",)}, "'tpu' is not a device"),
        ({"devices": ("cpu:2",)}, "form 2 groups, cpu:0 to cpu:1"),
        ({"devices": ("cpu:1",), "cpu_groups": 1}, "form 1 group, cpu:0;"),
    ],
)
def test_words_that_mean_nothing_here_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises((BadInput, MachineCannot)) as caught:
        meant(cut(), **asked)
    assert message in str(caught.value)


def test_the_beginning_of_a_uuid_is_enough_where_it_fits_one() -> None:
    renamed = [gpu.model_copy(update={"uuid": f"GPU-a{gpu.index}"}) for gpu in WHOLE.gpus]
    there = WHOLE.model_copy(update={"gpus": tuple(renamed)})
    assert meant(there, gpus=("GPU-a1",)) == ("cuda:1",)
    with pytest.raises(BadInput, match="GPU-a fits several GPUs: GPU-a0, GPU-a1"):
        meant(there, gpus=("GPU-a",))


def test_a_machine_that_has_only_lost_its_gpus_says_so_and_one_without_says_why() -> None:
    lost = machine(cores=(4,), lost=(LostGpu(index=0, reason="fell off the bus"), LostGpu(index=1, reason="too hot")))
    for number, reason in (
        ("0", "GPU 0 cannot be reached: fell off the bus"),
        ("1", "GPU 1 cannot be reached: too hot"),
    ):
        with pytest.raises(MachineCannot, match=reason):
            meant(lost, gpus=(number,))
    with pytest.raises(MachineCannot, match="the GPUs are 0 to 1"):
        meant(lost, gpus=("2",))
    with pytest.raises(MachineCannot, match="There is no GPU 0 here: NVML does not answer"):
        meant(machine(), gpus=("0",))
    with pytest.raises(MachineCannot, match="There is no GPU here: NVML does not answer"):
        meant(machine(), devices=("cuda",))
    some = WHOLE.model_copy(update={"lost": (LostGpu(index=2, reason="fell off the bus"),)})
    assert meant(some, gpus=("1",)) == ("cuda:1",)
    assert meant(some) == ("cuda:0", "cuda:1")


def test_without_gpus_or_with_all_hidden_the_groups_of_cores_are_meant() -> None:
    assert meant(machine(cores=(4,))) == ("cpu:0", "cpu:1")
    assert meant(WHOLE) == ("cuda:0", "cuda:1")
    assert meant(WHOLE, visible="") == ("cpu:0", "cpu:1")
    assert meant(WHOLE, visible="", devices=("cpu:0",)) == ("cpu:0",)


def test_a_gpu_in_mig_mode_without_instances_cannot_be_used() -> None:
    empty = cut(instances=0)
    assert meant(empty) == ("cuda:1",)
    with pytest.raises(MachineCannot, match="cannot be used whole; it has no instances"):
        meant(empty, visible="0")


def test_what_is_hidden_is_refused_and_what_is_shown_is_taken() -> None:
    assert meant(WHOLE, visible="1") == ("cuda:1",)
    assert meant(WHOLE, visible="1", gpus=("1",)) == ("cuda:1",)
    with pytest.raises(MachineCannot, match=r"hides cuda:0; .* among cuda:1\."):
        meant(WHOLE, visible="1", gpus=("1", "0"))


def test_numbers_by_a_speed_nobody_knows_matter_only_where_they_hide_something() -> None:
    faster = WHOLE.gpus[0].model_copy(update={"name": "Faster"})
    mixed = WHOLE.model_copy(update={"gpus": (faster, WHOLE.gpus[1])})
    assert meant(mixed, visible="0,1") == ("cuda:0", "cuda:1")
    assert meant(mixed, visible="GPU-1") == ("cuda:1",)
    with pytest.raises(MachineCannot, match="CUDA_VISIBLE_DEVICES=1 hides is not known"):
        meant(mixed, visible="1")


def test_the_kind_of_a_device_stands_before_its_number() -> None:
    assert [devices.kind_of(name) for name in ("cpu", "cpu:0", "cuda:1/0")] == ["cpu", "cpu", "cuda"]
