"""Which devices the user means, and the answer to words that mean none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.isolation.placement import list_devices
from assay.machine.devices import choose_devices, kind_of
from tests.machines import machine, machines

if TYPE_CHECKING:
    from assay.core.errors import AssayError
    from assay.machine.model import Machine

WITH_GPUS = machine(cores=(8,), gpus=(0, 0))
WITHOUT = machine(cores=(8,))


def test_with_nothing_said_all_gpus_are_meant() -> None:
    assert choose_devices(WITH_GPUS) == ("cuda:0", "cuda:1")


def test_without_gpus_the_groups_of_cores_are_meant() -> None:
    assert choose_devices(WITHOUT) == ("cpu:0", "cpu:1")
    assert choose_devices(WITHOUT, cpu_groups=3) == ("cpu:0", "cpu:1", "cpu:2")
    assert choose_devices(machine(cores=(1,))) == ("cpu:0",)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("cpu",), ("cpu:0", "cpu:1")),
        (("CPU:1",), ("cpu:1",)),
        (("cpu:1", "cpu:0"), ("cpu:1", "cpu:0")),
        (("cuda",), ("cuda:0", "cuda:1")),
        (("cuda:01",), ("cuda:1",)),
    ],
)
def test_devices_are_named_by_kind_or_by_number(words: tuple[str, ...], meant: tuple[str, ...]) -> None:
    assert choose_devices(WITH_GPUS, devices=words) == meant


def test_gpus_are_chosen_by_number_in_the_order_given() -> None:
    assert choose_devices(WITH_GPUS, gpus=("1", "0")) == ("cuda:1", "cuda:0")


@pytest.mark.parametrize(
    ("made", "gpus", "devices", "error", "message"),
    [
        (WITH_GPUS, ("0",), ("cpu",), BadInput, "either --gpus or --device, not both"),
        (WITH_GPUS, ("0", "0"), (), BadInput, "named twice: cuda:0"),
        (WITH_GPUS, ("1", "01"), (), BadInput, "named twice: cuda:1"),
        (WITH_GPUS, (), ("cpu", "cpu:0"), BadInput, "named twice: cpu:0"),
        (WITH_GPUS, ("x",), (), BadInput, "'x' is not a GPU's number; write --gpus 0,1"),
        (WITH_GPUS, ("-1",), (), BadInput, "'-1' is not a GPU's number"),
        (WITH_GPUS, ("²",), (), BadInput, "'²' is not a GPU's number"),
        (WITH_GPUS, (), ("tpu",), BadInput, "'tpu' is not a device; write cpu, cpu:0, cuda or cuda:0"),
        (WITH_GPUS, (), ("cpu:",), BadInput, "'cpu:' is not a device"),
        (WITH_GPUS, (), ("cpu:-1",), BadInput, "'cpu:-1' is not a device"),
        (WITH_GPUS, (), ("cuda:0", "cpu:0"), BadInput, "cannot be measured in one run"),
        (WITH_GPUS, ("2",), (), MachineCannot, "There is no GPU 2 here; the GPUs are 0 to 1"),
        (WITH_GPUS, (), ("cuda:7",), MachineCannot, "There is no GPU 7 here"),
        (WITHOUT, ("0",), (), MachineCannot, "There is no GPU 0 here: NVML does not answer: no driver"),
        (WITHOUT, (), ("cuda",), MachineCannot, "There is no GPU here: NVML does not answer: no driver"),
        (WITHOUT, (), ("cpu:9",), MachineCannot, "no device cpu:9: the 8 cores here form 2 groups, cpu:0 to cpu:1"),
        (machine(cores=(1,)), (), ("cpu:1",), MachineCannot, "the 1 cores here form 1 group, cpu:0; --cpu-groups"),
    ],
)
def test_words_that_mean_no_device_are_answered_in_a_sentence(
    made: Machine, gpus: tuple[str, ...], devices: tuple[str, ...], error: type[AssayError], message: str
) -> None:
    with pytest.raises(error) as caught:
        choose_devices(made, gpus=gpus, devices=devices)
    assert message in str(caught.value)
    assert caught.value.exit_code == (2 if error is BadInput else 3)


@pytest.mark.parametrize(("groups", "error"), [(0, BadInput), (9, MachineCannot)])
def test_groups_that_cannot_be_are_refused_before_anything_is_chosen(groups: int, error: type[AssayError]) -> None:
    with pytest.raises(error):
        choose_devices(WITHOUT, cpu_groups=groups)


@settings(deadline=None, max_examples=60)
@given(machines(), st.data())
def test_whatever_is_chosen_is_there_once_and_of_one_kind(made: Machine, data: st.DataObject) -> None:
    everything = list_devices(made)
    words = data.draw(st.lists(st.sampled_from(everything), max_size=4, unique=True))
    one_kind = [word for word in words if kind_of(word) == kind_of(words[0])]
    chosen = choose_devices(made, devices=tuple(one_kind))
    assert set(chosen) <= set(everything)
    assert len(set(chosen)) == len(chosen) > 0
    assert len({kind_of(device) for device in chosen}) == 1
    if one_kind:
        assert chosen == tuple(one_kind)
