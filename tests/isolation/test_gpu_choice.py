"""GPUs by number, UUID and instance, what CUDA_VISIBLE_DEVICES hides, and where instances are placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.isolation.binding import allotment_environment
from assay.isolation.placement import allot_cores, list_devices
from assay.machine.detect import detect
from assay.machine.devices import choose_devices
from assay.machine.model import ControlGroupLimits, UnreachableGpu
from tests.fakes import trees
from tests.fakes.fake_nvml import attached
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.errors import AssayError
    from assay.machine.model import Machine
    from tests.fakes.plugin import MakeFakeNvml

Asked: TypeAlias = dict[str, Any]
ASKING: tuple[Asked, ...] = ({"gpus": ("0",)}, {"devices": ("cuda",)})
NOTHING: dict[str, str] = {}
FOUR = machine(cores=(8, 8), gpus=(0, 0, 1, 1))


def visible(text: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": text}


@pytest.fixture
def cut(tmp_path: Path, make_fake_nvml: MakeFakeNvml) -> Machine:
    """GPU 0 on node 1 cut into two instances, GPU 1 on node 0 whole."""
    tree = trees.mig(tmp_path / "root")
    with attached(make_fake_nvml(tree.gpus)):
        return detect(tree.root)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("GPU-2", "GPU-0"), ("cuda:2", "cuda:0")),
        (("GPU-3",), ("cuda:3",)),
        (("3", "1"), ("cuda:3", "cuda:1")),
    ],
)
def test_gpus_are_chosen_by_number_or_by_uuid(words: tuple[str, ...], meant: tuple[str, ...]) -> None:
    assert choose_devices(FOUR, gpus=words, environment=NOTHING) == meant


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("0", "GPU-1"), BadInput, "--gpus 0,GPU-1 mixes numbers and UUIDs"),
        (("GPU-",), BadInput, "'GPU-' is not a GPU's number"),
        (("GPU-9",), MachineCannot, "There is no GPU GPU-9 here; there are GPU-0, GPU-1, GPU-2, GPU-3"),
        (("GPU-1", "1"), BadInput, "mixes numbers and UUIDs"),
        (("GPU-1", "GPU-1"), BadInput, "named twice: cuda:1"),
        (("0/1",), MachineCannot, "GPU 0 is not in MIG mode: it has no instance 1"),
    ],
)
def test_words_that_mean_no_gpu_are_answered_in_a_sentence(
    words: tuple[str, ...], error: type[AssayError], message: str
) -> None:
    with pytest.raises(error) as caught:
        choose_devices(FOUR, gpus=words, environment=NOTHING)
    assert message in str(caught.value)


def test_the_beginning_of_a_uuid_must_fit_one_gpu_only() -> None:
    renamed = [gpu.model_copy(update={"uuid": f"GPU-ab{gpu.index}"}) for gpu in FOUR.gpus]
    there = FOUR.model_copy(update={"gpus": tuple(renamed)})
    assert choose_devices(there, gpus=("GPU-ab2",), environment=NOTHING) == ("cuda:2",)
    with pytest.raises(BadInput, match="GPU-a fits several GPUs: GPU-ab0, GPU-ab1"):
        choose_devices(there, gpus=("GPU-a",), environment=NOTHING)


def test_numbers_are_those_of_the_machine_whatever_cuda_is_shown() -> None:
    assert choose_devices(FOUR, gpus=("2",), environment=visible("2,3")) == ("cuda:2",)
    assert choose_devices(FOUR, environment=visible("3,1")) == ("cuda:1", "cuda:3")
    assert choose_devices(FOUR, devices=("cuda",), environment=visible("GPU-2")) == ("cuda:2",)


@pytest.mark.parametrize("asked", [{"gpus": ("0",)}, {"gpus": ("GPU-0",)}, {"devices": ("cuda:0",)}])
def test_a_gpu_that_is_hidden_is_refused_and_the_variable_named(asked: Asked) -> None:
    with pytest.raises(
        MachineCannot, match=r"CUDA_VISIBLE_DEVICES=2,3 hides cuda:0; .* among cuda:2, cuda:3"
    ) as caught:
        choose_devices(FOUR, **asked, environment=visible("2,3"))
    assert caught.value.exit_code == 3


def test_hiding_every_gpu_means_the_cpu_unless_a_gpu_is_asked_for() -> None:
    assert choose_devices(FOUR, environment=visible("")) == ("cpu:0", "cpu:1")
    assert choose_devices(FOUR, devices=("cpu",), environment=visible("")) == ("cpu:0", "cpu:1")
    for asked in ASKING:
        with pytest.raises(MachineCannot, match="CUDA_VISIBLE_DEVICES is empty: it hides every GPU"):
            choose_devices(FOUR, **asked, environment=visible(""))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [("9", MachineCannot, "begins with 9, which is no GPU"), ("0,GPU-1", BadInput, "mixes numbers and UUIDs")],
)
def test_a_variable_that_makes_no_sense_is_not_taken_for_a_wish(
    text: str, error: type[AssayError], message: str
) -> None:
    for asked in ({}, *ASKING):
        with pytest.raises(error, match=message):
            choose_devices(FOUR, **asked, environment=visible(text))
    assert choose_devices(FOUR, devices=("cpu",), environment=visible(text)) == ("cpu:0", "cpu:1")
    assert choose_devices(machine(), environment=visible(text)) == ("cpu:0", "cpu:1")


def test_numbers_that_cuda_gives_by_speed_hide_no_one_knows_what() -> None:
    gpus = (FOUR.gpus[0].model_copy(update={"name": "Faster"}), *FOUR.gpus[1:])
    mixed = FOUR.model_copy(update={"gpus": gpus})
    assert choose_devices(mixed, gpus=("1",), environment=visible("0,1,2,3")) == ("cuda:1",)
    with pytest.raises(MachineCannot, match=r"CUDA_VISIBLE_DEVICES=0,1 hides is not known: .*CUDA_DEVICE_ORDER"):
        choose_devices(mixed, gpus=("1",), environment=visible("0,1"))
    assert choose_devices(mixed, gpus=("1",), environment={**visible("0,1"), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == (
        "cuda:1",
    )


def test_a_lost_gpu_is_refused_with_its_reason() -> None:
    there = FOUR.model_copy(update={"gpus": FOUR.gpus[:3], "lost": (UnreachableGpu(index=3, reason="GPU is lost"),)})
    with pytest.raises(MachineCannot, match="GPU 3 cannot be reached: GPU is lost"):
        choose_devices(there, gpus=("3",), environment=NOTHING)
    assert choose_devices(there, environment=NOTHING) == ("cuda:0", "cuda:1", "cuda:2")


def test_instances_are_devices_and_their_gpu_is_none(cut: Machine) -> None:
    assert list_devices(cut) == ("cuda:0/0", "cuda:0/1", "cuda:1", "cpu:0", "cpu:1")
    assert choose_devices(cut, environment=NOTHING) == ("cuda:0/0", "cuda:0/1", "cuda:1")
    assert choose_devices(cut, gpus=("0/1", "1"), environment=NOTHING) == ("cuda:0/1", "cuda:1")
    assert choose_devices(cut, devices=("cuda:0/0",), environment=NOTHING) == ("cuda:0/0",)
    uuid = cut.gpus[0].instances[1].uuid
    assert choose_devices(cut, gpus=(uuid,), environment=NOTHING) == ("cuda:0/1",)
    assert choose_devices(cut, environment=visible(uuid)) == ("cuda:0/1",)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"gpus": ("0",)},
            "GPU 0 is in MIG mode and cannot be used whole; its instances are cuda:0/0 (NVIDIA H200 MIG 1g",
        ),
        ({"devices": ("cuda:0",)}, "GPU 0 is in MIG mode and cannot be used whole"),
        ({"gpus": ("0/5",)}, "GPU 0 is in MIG mode and has no instance 5"),
    ],
)
def test_a_gpu_in_mig_mode_cannot_be_used_whole(asked: Asked, message: str, cut: Machine) -> None:
    with pytest.raises(MachineCannot) as caught:
        choose_devices(cut, **asked, environment=NOTHING)
    assert message in str(caught.value)


def test_a_gpu_in_mig_mode_without_instances_is_not_passed_over_in_silence() -> None:
    empty = FOUR.model_copy(update={"gpus": (FOUR.gpus[0].model_copy(update={"mig": True}),)})
    for asked in ({}, *ASKING):
        with pytest.raises(MachineCannot, match="GPU 0 is in MIG mode and cannot be used whole; it has no instances"):
            choose_devices(empty, **asked, environment=NOTHING)


def test_a_group_of_cores_has_no_instances() -> None:
    with pytest.raises(BadInput, match="'cpu:0/1' is not a device"):
        choose_devices(FOUR, devices=("cpu:0/1",), environment=NOTHING)


def test_instances_get_cores_of_their_own_on_the_node_of_their_gpu(cut: Machine) -> None:
    placement = allot_cores(cut, ("cuda:0/0", "cuda:0/1", "cuda:1"), "full")
    first, second, whole = placement.allotments
    assert (first.nodes, second.nodes, whole.nodes) == ((1,), (1,), (0,))
    assert not set(first.cpus or ()) & set(second.cpus or ())
    assert [a.gpu_uuid for a in placement.allotments] == [
        *(one.uuid for one in cut.gpus[0].instances),
        cut.gpus[1].uuid,
    ]
    assert allotment_environment(first)["CUDA_VISIBLE_DEVICES"].startswith("MIG-")


def test_cores_on_a_node_without_memory_take_it_from_the_nearest(tmp_path: Path, make_fake_nvml: MakeFakeNvml) -> None:
    tree = trees.a_memoryless_node(tmp_path / "root")
    with attached(make_fake_nvml(tree.gpus)):
        there = detect(tree.root)
    placement = allot_cores(there, ("cuda:0", "cuda:1"), "numa")
    assert [allotment.nodes for allotment in placement.allotments] == [(0,), (0,)]
    assert placement.of("cuda:1").cpus == (4, 5, 6, 7, 12, 13, 14, 15)
    (note,) = placement.notes
    assert (note.code, note.params) == ("node_without_memory", {"node": 1, "memory_node": 0})
    assert allot_cores(there, ("cuda:0", "cuda:1"), "cpu").notes == ()


@settings(deadline=None)
@given(st.floats(0.1, 40.0), st.sampled_from(["cpu", "numa", "full"]))
def test_a_quota_below_the_allotted_cpus_is_said(quota: float, level: str) -> None:
    there = FOUR.model_copy(update={"limits": ControlGroupLimits(cpu_quota=quota)})
    placement = allot_cores(there, ("cuda:0", "cuda:2"), level)  # type: ignore[arg-type]
    allotted = sum(len(allotment.cpus or ()) for allotment in placement.allotments)
    assert ("cpu_quota" in {note.code for note in placement.notes}) == (quota < allotted)
