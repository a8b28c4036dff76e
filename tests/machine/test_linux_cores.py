"""Physical cores as Linux describes them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.machine.linux import allowed_cpus, node_of_cpu, parse_cpu_list, read_physical_cores
from assay.machine.model import Core
from tests.machines import write_tree

TWO_SOCKETS = {cpu: (cpu % 4 // 2, cpu % 2) for cpu in range(8)}
"""Two packages of two cores of two threads: the siblings are 0 and 4, 1 and 5, …; core numbers repeat."""
TWO_NODES = {0: "0-1,4-5", 1: "2-3,6-7"}


def written(cpus: set[int]) -> str:
    """Write a set of CPUs as the kernel does: neighbours as ranges."""
    parts = []
    for _, run in itertools.groupby(enumerate(sorted(cpus)), key=lambda pair: pair[1] - pair[0]):
        numbers = [cpu for _, cpu in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(parts)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("\n", ()), ("0", (0,)), ("0-2,8", (0, 1, 2, 8)), ("0-2,8\n", (0, 1, 2, 8)), ("3-3", (3,))],
)
def test_a_list_of_cpus_is_read_as_the_kernel_writes_it(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@given(st.sets(st.integers(0, 1023)))
def test_every_set_of_cpus_is_the_same_after_being_written_and_read(cpus: set[int]) -> None:
    read = parse_cpu_list(f"{written(cpus)}\n")
    assert read == tuple(sorted(cpus))


@given(st.sets(st.integers(0, 1023)), st.sets(st.integers(0, 1023)))
def test_two_lists_joined_by_a_comma_hold_what_both_hold(some: set[int], others: set[int]) -> None:
    joined = f"{written(some)},{written(others)}"
    assert parse_cpu_list(joined) == parse_cpu_list(written(some)) + parse_cpu_list(written(others))


def test_two_sockets_with_two_threads_a_core_are_four_cores_on_two_nodes(tmp_path: Path) -> None:
    root = write_tree(tmp_path, TWO_SOCKETS, allowed="0-7", nodes=TWO_NODES, online="0-7")
    assert read_physical_cores(root) == (
        Core(package=0, core=0, node=0, cpus=(0, 4)),
        Core(package=0, core=1, node=0, cpus=(1, 5)),
        Core(package=1, core=0, node=1, cpus=(2, 6)),
        Core(package=1, core=1, node=1, cpus=(3, 7)),
    )
    assert node_of_cpu(root) == {0: 0, 1: 0, 4: 0, 5: 0, 2: 1, 3: 1, 6: 1, 7: 1}


def test_a_kernel_without_nodes_has_all_cores_on_one(tmp_path: Path) -> None:
    root = write_tree(tmp_path, TWO_SOCKETS, allowed="0-7")
    assert node_of_cpu(root) == {}
    assert [core.node for core in read_physical_cores(root)] == [0, 0, 0, 0]
    assert [core.cpus for core in read_physical_cores(root)] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_core_that_is_switched_off_is_no_core_though_the_mask_allows_it(tmp_path: Path) -> None:
    running = {cpu: place for cpu, place in TWO_SOCKETS.items() if cpu not in {3, 7, 6}}
    root = write_tree(tmp_path, running, allowed="0-127", nodes={0: "0-1,4-5", 1: "2"}, online="0-2,4-5")
    assert [core.cpus for core in read_physical_cores(root)] == [(0, 4), (1, 5), (2,)]


def test_only_cpus_that_this_process_may_use_count(tmp_path: Path) -> None:
    root = write_tree(tmp_path, TWO_SOCKETS, allowed="0,4-6", nodes=TWO_NODES, online="0-7")
    assert allowed_cpus(root) == {0, 4, 5, 6}
    assert [(core.node, core.cpus) for core in read_physical_cores(root)] == [(0, (0, 4)), (0, (5,)), (1, (6,))]


def test_cores_are_in_order_of_their_nodes_and_then_of_their_cpus(tmp_path: Path) -> None:
    flat = {cpu: (0, 9 - cpu) for cpu in range(10)}
    root = write_tree(tmp_path, flat, allowed="0-9", nodes={0: "1,3,5,7,9", 10: "0,2,4,6,8"})
    assert [core.cpus[0] for core in read_physical_cores(root)] == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]
    assert {core.node for core in read_physical_cores(root)} == {0, 10}


def test_where_the_kernel_shows_no_topology_each_cpu_is_a_core(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {}, allowed="0-3")
    assert [core.cpus for core in read_physical_cores(root)] == [(0,), (1,), (2,), (3,)]


def test_a_package_without_a_number_is_the_first(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {0: (-1, 0), 1: (-1, 1)}, allowed="0-1")
    assert [core.package for core in read_physical_cores(root)] == [0, 0]


def test_here_the_cores_hold_each_cpu_of_this_process_once() -> None:
    cpus = [cpu for core in read_physical_cores(Path("/")) for cpu in core.cpus]
    assert sorted(cpus) == sorted(os.sched_getaffinity(0))
