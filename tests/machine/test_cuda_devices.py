"""NVML's numbers and CUDA's numbers, reconciled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.machine.devices import AllGpusHidden, cuda_order
from assay.machine.model import Gpu, MigInstance

if TYPE_CHECKING:
    from assay.core.errors import AssayError

UUIDS = tuple(f"GPU-{letter * 8}-0000-4000-8000-00000000000{n}" for n, letter in enumerate("abcd"))
ALIKE = tuple(Gpu(index=n, uuid=uuid, name="H200") for n, uuid in enumerate(UUIDS))
MIXED = (*ALIKE[:2], ALIKE[2].model_copy(update={"name": "L4"}), ALIKE[3])
PIECES = tuple(
    MigInstance(number=n, uuid=f"MIG-{n}{n}{n}", parent=UUIDS[1], gpu_instance=7 + n, compute_instance=0)
    for n in range(2)
)
CUT = (ALIKE[0], ALIKE[1].model_copy(update={"mig": True, "instances": PIECES}))
BY_ADDRESS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def visible(text: str, **more: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": text, **more}


def seen(gpus: tuple[Gpu, ...], environment: dict[str, str]) -> list[int]:
    """Return NVML's indices in the order in which CUDA counts."""
    order = cuda_order(gpus, environment)
    assert [device.cuda_index for device in order.devices] == list(range(len(order.devices)))
    return [device.gpu for device in order.devices]


def test_without_a_word_gpus_of_one_model_are_counted_as_nvml_does() -> None:
    order = cuda_order(ALIKE, {})
    assert [device.gpu for device in order.devices] == [0, 1, 2, 3]
    assert (order.named, order.certain, order.notes) == (UUIDS, True, ())


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("2,0", [2, 0]),
        (" 3 , 1 ", [3, 1]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("1,", [1]),
        ("1gpu,0", [1, 0]),
        (UUIDS[3], [3]),
        (f"{UUIDS[1]},{UUIDS[0]}", [1, 0]),
        ("GPU-c,GPU-a", [2, 0]),
    ],
)
def test_cuda_counts_in_the_order_of_the_list(text: str, gpus: list[int]) -> None:
    assert seen(ALIKE, visible(text)) == gpus


@pytest.mark.parametrize(
    ("text", "gpus", "at"),
    [
        ("0,2,-1,1", [0, 2], "'-1'"),
        ("1,9,0", [1], "'9'"),
        ("3,4", [3], "'4'"),
        ("1,x,0", [1], "'x'"),
        ("0,,1", [0], "''"),
        ("GPU-a,GPU-zzz,GPU-b", [0], "'GPU-zzz'"),
        ("GPU-a,GPU-", [0], "'GPU-'"),
    ],
)
def test_cuda_stops_at_the_first_word_that_names_nothing_and_a_note_says_so(
    text: str, gpus: list[int], at: str
) -> None:
    assert seen(ALIKE, visible(text)) == gpus
    assert cuda_order(ALIKE, visible(text)).notes == (
        f"CUDA stops reading CUDA_VISIBLE_DEVICES at {at}, which is no GPU here",
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", AllGpusHidden, "CUDA_VISIBLE_DEVICES is empty: it hides every GPU."),
        ("  ", AllGpusHidden, "CUDA_VISIBLE_DEVICES is empty: it hides every GPU."),
        ("-1", AllGpusHidden, "CUDA_VISIBLE_DEVICES=-1 hides every GPU."),
        ("NoDevFiles", AllGpusHidden, "CUDA_VISIBLE_DEVICES=NoDevFiles hides every GPU."),
        ("4", MachineCannot, "begins with 4, which is no GPU of this machine (its GPUs are 0 to 3)"),
        ("7,0", MachineCannot, "begins with 7, which is no GPU of this machine (its GPUs are 0 to 3)"),
        ("GPU-zzz", MachineCannot, "begins with GPU-zzz, which is no GPU of this machine"),
        ("GPU-", MachineCannot, "begins with GPU-, which fits several GPUs"),
        ("MIG-000", MachineCannot, "begins with MIG-000, which is no GPU of this machine"),
        ("0,GPU-b", BadInput, "mixes numbers and UUIDs"),
        ("GPU-b,0", BadInput, "mixes numbers and UUIDs"),
        ("0,1,0", BadInput, "names 0 twice, and CUDA then shows no GPU at all"),
        (f"GPU-a,{UUIDS[0]}", BadInput, "twice"),
    ],
)
def test_a_list_that_leaves_nothing_is_answered_in_a_sentence(text: str, error: type[AssayError], message: str) -> None:
    with pytest.raises(error) as caught:
        cuda_order(ALIKE, visible(text))
    assert message in str(caught.value)
    assert caught.value.exit_code == (2 if error is BadInput else 3)


def test_different_models_sorted_by_speed_cannot_be_known() -> None:
    order = cuda_order(MIXED, {})
    assert not order.certain
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in order.notes[0]
    assert set(order.named) == set(UUIDS)


def test_different_models_are_known_by_address_or_by_uuid() -> None:
    assert cuda_order(MIXED, BY_ADDRESS).certain
    assert cuda_order(MIXED, visible("2,0", **BY_ADDRESS)).certain
    assert cuda_order(MIXED, visible("GPU-c,GPU-a")).certain
    assert not cuda_order(MIXED, visible("2,0")).certain


def test_with_a_gpu_lost_the_numbers_of_the_others_are_not_known() -> None:
    order = cuda_order(ALIKE[1:], BY_ADDRESS, some_lost=True)
    assert not order.certain
    assert "a GPU is lost" in order.notes[0]


def test_a_program_that_sees_an_instance_sees_nothing_else() -> None:
    order = cuda_order(CUT, {})
    assert [(device.gpu, device.instance, device.uuid) for device in order.devices] == [(1, 0, "MIG-000")]
    assert order.notes == ("a CUDA program sees one MIG instance at most, and no other GPU beside it",)
    assert set(order.named) == {UUIDS[0], UUIDS[1], "MIG-000", "MIG-111"}


@pytest.mark.parametrize("text", ["MIG-111", "MIG-1", f"MIG-{UUIDS[1]}/8/0"])
def test_an_instance_is_named_by_its_uuid_of_either_age(text: str) -> None:
    order = cuda_order(CUT, visible(text))
    assert [(device.gpu, device.instance) for device in order.devices] == [(1, 1)]
    assert order.named == ("MIG-111",)
    assert order.index_of("MIG-111") == 0
    assert order.index_of(UUIDS[0]) is None


def test_naming_a_gpu_in_mig_mode_names_its_instances() -> None:
    order = cuda_order(CUT, visible("1"))
    assert [(device.gpu, device.instance) for device in order.devices] == [(1, 0)]
    assert order.named == (UUIDS[1], "MIG-000", "MIG-111")


def test_a_program_that_sees_one_instance_alone_misses_nothing() -> None:
    one_sided = "a CUDA program sees one MIG instance at most, and no other GPU beside it"
    whole, cut = CUT
    lone = cut.model_copy(update={"instances": PIECES[:1]})
    assert cuda_order((lone,), {}).notes == ()
    assert cuda_order((cut,), {}).notes == (one_sided,)
    assert cuda_order((whole, lone), {}).notes == (one_sided,)
    assert cuda_order((whole,), {}).notes == ()


def test_the_beginning_of_two_uuids_is_said_to_fit_several_gpus() -> None:
    with pytest.raises(MachineCannot, match="begins with GPU-, which fits several GPUs, so that CUDA shows none"):
        cuda_order(ALIKE[:2], visible("GPU-"))
    assert seen(ALIKE[:1], visible("GPU-")) == [0]


@settings(deadline=None)
@given(st.permutations(range(4)), st.integers(1, 4), st.booleans())
def test_numbers_and_uuids_of_the_same_gpus_mean_the_same(order: list[int], count: int, short: bool) -> None:
    numbers = order[:count]
    uuids = [UUIDS[n][: 7 if short else None] for n in numbers]
    by_number = cuda_order(ALIKE, visible(",".join(map(str, numbers))))
    assert by_number == cuda_order(ALIKE, visible(",".join(uuids)))
    assert [by_number.index_of(UUIDS[n]) for n in numbers] == list(range(count))


@settings(deadline=None)
@given(st.text(alphabet="0123-,GPUMIabcx ", max_size=24), st.sampled_from([ALIKE, MIXED, CUT]))
def test_whatever_the_list_says_the_answer_is_an_order_or_a_sentence(text: str, gpus: tuple[Gpu, ...]) -> None:
    try:
        order = cuda_order(gpus, visible(text))
    except (BadInput, MachineCannot):
        return
    assert order.devices
    assert {device.uuid for device in order.devices} <= set(order.named)
