"""GPUs through the real nvidia-ml-py: what is read, what is missing, and what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import MachineCannot
from assay.machine import nvidia, nvml
from assay.machine.detect import detect
from assay.machine.model import GpuLink, GpuState, UnreachableGpu, describe_differences
from tests.fakes.fake_nvml import GpuProcess, MigInstance, NvLink, ampere, attached, hopper, volta
from tests.fakes.trees import eight_gpus_on_two_nodes, two_sockets_with_smt, with_gpus

if TYPE_CHECKING:
    from pathlib import Path

    from assay.machine.model import Vendor
    from tests.fakes.plugin import MakeFakeNvml

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN = 3, 4, 9, 15, 999

FIELDS = {
    "nvmlDeviceGetMemoryInfo": "memory_mib",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetEccMode": "ecc",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetPowerManagementLimit": "power_limit_w",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power_limit_default_w",
    "nvmlDeviceGetPowerManagementLimitConstraints": "power_limit_min_w",
    "nvmlDeviceGetMaxClockInfo": "sm_max_mhz",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_max_generation",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie_max_width",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetPciInfo": "pci_bus_id",
}
STATES = {
    "nvmlDeviceGetClockInfo": "sm_mhz",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetUtilizationRates": "utilisation_percent",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
}


def test_the_nvidia_module_is_a_vendor() -> None:
    vendor: Vendor = nvidia
    assert vendor.list_gpus is nvidia.list_gpus


def test_a_gpu_is_described_with_its_settings(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml([replace(hopper(), power_limit_w=500.0, compute_mode=3)])):
        here = detect()
    gpu = here.gpus[0]
    assert (gpu.name, gpu.compute_capability, gpu.pci_bus_id) == ("NVIDIA H200", (9, 0), "0000:1b:00.0")
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (500.0, 700.0)
    assert (gpu.power_limit_min_w, gpu.power_limit_max_w) == (200.0, 700.0)
    assert (gpu.sm_max_mhz, gpu.memory_max_mhz) == (1980, 3201)
    assert (gpu.pcie_max_generation, gpu.pcie_max_width) == (5, 16)
    assert (gpu.ecc, gpu.persistence, gpu.compute_mode, gpu.mig) == (True, True, "exclusive process", False)
    assert here.cuda_driver == "13.0"


def test_a_gpu_is_described_with_what_it_does_at_the_moment(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([replace(hopper(), processes=(GpuProcess(pid=1, memory_bytes=2**30),))])
    with attached(fake):
        state = detect().gpus[0].state
    assert state == GpuState(
        sm_mhz=345,
        memory_mhz=3201,
        power_w=78.0,
        temperature_c=35,
        memory_used_mib=1024.0,
        utilisation_percent=0,
        pcie_generation=5,
        pcie_width=16,
        throttle=("idle",),
    )


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(("function", "field"), [*FIELDS.items(), *STATES.items()])
def test_a_field_that_fails_is_null_and_spoils_no_other(
    function: str, field: str, code: int, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = make_fake_nvml()
    with attached(fake):
        whole = nvidia.list_gpus().gpus[0]
        fake.fail(function, code)
        gpu = nvidia.list_gpus().gpus[0]
    assert gpu.state is not None
    assert whole.state is not None
    if field in STATES.values():
        assert getattr(gpu.state, field) is None
        assert gpu.model_copy(update={"state": whole.state}) == whole
    else:
        assert getattr(gpu, field) is None
        changed = {name for name in type(gpu).model_fields if getattr(gpu, name) != getattr(whole, name)}
        assert changed <= {field, "power_limit_max_w", "memory_max_mhz", "state"}


def test_an_old_card_has_nulls_for_what_it_lacks(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml([replace(volta(), ecc=None)])):
        gpu = nvidia.list_gpus().gpus[0]
    assert (gpu.ecc, gpu.mig, gpu.instances, gpu.memory_node) == (None, None, (), None)


def test_changing_clocks_temperature_power_and_load_leave_the_identity_alone(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml()
    with attached(fake):
        before = detect()
        fake.set_power(0, 650.0)
        fake.advance(2.0)
        state = fake.gpu(0)
        state.temperature_c, state.utilisation_percent, state.pcie_generation = 81, 100, 1
        fake.add_process(0, GpuProcess(pid=1, memory_bytes=2**33))
        now = detect()
    assert before.gpus[0].state != now.gpus[0].state
    assert describe_differences(before, now) == []


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("power_limit_mw", 450_000, "gpus 0 power_limit_w: 700.0 → 450.0"),
        ("persistence", 0, "gpus 0 persistence: True → False"),
        ("ecc", 0, "gpus 0 ecc: True → False"),
        ("compute_mode", 2, "gpus 0 compute_mode: default → prohibited"),
    ],
)
def test_a_changed_setting_is_a_difference(
    attribute: str, value: int, words: str, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = make_fake_nvml()
    with attached(fake):
        before = detect()
        setattr(fake.gpu(0), attribute, value)
        assert describe_differences(before, detect()) == [words]


def test_cutting_a_gpu_into_instances_is_a_difference(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml()
    with attached(fake):
        before = detect()
        fake.set_mig(0, [MigInstance()])
        assert describe_differences(before, detect()) == ["gpus 0 mig: False → True", "gpus 0 instances: 0 → 1"]


def test_a_lost_gpu_is_listed_with_its_reason_and_the_others_are_described(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper(), hopper()])
    fake.lose(1)
    with attached(fake):
        here = detect()
    assert [gpu.index for gpu in here.gpus] == [0, 2]
    assert here.lost == (UnreachableGpu(index=1, reason="GPU is lost"),)
    assert here.gpu_note is None
    assert [link.gpus for link in here.links] == [(0, 2)]


def test_a_gpu_that_is_lost_while_it_is_described_is_lost(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    fake.fail("nvmlDeviceGetPowerManagementDefaultLimit", GPU_IS_LOST, gpu=0)
    with attached(fake):
        here = detect()
    assert [gpu.index for gpu in here.gpus] == [1]
    assert here.lost == (UnreachableGpu(index=0, reason="GPU is lost"),)


def test_a_gpu_that_this_process_may_not_open_is_listed_with_its_reason(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    fake.fail("nvmlDeviceGetHandleByIndex", NO_PERMISSION, gpu=0)
    with attached(fake):
        assert detect().lost == (UnreachableGpu(index=0, reason="Insufficient Permissions"),)


def test_a_driver_that_is_gone_is_a_normal_answer_with_a_note(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml()
    fake.fail("nvmlInit", DRIVER_NOT_LOADED)
    with attached(fake):
        here = detect()
        with pytest.raises(MachineCannot, match="NVML does not answer: Driver Not Loaded"):
            nvidia.smoke_test("GPU-any")
        assert nvidia.processes() == ()
    assert (here.gpus, here.gpu_note) == ((), "NVML does not answer: Driver Not Loaded")


def test_a_driver_that_stops_answering_after_the_start_is_said_in_the_note(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml()
    fake.fail("nvmlDeviceGetCount", UNKNOWN)
    with attached(fake):
        assert nvidia.list_gpus().note == "NVML stopped answering: Unknown Error"


def test_bindings_that_do_not_match_the_library_cost_only_the_field(
    make_fake_nvml: MakeFakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    def refuse(*_: object) -> None:
        raise pynvml.NVMLLibraryMismatchError("unversioned function called")

    with attached(make_fake_nvml()):
        monkeypatch.setattr(pynvml, "nvmlDeviceGetEccMode", refuse)
        monkeypatch.delattr(pynvml, "nvmlDeviceGetNumaNodeId")
        monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: b"Some \xff Card")
        gpu = nvidia.list_gpus().gpus[0]
    assert (gpu.ecc, gpu.memory_node, gpu.name) == (None, None, "Some � Card")


def test_gpus_linked_directly_count_their_nvlinks(make_fake_nvml: MakeFakeNvml) -> None:
    first = replace(ampere(), links=(NvLink("00000000:2B:00.0"),) * 4 + (NvLink("00000000:3B:00.0"),) * 2)
    idle = NvLink("00000000:1B:00.0", active=False)
    second = replace(ampere(), links=(NvLink("00000000:1B:00.0"),) * 4 + (idle,))
    third = replace(ampere(), links=(NvLink("00000000:1B:00.0"),) * 2)
    fake = make_fake_nvml([first, second, third])
    fake.set_topology(0, 1, 10)
    fake.set_topology(0, 2, 30)
    with attached(fake):
        here = detect()
    assert here.links == (
        GpuLink(gpus=(0, 1), nvlinks=4, path="switch"),
        GpuLink(gpus=(0, 2), nvlinks=2, path="bridge"),
        GpuLink(gpus=(1, 2), nvlinks=0, path="node"),
    )
    assert here.link(2, 0) == here.links[1]
    assert here.link(1, 1) is None


def test_gpus_linked_through_switches_have_all_links_to_each_other(make_fake_nvml: MakeFakeNvml) -> None:
    into_switches = tuple(NvLink(f"00000000:{0xC0 + n % 4:02X}:00.0", to_switch=True) for n in range(18))
    broken = (*into_switches[:17], replace(into_switches[17], active=False))
    with attached(make_fake_nvml([replace(hopper(), links=links) for links in (into_switches, into_switches, broken)])):
        links = nvidia.list_gpus().links
    assert [link.nvlinks for link in links] == [18, 17, 17]


def test_pairs_whose_common_ancestor_is_not_told_have_no_path(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    fake.fail("nvmlDeviceGetTopologyCommonAncestor", NOT_SUPPORTED)
    with attached(fake):
        assert nvidia.list_gpus().links == (GpuLink(gpus=(0, 1)),)


def test_where_sysfs_does_not_say_the_cores_that_nvml_calls_near_give_the_node(
    tmp_path: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    tree = with_gpus(two_sockets_with_smt(tmp_path / "root").root, (None, None))
    near, everywhere = replace(tree.gpus[0], cpus=(4, 5, 12, 13)), tree.gpus[1]
    with attached(make_fake_nvml([near, everywhere])):
        assert [gpu.node for gpu in detect(tree.root).gpus] == [1, None]


def test_a_gpu_whose_memory_is_a_node_of_its_own_does_not_hang_on_that_node(
    tmp_path: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    tree = with_gpus(two_sockets_with_smt(tmp_path / "root").root, (0, None))
    grace = [replace(tree.gpus[0], numa_node=2), replace(tree.gpus[1], numa_node=3)]
    with attached(make_fake_nvml(grace)):
        gpus = detect(tree.root).gpus
    assert [(gpu.node, gpu.memory_node) for gpu in gpus] == [(0, 2), (None, 3)]


def test_a_gpu_behind_a_long_pci_domain_is_found_in_sysfs(tmp_path: Path, make_fake_nvml: MakeFakeNvml) -> None:
    root = two_sockets_with_smt(tmp_path / "root").root
    folder = root / "sys/bus/pci/devices/10000:e1:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    with attached(make_fake_nvml([replace(hopper(), pci_bus_id="00010000:E1:00.0")])):
        gpu = detect(root).gpus[0]
    assert (gpu.pci_bus_id, gpu.node) == ("10000:e1:00.0", 1)


def test_touching_a_gpu_asks_it_something(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([replace(hopper(), mig=(MigInstance(uuid="MIG-a"),)), hopper()])
    with attached(fake):
        for uuid in ("MIG-a", *(gpu.uuid for gpu in nvidia.list_gpus().gpus)):
            asked = fake.calls("nvmlDeviceGetMemoryInfo")
            nvidia.smoke_test(uuid)
            assert fake.calls("nvmlDeviceGetMemoryInfo") > asked


def test_a_gpu_lost_between_detection_and_use_is_said_in_a_sentence(
    tmp_path: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    tree = eight_gpus_on_two_nodes(tmp_path / "root")
    fake = make_fake_nvml(tree.gpus)
    with attached(fake):
        here = detect(tree.root)
        fake.lose(5)
        nvidia.smoke_test(here.gpus[4].uuid)
        with pytest.raises(MachineCannot, match=f"GPU {here.gpus[5].uuid} does not answer: GPU is lost") as caught:
            nvidia.smoke_test(here.gpus[5].uuid)
        assert describe_differences(here, detect(tree.root))
    assert caught.value.exit_code == 3
    assert caught.value.__cause__ is None


def test_a_gpu_that_was_never_there_is_said_in_a_sentence(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml()), pytest.raises(MachineCannot, match="GPU GPU-nobody does not answer: Not Found"):
        nvidia.smoke_test("GPU-nobody")


def test_a_gpu_that_refuses_an_answer_is_said_in_a_sentence(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml()
    fake.fail("nvmlDeviceGetMemoryInfo", NO_PERMISSION)
    with attached(fake):
        uuid = nvidia.list_gpus().gpus[0].uuid
        with pytest.raises(MachineCannot, match="does not answer: Insufficient Permissions"):
            nvidia.smoke_test(uuid)


def test_nvml_is_left_as_it_was_found(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml()) as pynvml:
        detect()
        with pytest.raises(MachineCannot):
            nvidia.smoke_test("GPU-nobody")
        with pytest.raises(pynvml.NVMLError):
            pynvml.nvmlDeviceGetCount()


@given(st.integers(0, 2**11 - 1))
def test_every_throttle_reason_of_a_mask_is_named_once(mask: int) -> None:
    words = nvml.describe_throttle(mask)
    assert len(set(words)) == len(words) == mask.bit_count()
    assert set(words) <= set(nvml.THROTTLE_REASONS.values())


def test_a_throttle_reason_that_nobody_has_named_yet_is_not_hidden() -> None:
    assert nvml.describe_throttle(0x1004) == ("power cap", "reason 0x1000")
