"""Which GPUs are there before anything is loaded; examples and recommendations are configurations that can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import MachineCannot
from assay.experiments.energy.config import EnergyConfig
from assay.experiments.energy.config_file import read_config
from assay.experiments.energy.gpu_check import (
    build_check_page,
    check_gpus,
    metered_only_note,
    recommend_config,
)
from assay.experiments.energy.options import resolve_available_gpus
from assay.machine.doctor import build_inference_yaml
from assay.machine.model import Gpu, GpuState, Machine, UnreachableGpu
from tests.machines import machine

EXAMPLES = Path(__file__).parents[3] / "examples"
KERNELS = {"torch": "2.11", "cuda": "13.0", "gpus": {f"GPU-{n}": {"error": None} for n in range(8)}}


def card(index: int, *, gib: float | None = 80.0, used_mib: float | None = 100.0, capability: int = 9) -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name="Example 80GB",
        memory_mib=None if gib is None else gib * 1024,
        compute_capability=(capability, 0),
        state=GpuState(power_w=71.4, temperature_c=30, memory_used_mib=used_mib, utilisation_percent=0),
    )


def cards(count: int, **changes: Any) -> Machine:
    return machine(gpus=[0] * count).model_copy(update={"gpus": tuple(map(card, range(count))), **changes})


def config(**sections: Any) -> EnergyConfig:
    backend = {"type": "pytorch", "model": "random:llama-tiny", **sections.pop("backend", {})}
    return EnergyConfig.model_validate({"backend": backend, **sections})


def touch(uuid: str) -> None:
    if uuid == "GPU-1":
        raise MachineCannot("GPU GPU-1 does not answer: GPU is lost.")


def answers(uuid: str) -> None:
    """Every GPU does."""


def look(wanted: EnergyConfig, here: Machine, **more: Any) -> tuple[EnergyConfig, tuple[str, ...]]:
    return resolve_available_gpus(wanted, here, more.pop("touch", answers), environment={}, **more)


def test_gpus_that_are_there_change_nothing() -> None:
    wanted = config(backend={"device_ids": [0, 1, 2, 3]})
    assert look(wanted, cards(4)) == (wanted, ())
    assert look(config(), machine()) == (config(), ())


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (machine(), "There is no GPU 0, 1 here: NVML does not answer"),
        (cards(1), "There is no GPU 1 here; here is GPU 0. GPU 0 can be used: --allow-missing goes on with that alone"),
        (
            cards(1, lost=(UnreachableGpu(index=1, reason="it fell off the bus"),)),
            "GPU 1 cannot be reached: it fell off",
        ),
    ],
)
def test_a_missing_gpu_stops_the_run_and_is_told_with_what_is_there(here: Machine, said: str) -> None:
    with pytest.raises(MachineCannot, match=said):
        look(config(backend={"device_ids": [0, 1]}), here)


def test_a_gpu_that_is_there_and_does_not_answer_is_missing() -> None:
    with pytest.raises(MachineCannot, match="GPU-1 does not answer"):
        look(config(backend={"device_ids": [0, 1]}), cards(2), touch=touch)
    with pytest.raises(MachineCannot, match="There is no GPU 0 here"):
        look(config(backend={"device": "cuda"}), machine())


def test_allowed_to_be_missing_the_rest_is_used_with_a_note() -> None:
    wanted = config(backend={"device_ids": [0, 1, 2, 3], "max_memory": {0: "1GB", 3: "1GB", "cpu": "1GB"}})
    left, notes = look(wanted, cards(3), touch=touch, allow_missing=True)
    assert left.backend.device_ids == (0, 2)
    assert left.backend.max_memory == {0: "1GB", "cpu": "1GB"}
    assert len(notes) == 1
    assert notes[0].startswith("GPU 0, 2 of 0, 1, 2, 3 is used, with --allow-missing: There is no GPU 3 here")
    assert "does not answer" in notes[0]
    metered = config(backend={"device": "cpu"}, metrics={"gpus": [0, 1]})
    assert look(metered, cards(1), allow_missing=True)[0].metrics.gpus == (0,)


@pytest.mark.parametrize(
    ("backend", "here", "said"),
    [
        ({"device_ids": [4, 5]}, 4, "There is no GPU 4, 5 here"),
        ({"device_ids": [0, 1], "device_map": {"": 1}}, 1, "device_map places parts on GPU 1, which is missing"),
        ({"device_ids": [0, 1], "tp_plan": "auto"}, 1, "tp_plan needs two GPUs at least"),
    ],
)
def test_what_cannot_do_without_a_missing_gpu_stops(backend: dict[str, Any], here: int, said: str) -> None:
    with pytest.raises(MachineCannot, match=said):
        look(config(backend=backend), cards(here), allow_missing=True)


def test_memory_that_others_use_is_told_where_we_compute() -> None:
    busy = cards(1, gpus=(card(0, used_mib=40 * 1024.0),))
    assert look(config(backend={"device_ids": [0]}), busy)[1] == ("50 % of the memory of GPU 0 is in use by others",)
    server = config(backend={"type": "openai", "endpoint": "http://a/v1"}, metrics={"gpus": [0]})
    assert look(server, busy)[1] == ()


@pytest.mark.parametrize("name", ["pytorch_single", "pytorch_multigpu", "openai_server"])
def test_examples_are_read_without_a_word(name: str) -> None:
    found, notes = read_config(EXAMPLES / f"{name}.yaml")
    assert (found.name, notes) == (name, ())


def test_the_example_for_four_gpus_runs_on_two_of_them() -> None:
    found, notes = read_config(EXAMPLES / "pytorch_multigpu.yaml", ["backend.device_ids=[0,1]"])
    assert found.backend.max_memory == {0: "20GB", 1: "20GB"}
    assert "of GPU 2, 3 is left out" in notes[0]


@pytest.mark.parametrize(
    "gpus",
    [
        (),
        (card(0),),
        (card(1), card(3)),
        (card(0, gib=None),),
        (card(0, gib=8.0, capability=7),),
        tuple(map(card, range(8))),
    ],
)
def test_what_is_recommended_can_be_read(gpus: tuple[Gpu, ...], tmp_path: Path) -> None:
    path = tmp_path / "energy.yaml"
    path.write_text(recommend_config(gpus))
    found, notes = read_config(path)
    assert notes == ()
    if not gpus:
        assert (found.backend.device, found.backend.model) == ("cpu", "random:llama-tiny")
        return
    assert found.backend.device_ids == tuple(gpu.index for gpu in gpus)
    limits = {gpu.index: f"{int(gpu.memory_mib * 0.9)}MiB" for gpu in gpus if gpu.memory_mib is not None}
    assert found.backend.max_memory == (limits or None)
    path.write_text(build_inference_yaml(gpus))
    assert read_config(path)[0].backend.device_ids == found.backend.device_ids


@pytest.mark.parametrize("without_torch", [False, True])
def test_where_no_model_computes_on_gpus_the_cpu_or_a_server_is_recommended(
    without_torch: bool, tmp_path: Path
) -> None:
    path = tmp_path / "energy.yaml"
    path.write_text(recommend_config((), metered=[0, 2], without_torch=without_torch))
    found, _ = read_config(path)
    if without_torch:
        assert (found.backend.type, found.backend.device_ids) == ("openai", (0, 2))
        return
    assert (found.backend.type, found.backend.device) == ("pytorch", "cpu")
    aside = [line.removeprefix("#   ") for line in path.read_text().splitlines() if line.startswith("#   ")]
    path.write_text("\n".join(aside))
    assert read_config(path)[0].gpus == (0, 2)


def test_gpus_are_checked_by_a_kernel_and_metered_where_they_answer_nvml() -> None:
    here = cards(3, lost=(UnreachableGpu(index=3, reason="it fell off the bus"),))
    found = check_gpus(here, [0, 1, 2, 3, 9], touch, {**KERNELS, "gpus": {"GPU-0": {"error": None}}})
    assert [each.usable for each in found] == [True, False, False, False, False]
    assert found[0].status == "a kernel ran on it"
    assert (found[0].memory_total_mb, found[0].power_draw_w, found[0].temperature_c) == (80 * 1024, 71.4, 30)
    for each, why in zip(found[1:], ("does not answer", "CUDA_VISIBLE_DEVICES", "fell off", "is none"), strict=True):
        assert why in each.status
    page = build_check_page(here, found, "yaml", "command", metered_only_note(KERNELS))
    assert page.lead == "1 of 5 GPUs can be used."
    without: dict[str, Any] = {"torch": "2.13+cpu", "cuda": None, "gpus": {}}
    (only, gone) = check_gpus(here, [0, 1], touch, without)
    assert (only.usable, only.metered, gone.metered) == (False, True, False)
    assert "answers NVML" in only.status
    said = build_check_page(here, [only], "yaml", "command", metered_only_note(without)).lead
    assert said.startswith("No model can compute on GPUs here, as this PyTorch is built without CUDA")
    (failed,) = check_gpus(here, [0], touch, {**KERNELS, "gpus": {"GPU-0": {"error": "CUDA error: out of memory"}}})
    assert (failed.usable, failed.status) == (False, "CUDA error: out of memory")
