"""Which devices are meant, at the edges of what can be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.machine import devices
from assay.machine.model import MigInstance, UnreachableGpu
from tests.machines import machine

if TYPE_CHECKING:
    from assay.machine.model import Machine

NOTHING: dict[str, str] = {}


def cut(*, instances: int = 2) -> Machine:
    """Return a machine whose GPU 0 is in MIG mode and whose GPU 1 is whole."""
    made = machine(cores=(8,), gpus=(0, 0))
    pieces = tuple(MigInstance(number=n, uuid=f"MIG-{n}", parent="GPU-0", profile="1g.18gb") for n in range(instances))
    first = made.gpus[0].model_copy(update={"mig": True, "instances": pieces})
    return made.model_copy(update={"gpus": (first, made.gpus[1])})


WHOLE = machine(cores=(4,), gpus=(0, 0))


def meant(there: Machine, *, visible: str | None = None, **asked: Any) -> tuple[str, ...]:
    environment = NOTHING if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return devices.choose_devices(there, environment=environment, **asked)


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
    lost = machine(
        cores=(4,), lost=(UnreachableGpu(index=0, reason="fell off the bus"), UnreachableGpu(index=1, reason="too hot"))
    )
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
    some = WHOLE.model_copy(update={"lost": (UnreachableGpu(index=2, reason="fell off the bus"),)})
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


def test_cores_form_as_many_groups_as_there_are_cores_at_most() -> None:
    two = machine(cores=(2,))
    assert [devices.group_count(two, asked) for asked in (None, 1, 2)] == [2, 1, 2]
    assert devices.group_count(machine(cores=(1,)), None) == 1
    with pytest.raises(MachineCannot, match="3 groups of cores need 3 physical cores; this process may use 2"):
        devices.group_count(two, 3)
    with pytest.raises(BadInput, match="0 groups of cores make no sense"):
        devices.group_count(two, 0)


def test_sensors_belong_to_the_whole_gpus_behind_the_devices_in_use() -> None:
    there = cut()
    assert devices.metered_gpus(there, ("cuda:0/1",)) == {0: "GPU-0"}
    assert devices.metered_gpus(there, ("cuda:0/0", "cuda:0/1", "cuda:1")) == {0: "GPU-0", 1: "GPU-1"}
    assert devices.metered_gpus(there, ("cuda:1", "cpu:0")) == {1: "GPU-1"}
    assert devices.metered_gpus(there, ("cuda:0", "cpu:1")) == {}
