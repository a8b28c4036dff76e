"""Where cores no longer go round: one core or one worker more or fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import HOST
from assay.isolation.placement import allot_cores, share_cores, split_equally
from assay.machine.devices import group_count
from tests.machines import machine

if TYPE_CHECKING:
    from assay.isolation.placement import Placement


def cpus(placement: Placement, *names: str) -> list[tuple[int, ...]]:
    """Return the CPUs of the first worker of some devices."""
    return [placement.of(name).cpus or () for name in names]


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
    found = split_equally(machine(cores=(cores,)).cores, count, keep=keep, least=least)
    assert [[core.core for core in part] for part in found] == parts


def test_one_core_is_enough_for_a_group_unless_more_is_said() -> None:
    assert [len(part) for part in split_equally(machine(cores=(2,)).cores, 1, keep=True)] == [1]


@pytest.mark.parametrize(("gpus", "names"), [((), ("cpu:0", "cpu:1")), ((0, 0), ("cuda:0", "cuda:1"))])
def test_a_core_is_kept_only_where_the_device_with_most_workers_can_spare_it(
    gpus: tuple[int, ...], names: tuple[str, str]
) -> None:
    there = machine(cores=(4,), gpus=gpus)
    assert cpus(allot_cores(there, names, "full"), *names) == [(0,), (1,)]
    for counts in ({names[0]: 2}, {names[1]: 2}):
        placement = allot_cores(there, names, "full", workers=counts)
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
            ("host_shares_cores",),
        ),
    ],
)
def test_the_host_beside_groups_gets_a_free_group_or_one_more(
    cores: int, names: tuple[str, ...], groups: int, shares: list[tuple[int, ...]], notes: tuple[str, ...]
) -> None:
    placement = allot_cores(machine(cores=(cores,)), names, "cpu", cpu_groups=groups)
    assert (cpus(placement, *names), tuple(note.code for note in placement.notes)) == (shares, notes)


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
    placement = allot_cores(machine(cores=cores, gpus=gpus), (*names, HOST), "cpu")
    assert cpus(placement, HOST, *names) == [host, *rest]
    assert len(placement.notes) == notes


@pytest.mark.parametrize(("cores", "said"), [((2,), 0), ((1, 1), 1), ((1, 1, 1), 1)])
def test_a_gpu_of_no_known_node_is_told_of_where_there_are_several_nodes(cores: tuple[int, ...], said: int) -> None:
    placement = allot_cores(machine(cores=cores, gpus=(None,)), ("cuda:0",), "cpu")
    assert cpus(placement, "cuda:0") == [tuple(range(sum(cores)))]
    assert [(note.code, note.params) for note in placement.notes] == [
        ("gpu_node_unknown", {"devices": "cuda:0"})
    ] * said


def test_as_many_cores_as_gpus_are_enough_and_one_fewer_is_not() -> None:
    enough = allot_cores(machine(cores=(2, 1), gpus=(0, 0)), ("cuda:0", "cuda:1"), "cpu")
    assert (cpus(enough, "cuda:0", "cuda:1"), enough.notes) == ([(0,), (1,)], ())
    names = ("cuda:0", "cuda:1", "cuda:2")
    short = allot_cores(machine(cores=(2, 1), gpus=(0, 0, 0)), names, "cpu")
    assert cpus(short, *names) == [(0,), (1,), (0,)]
    assert [note.code for note in short.notes] == ["gpus_share_cores"]
    assert short.notes[0].message == "2 cores on node 0 for 3 GPUs: cuda:0, cuda:1, cuda:2 share cores"


@pytest.mark.parametrize(
    ("count", "shares", "said"),
    [(1, [[0, 1]], False), (2, [[0], [1]], False), (3, [[0], [1], [0]], True)],
)
def test_the_cores_of_a_device_are_shared_out_to_its_workers(count: int, shares: list[list[int]], said: bool) -> None:
    seats, notes = share_cores(machine(cores=(4,)), {"cpu:0": count}, keep=False)
    assert list(seats) == [("cpu:0", worker) for worker in range(count)]
    assert [[core.core for core in part] for part in seats.values()] == shares
    assert [(note.code, note.params) for note in notes] == [("workers_share_cores", {"cores": 2, "workers": 3})] * said


@pytest.mark.parametrize("names", [("cuda:0", "cpu:0"), ("cpu:0", "cuda:0"), ("cuda:0", "cuda:1", "cpu:0")])
def test_gpus_beside_groups_of_cores_are_refused_in_any_order(names: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match="side by side"):
        allot_cores(machine(gpus=(0, 0)), names, "cpu")
