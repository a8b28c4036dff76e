"""Knowing a machine again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from assay.machine.model import Machine, describe_differences
from tests.machines import machine, machines

HERE = machine(cores=(4, 4), smt=2, gpus=(0, 1), driver="560.1", versions={"numpy": "2.0", "torch": "2.11"})


def with_gpu(index: int, **changes: object) -> Machine:
    gpus = list(HERE.gpus)
    gpus[index] = gpus[index].model_copy(update=changes)
    return HERE.model_copy(update={"gpus": tuple(gpus)})


@settings(deadline=None, max_examples=30)
@given(machines())
def test_a_machine_does_not_differ_from_itself_read_back(seen: Machine) -> None:
    back = Machine.model_validate(json.loads(json.dumps(seen.as_json())))
    assert back == seen
    assert describe_differences(seen, back) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_mib": 131072.0},
        {"memory_mib": None},
        {"boot_id": "another-boot"},
        {"hostname": "named-this-time"},
        {"git_dirty": True},
        {"gpu_note": "something else"},
    ],
)
def test_what_may_change_while_a_run_goes_on_is_no_difference(changes: dict[str, object]) -> None:
    assert describe_differences(HERE, HERE.model_copy(update=changes)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "ffff"}, "host: 0123456789abcdef → ffff"),
        ({"kernel": "6.2.0"}, "kernel: 6.1.0 → 6.2.0"),
        ({"cpu_model": None}, "cpu_model: Example 9000 → None"),
        ({"driver": "570.2"}, "driver: 560.1 → 570.2"),
        ({"git_commit": "abc"}, "git_commit: None → abc"),
        ({"versions": {"numpy": "2.0", "torch": "2.12"}}, "versions torch: 2.11 → 2.12"),
        ({"versions": {"numpy": "2.0"}}, "versions torch: 2.11 → None"),
        ({"gpus": HERE.gpus[:1]}, "gpus: 2 → 1"),
        ({"cores": HERE.cores[:6]}, "cores: 8 → 6"),
        ({"nodes": HERE.nodes[:1]}, "nodes: 2 → 1"),
    ],
)
def test_what_changed_is_said_in_words(changes: dict[str, object], words: str) -> None:
    assert describe_differences(HERE, HERE.model_copy(update=changes)) == [words]


def test_another_gpu_in_the_same_place_is_told_by_its_uuid() -> None:
    assert describe_differences(HERE, with_gpu(1, uuid="GPU-x")) == ["gpus 1 uuid: GPU-1 → GPU-x"]


def test_another_thread_count_a_core_is_told_by_its_cpus() -> None:
    one_thread = machine(cores=(1,), smt=1, gpus=())
    two_threads = machine(cores=(1,), smt=2, gpus=())
    assert describe_differences(one_thread, two_threads) == ["cores 0 cpus: [0] → [0, 1]"]


def test_several_changes_are_all_named() -> None:
    now = with_gpu(0, name="Other").model_copy(update={"kernel": "6.2.0"})
    assert len(describe_differences(HERE, now)) == 2


def test_a_change_deep_in_a_long_list_does_not_read_as_no_change() -> None:
    before, after = (machine(cores=(64,), smt=smt) for smt in (1, 2))
    for words in describe_differences(before, after):
        was, _, now = words.partition(": ")[2].partition(" → ")
        assert was != now
        assert len(words) < 160


def test_very_long_values_are_cut() -> None:
    words = describe_differences(HERE, HERE.model_copy(update={"cpu_model": "x" * 500}))
    assert len(words[0]) < 160


@settings(deadline=None, max_examples=30)
@given(machines())
def test_the_cpus_of_a_machine_are_those_of_its_cores_in_order(seen: Machine) -> None:
    assert list(seen.cpus) == sorted({cpu for core in seen.cores for cpu in core.cpus})


def test_a_driver_that_names_itself_a_fake_is_known_as_one() -> None:
    assert HERE.model_copy(update={"driver": "580.00-assay-fake"}).has_fake_driver
    assert not HERE.has_fake_driver
    assert not HERE.model_copy(update={"driver": None}).has_fake_driver


def test_a_machine_without_any_core_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        machine(cores=())
