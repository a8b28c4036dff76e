"""Who is who, and who shares what with whom, one worker or one CPU more or fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.isolation.placement import RunningWorker, overlap_limits
from assay.machine.devices import gpu_targets
from assay.machine.model import Core, MigInstance
from tests.machines import machine

if TYPE_CHECKING:
    from assay.machine.model import Machine


def cut(*, instances: int = 2) -> Machine:
    """Return a machine whose GPU 0 is in MIG mode and whose GPU 1 is whole."""
    made = machine(cores=(8,), gpus=(0, 0))
    pieces = tuple(MigInstance(number=n, uuid=f"MIG-{n}", parent="GPU-0", profile="1g.18gb") for n in range(instances))
    first = made.gpus[0].model_copy(update={"mig": True, "instances": pieces})
    return made.model_copy(update={"gpus": (first, made.gpus[1])})


def test_a_gpu_in_mig_mode_is_its_instances_and_every_other_is_itself() -> None:
    assert {name: (one.uuid, one.node, one.title) for name, one in gpu_targets(cut()).items()} == {
        "cuda:0/0": ("MIG-0", 0, "Example MIG 1g.18gb"),
        "cuda:0/1": ("MIG-1", 0, "Example MIG 1g.18gb"),
        "cuda:1": ("GPU-1", 0, "Example"),
    }


def told(*workers: RunningWorker, on: Machine | None = None) -> list[list[tuple[str, str, tuple[str, ...]]]]:
    """Return the code, the level and the neighbours of every limit of each worker."""
    limits = overlap_limits(workers, {"": on or machine()})
    return [[(limit.code, limit.level, limit.shared_with) for limit in each] for each in limits]


def test_only_workers_that_run_together_share() -> None:
    three = [RunningWorker(name, "cpu", (0,)) for name in "abc"]
    found = overlap_limits(three, {"": machine()}, lambda one, other: {one, other} == {0, 1})
    assert [[limit.shared_with for limit in each] for each in found] == [[("b",)], [("a",)], []]
    every = overlap_limits(three, {"": machine()})
    assert [[limit.shared_with for limit in each] for each in every] == [[("b", "c")], [("a", "c")], [("a", "b")]]


def test_workers_of_two_machines_share_nothing_and_those_of_one_do() -> None:
    three = [RunningWorker(name, "cpu", (0,), boot_id=boot) for name, boot in (("a", "x"), ("b", "y"), ("c", "x"))]
    found = overlap_limits(three, {"x": machine(), "y": machine()}, lambda *_: True)
    assert [[limit.shared_with for limit in each] for each in found] == [[("c",)], [], [("a",)]]


def test_a_cpu_that_is_not_known_is_a_core_of_no_package() -> None:
    there = machine(cores=(1,)).model_copy(update={"cores": (Core(package=1, core=9, node=0, cpus=(0,)),)})
    assert told(RunningWorker("a", "cpu", (0,)), RunningWorker("b", "cpu", (9,)), on=there) == [[], []]
    assert told(RunningWorker("a", "cpu", (9,)), RunningWorker("b", "cpu", (9,)), on=there) == [
        [("shared_cores", "none", ("b",))],
        [("shared_cores", "none", ("a",))],
    ]


def test_what_is_shared_limits_only_who_asked_for_it() -> None:
    gpu = {"GPU-0": "cuda:0"}
    both = [
        RunningWorker("none", "none", (0,), gpu),
        RunningWorker("gpu", "gpu", (0,), gpu),
        RunningWorker("cpu", "cpu", (0,), gpu),
    ]
    assert told(*both) == [
        [],
        [("shared_gpu", "none", ("none", "cpu"))],
        [("shared_cores", "gpu", ("none", "gpu")), ("shared_gpu", "none", ("none", "gpu"))],
    ]
    assert told(RunningWorker("a", "cpu", (0,), gpu), RunningWorker("b", "cpu", (1,), {"GPU-1": "cuda:1"})) == [[], []]


def test_the_gpus_that_are_shared_are_named_and_the_others_are_not() -> None:
    one = RunningWorker("a", "gpu", (0,), {"GPU-2": "cuda:2", "GPU-1": "cuda:1", "GPU-0": "cuda:0"})
    (limit,), _ = overlap_limits((one, RunningWorker("b", "gpu", (1,), {"GPU-2": "cuda:2", "GPU-0": "cuda:0"})), {})
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
    found = overlap_limits([RunningWorker(name, "cpu", (0, 1)) for name in ("a", *others)], {"": machine()})
    assert found[0][0].message == f"a shares cores 0, 1 with {listed}"
    assert found[0][0].cpus == (0, 1)
