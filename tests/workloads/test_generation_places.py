from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.machine.model import GpuLink, LinkPath
from assay.workloads.generation import models
from assay.workloads.generation.loading import device_ids_of, local_indices
from assay.workloads.generation.models import SHAPES, local_folder, model_shape
from assay.workloads.generation.params import Generation
from assay.workloads.generation.placement import link_notes, order_gpus, parse_bytes, parse_limits
from assay.workloads.generation.weights import check_tp_plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("said", "size"),
    [(1024, 1024), ("1024", 1024), ("20GB", 20 * 10**9), ("18GiB", 18 * 2**30), ("1.5 MB", 1_500_000), ("7kib", 7168)],
)
def test_sizes_are_read_as_people_write_them(said: int | str, size: int) -> None:
    assert parse_bytes(said) == size


@pytest.mark.parametrize("said", ["", "20G", "lots", "-3GB", True, "1,5GB", -1])
def test_a_size_that_cannot_be_read_is_refused(said: int | str) -> None:
    with pytest.raises(BadInput, match="max_memory"):
        parse_bytes(said)


def test_limits_are_of_the_models_own_places() -> None:
    assert parse_limits({"2": "1GB", 0: 5, "cpu": "2GB"}, (2, 0)) == {"cuda:2": 10**9, "cuda:0": 5, "cpu": 2 * 10**9}
    assert parse_limits(None, ()) == {}
    wrong: list[tuple[dict[int | str, int | str], tuple[int, ...], str]] = [
        ({"3": "1GB"}, (2, 0), r"names GPU 3, and backend.device_ids has 2 and 0"),
        ({0: "1GB"}, (), "the model is not on GPUs"),
        ({"gpu": "1GB"}, (0,), "'gpu' is no place"),
        ({0: "1GB", "0": "2GB"}, (0,), "twice"),
    ]
    for max_memory, device_ids, words in wrong:
        with pytest.raises(BadInput, match=words):
            parse_limits(max_memory, device_ids)


def linked(*pairs: tuple[int, int], among: int = 4, path: LinkPath = "node") -> tuple[GpuLink, ...]:
    every = [(one, other) for one in range(among) for other in range(one + 1, among)]
    return tuple(GpuLink(gpus=pair, nvlinks=4 if pair in pairs else 0, path=path) for pair in every)


def test_layers_go_from_a_gpu_to_one_that_it_is_linked_to() -> None:
    assert order_gpus((0, 1, 2, 3), linked((0, 3), (1, 2), (2, 3))) == (0, 3, 2, 1)
    assert link_notes((0, 3, 2, 1), linked((0, 3), (1, 2), (2, 3))) == ()
    assert link_notes((0, 1), linked((0, 3))) == ("GPU 0 and GPU 1 are not linked by NVLink: activations go over PCIe",)


def test_without_links_the_order_is_that_given_and_near_ones_are_neighbours() -> None:
    assert order_gpus((2, 0, 1), ()) == (2, 0, 1)
    assert link_notes((2, 0, 1), ()) == ()
    near = tuple(link.model_copy(update={"path": "switch"}) if link.gpus == (0, 2) else link for link in linked())
    order = order_gpus((0, 1, 2), near)
    assert {0, 2} in [set(pair) for pair in pairwise(order)]


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(10)), st.integers(0, 10), st.sets(st.tuples(st.integers(0, 4), st.integers(5, 9))))
def test_an_order_never_changes_which_gpus_they_are(gpus: list[int], count: int, pairs: set[tuple[int, int]]) -> None:
    chosen = gpus[: min(count, 5)] if count < 10 else gpus
    assert sorted(order_gpus(chosen, linked(*pairs, among=10))) == sorted(chosen)


def test_a_process_knows_which_gpu_is_which_by_its_place() -> None:
    assert local_indices((2, 0), 2, "GPU-b,GPU-a") == (0, 1)
    assert local_indices((2, 0), 4, None) == (2, 0)
    for count, visible in ((1, "GPU-b"), (4, "0,1,2,3"), (2, None)):
        with pytest.raises(MachineCannot, match="sees just these"):
            local_indices((2, 0), count, visible)


def test_the_gpus_of_a_generation_begin_with_its_process() -> None:
    assert device_ids_of(Generation(), "cpu:0") == ()
    assert device_ids_of(Generation(), "cuda:3/1") == (3,)
    assert device_ids_of(Generation(device_ids="[2, 0]"), "cuda:2") == (2, 0)
    assert device_ids_of(Generation(device_ids="[2, 0]", tp_plan="auto"), "cuda:0") == (0,)
    with pytest.raises(BadInput, match="begin with"):
        device_ids_of(Generation(device_ids="[2, 0]"), "cuda:0")


def test_random_models_are_shapes_that_may_be_changed() -> None:
    assert model_shape("random:llama-8b") is not None
    assert model_shape("random:llama-8b?layers=4&context=4096").layers == 4
    for model, words in (
        ("random:lama-8b", "Did you mean llama-8b"),
        ("random:llama-8b?layer=3", "Did you mean layers"),
        ("random:llama-8b?layers=none", "whole number"),
        ("random:llama-8b?layers=100000", "from 1 to 1000"),
        (f"random:llama-8b?context={'9' * 5000}", "from 1 to 16777216"),
        ("random:llama-8b?heads=33", "multiple of heads"),
    ):
        with pytest.raises(BadInput, match=words):
            model_shape(model)
    assert all(shape.hidden % shape.heads == 0 for shape in SHAPES.values())


def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    assert local_folder("meta-llama/Llama-3.1-8B") is None
    (tmp_path / "file").touch()
    for model, words in (
        ("./no-such-folder", "does not exist"),
        (str(tmp_path / "file"), "is a file"),
        (str(tmp_path), "no config.json"),
    ):
        with pytest.raises(BadInput, match=words):
            local_folder(model)


def test_ranks_and_their_plan_go_together() -> None:
    check_tp_plan("", 1)
    check_tp_plan("auto", 2)
    with pytest.raises(BadInput, match="one of 2 ranks"):
        check_tp_plan("", 2)
    with pytest.raises(BadInput, match="two ranks"):
        check_tp_plan("auto", 1)


def test_weights_are_of_the_models_own_type_unless_told_otherwise() -> None:
    assert models.resolve_dtype("auto", SimpleNamespace(dtype=None), "cuda") == "bfloat16"
    assert models.resolve_dtype("auto", SimpleNamespace(dtype=None), "cpu") == "float32"
    assert models.resolve_dtype("auto", SimpleNamespace(dtype="torch.float16"), "cpu") == "float16"
    assert models.resolve_dtype("float32", SimpleNamespace(dtype="torch.float16"), "cuda") == "float32"
    with pytest.raises(BadInput, match="Did you mean bfloat16"):
        models.resolve_dtype("bf16float", SimpleNamespace(dtype=None), "cpu")
    with pytest.raises(BadInput, match="float8_e4m3fn"):
        models.resolve_dtype("auto", SimpleNamespace(dtype="torch.float8_e4m3fn"), "cuda")
