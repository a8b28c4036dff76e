"""What the real pynvml reads from the fake: machines, GPUs, errors and settings."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.fake_nvml import FakeNvml, GpuProcess, MigInstance, NvLink, ampere, attached, hopper, volta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.plugin import MakeFakeNvml

GIB = 2**30


@contextmanager
def initialised(fake: FakeNvml) -> Iterator[Any]:
    """Give pynvml with the fake behind it, initialised."""
    with attached(fake) as nvml:
        nvml.nvmlInit()
        yield nvml


@pytest.fixture
def nvml(fake_nvml: FakeNvml) -> Iterator[Any]:
    with initialised(fake_nvml) as module:
        yield module


@pytest.fixture
def handle(nvml: Any) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(0)


@pytest.mark.parametrize("count", range(9))
def test_a_machine_has_as_many_gpus_as_the_scenario_says(make_fake_nvml: MakeFakeNvml, count: int) -> None:
    with initialised(make_fake_nvml([hopper()] * count)) as nvml:
        assert nvml.nvmlDeviceGetCount() == count


def test_a_ninth_gpu_is_refused(make_fake_nvml: MakeFakeNvml) -> None:
    with pytest.raises(ValueError, match="room for 8 GPUs"):
        make_fake_nvml([hopper()] * 9)


def test_the_driver_names_itself_a_fake(nvml: Any) -> None:
    assert nvml.nvmlSystemGetDriverVersion() == "580.00-assay-fake"
    assert "fake" in nvml.nvmlSystemGetNVMLVersion()
    assert nvml.nvmlSystemGetCudaDriverVersion_v2() == 13000


def test_each_gpu_is_found_by_index_uuid_and_pci_address(make_fake_nvml: MakeFakeNvml) -> None:
    special = replace(ampere(), uuid="GPU-of-its-own", pci_bus_id="00000001:C8:00.0")
    with initialised(make_fake_nvml([hopper(), special, volta()])) as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(3)]
        assert [nvml.nvmlDeviceGetName(h) for h in handles] == [hopper().name, ampere().name, volta().name]
        assert len({nvml.nvmlDeviceGetUUID(h) for h in handles}) == 3
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID("GPU-of-its-own")) == 1
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId("0001:c8:00.0")) == 1
        assert nvml.nvmlDeviceGetMinorNumber(handles[2]) == 2
        assert nvml.nvmlDeviceGetCudaComputeCapability(handles[2]) == (7, 0)


def test_the_pci_address_comes_whole_and_in_parts(make_fake_nvml: MakeFakeNvml) -> None:
    with initialised(make_fake_nvml([replace(hopper(), pci_bus_id="00000001:C8:00.0")])) as nvml:
        pci = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(0))
        assert (pci.busId, pci.busIdLegacy) == ("00000001:C8:00.0", "0001:C8:00.0")
        assert (pci.domain, pci.bus, pci.device, pci.pciDeviceId) == (1, 0xC8, 0, 0x233510DE)


def test_what_does_not_exist_is_not_found(nvml: Any) -> None:
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByUUID("GPU-none")
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByPciBusId("0000:FF:00.0")


def test_before_initialisation_nothing_answers(fake_pynvml: Any) -> None:
    with pytest.raises(fake_pynvml.NVMLError_Uninitialized):
        fake_pynvml.nvmlDeviceGetCount()


def test_initialisations_are_counted(fake_pynvml: Any) -> None:
    fake_pynvml.nvmlInit()
    fake_pynvml.nvmlInit()
    fake_pynvml.nvmlShutdown()
    assert fake_pynvml.nvmlDeviceGetCount() == 1
    fake_pynvml.nvmlShutdown()
    with pytest.raises(fake_pynvml.NVMLError_Uninitialized):
        fake_pynvml.nvmlDeviceGetCount()


def test_the_first_memory_call_counts_the_reserved_part_as_used(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    fake_nvml.gpu(0).memory_used_bytes = 5 * GIB
    first, second = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    assert second.used == 5 * GIB
    assert first.used == second.used + second.reserved
    assert first.free == second.free == second.total - second.used - second.reserved


def test_processes_are_listed_and_their_memory_is_used(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    fake_nvml.set_processes(0, [GpuProcess(41, 2 * GIB), GpuProcess(42, None), GpuProcess(43, GIB, graphics=True)])
    fake_nvml.add_process(0, GpuProcess(44, GIB))
    fake_nvml.remove_process(0, 41)
    compute = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert [(process.pid, process.usedGpuMemory) for process in compute] == [(42, None), (44, GIB)]
    assert [process.pid for process in nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)] == [43]
    assert nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used == 2 * GIB


def test_plain_values_are_read_as_they_were_set(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    gpu = fake_nvml.gpu(0)
    gpu.temperature_c, gpu.utilisation_percent, gpu.memory_utilisation_percent = 81, 97, 40
    gpu.pcie_tx_kb_per_s, gpu.pcie_width, gpu.clocks_event_reasons = 1234, 8, 0x40
    assert nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU) == 81
    assert nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU) == 81
    utilisation = nvml.nvmlDeviceGetUtilizationRates(handle)
    assert (utilisation.gpu, utilisation.memory) == (97, 40)
    assert nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES) == 1234
    assert (nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)) == (8, 16)
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0x40
    assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == 0x40
    assert nvml.nvmlDeviceGetSupportedClocksEventReasons(handle) == nvml.nvmlClocksThrottleReasonAll


def test_what_a_gpu_lacks_is_not_supported(make_fake_nvml: MakeFakeNvml) -> None:
    with initialised(make_fake_nvml([replace(volta(), ecc=None)])) as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        for lacking in (
            nvml.nvmlDeviceGetEccMode,
            nvml.nvmlDeviceGetNumaNodeId,
            nvml.nvmlDeviceGetMigMode,
            nvml.nvmlDeviceGetBrand,
            nvml.nvmlDeviceGetBoardId,
            nvml.nvmlDeviceGetSerial,
            nvml.nvmlDeviceResetMemoryLockedClocks,
        ):
            with pytest.raises(nvml.NVMLError_NotSupported):
                lacking(handle)


def test_a_function_the_fake_does_not_have_is_not_found(nvml: Any, handle: Any) -> None:
    with pytest.raises(nvml.NVMLError_FunctionNotFound):
        nvml.nvmlDeviceGetFanSpeed(handle)


@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "NO_PERMISSION", "GPU_IS_LOST", "DRIVER_NOT_LOADED", "UNKNOWN"])
def test_any_function_can_be_made_to_fail_on_one_gpu(make_fake_nvml: MakeFakeNvml, code: str) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    with initialised(fake) as nvml:
        number = getattr(nvml, f"NVML_ERROR_{code}")
        fake.fail("nvmlDeviceGetPowerUsage", number, gpu=1)
        whole, broken = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        assert nvml.nvmlDeviceGetPowerUsage(whole) == 78_000
        with pytest.raises(nvml.nvmlExceptionClass(number)):
            nvml.nvmlDeviceGetPowerUsage(broken)
        fake.heal("nvmlDeviceGetPowerUsage")
        assert nvml.nvmlDeviceGetPowerUsage(broken) == 78_000


def test_a_failure_lasts_as_long_as_was_asked(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses", nvml.NVML_ERROR_UNKNOWN, from_s=1.0, until_s=2.0)
    answers = []
    for second in range(3):
        fake_nvml.set_time(second)
        try:
            answers.append(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except nvml.NVMLError_Unknown:
            answers.append("unknown")
    assert answers == [[], "unknown", []]


def test_a_misspelt_function_is_refused(fake_nvml: FakeNvml) -> None:
    with pytest.raises(ValueError, match="no function nvmlDeviceGetPowerUse"):
        fake_nvml.fail("nvmlDeviceGetPowerUse", 3)


def test_a_driver_that_is_not_loaded_fails_at_initialisation(fake_nvml: FakeNvml, fake_pynvml: Any) -> None:
    fake_nvml.fail("nvmlInit", fake_pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(fake_pynvml.NVMLError_DriverNotLoaded):
        fake_pynvml.nvmlInit()
    fake_nvml.heal()
    fake_pynvml.nvmlInit()


def test_a_gpu_falls_off_the_bus_at_its_time(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    fake.lose(1, at_s=5.0)
    with initialised(fake) as nvml:
        kept, lost = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        fake.set_time(4.999)
        assert nvml.nvmlDeviceGetPowerUsage(lost) == 78_000
        fake.set_time(5.0)
        for call in (nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetMemoryInfo):
            with pytest.raises(nvml.NVMLError_GpuIsLost):
                call(lost)
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            nvml.nvmlDeviceGetHandleByIndex(1)
        assert nvml.nvmlDeviceGetPowerUsage(kept) == 78_000
        fake.find(1)
        assert nvml.nvmlDeviceGetPowerUsage(lost) == 78_000


def test_a_power_limit_can_be_set_within_its_constraints(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    assert nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [200_000, 700_000]
    nvml.nvmlDeviceSetPowerManagementLimit(handle, 350_000)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceSetPowerManagementLimit(handle, 199_999)
    assert nvml.nvmlDeviceGetPowerManagementLimit(handle) == 350_000
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 350_000
    assert nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) == 700_000
    tried = [(call.function, call.gpu, call.arguments[0], call.code) for call in fake_nvml.setting_calls()]
    name = "nvmlDeviceSetPowerManagementLimit"
    assert tried == [(name, 0, 350_000, 0), (name, 0, 199_999, nvml.NVML_ERROR_INVALID_ARGUMENT)]


def test_without_privilege_every_setting_is_refused_and_logged(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    fake_nvml.privileged = False
    settings: list[tuple[Any, tuple[int, ...]]] = [
        (nvml.nvmlDeviceSetPowerManagementLimit, (300_000,)),
        (nvml.nvmlDeviceSetGpuLockedClocks, (900, 900)),
        (nvml.nvmlDeviceResetGpuLockedClocks, ()),
        (nvml.nvmlDeviceSetMemoryLockedClocks, (3201, 3201)),
        (nvml.nvmlDeviceResetMemoryLockedClocks, ()),
        (nvml.nvmlDeviceSetApplicationsClocks, (3201, 1980)),
        (nvml.nvmlDeviceSetPersistenceMode, (0,)),
    ]
    for setting, arguments in settings:
        with pytest.raises(nvml.NVMLError_NoPermission):
            setting(handle, *arguments)
    assert [call.code for call in fake_nvml.setting_calls()] == [nvml.NVML_ERROR_NO_PERMISSION] * len(settings)
    assert nvml.nvmlDeviceGetPowerManagementLimit(handle) == 700_000


def test_settings_are_read_back(nvml: Any, handle: Any) -> None:
    nvml.nvmlDeviceSetPersistenceMode(handle, 0)
    nvml.nvmlDeviceSetMemoryLockedClocks(handle, 2619, 2619)
    nvml.nvmlDeviceSetApplicationsClocks(handle, 3201, 1500)
    assert nvml.nvmlDeviceGetPersistenceMode(handle) == 0
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) == 2619
    assert nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM) == 1500
    nvml.nvmlDeviceResetMemoryLockedClocks(handle)
    nvml.nvmlDeviceResetApplicationsClocks(handle)
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) == 3201
    assert nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM) == 1980


def test_the_supported_clocks_reach_from_highest_to_idle(nvml: Any, handle: Any) -> None:
    assert nvml.nvmlDeviceGetSupportedMemoryClocks(handle) == [3201]
    clocks = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, 3201)
    assert clocks == list(range(1980, 344, -15))


def test_fields_answer_one_by_one(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    fake_nvml.set_field(0, 197, 1000.0, rate_per_s=500.0)
    fake_nvml.set_field(0, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 7.0)
    fake_nvml.set_field(0, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 9.0, scope=3)
    fake_nvml.fail_field(0, 186, nvml.NVML_ERROR_NO_PERMISSION)
    fake_nvml.advance(2.0)
    sent, link_0, link_3, instant, unknown = nvml.nvmlDeviceGetFieldValues(handle, [197, (138, 0), (138, 3), 186, 1])
    assert (sent.nvmlReturn, sent.value.ullVal) == (0, 2000)
    assert (link_0.value.ullVal, link_3.value.ullVal) == (7, 9)
    assert instant.nvmlReturn == nvml.NVML_ERROR_NO_PERMISSION
    assert unknown.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED
    fake_nvml.clear_field(0, 186)
    assert nvml.nvmlDeviceGetFieldValues(handle, [186])[0].value.uiVal == 78_000


def test_a_gpu_is_cut_into_mig_instances(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 0]
    fake_nvml.set_mig(0, [MigInstance(16 * GIB), MigInstance(32 * GIB, uuid="MIG-of-its-own", slices=2)])
    fake_nvml.set_processes(0, [GpuProcess(50, GIB, mig=0), GpuProcess(51, 2 * GIB, mig=1)])
    assert nvml.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
    second = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 1)
    assert nvml.nvmlDeviceGetUUID(second) == "MIG-of-its-own"
    assert nvml.nvmlDeviceGetName(second) == "NVIDIA H200 MIG 2g.32gb"
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID("MIG-of-its-own")) == "MIG-of-its-own"
    memory = nvml.nvmlDeviceGetMemoryInfo(second)
    assert (memory.total, memory.used) == (32 * GIB, 2 * GIB)
    assert [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(second)] == [51]
    assert len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)) == 2
    assert nvml.nvmlDeviceGetAttributes(second).gpuInstanceSliceCount == 2
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(second)
    assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(handle)


def test_a_mig_instance_has_no_power_and_its_gpu_no_utilisation(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    fake_nvml.set_mig(0, [MigInstance()])
    instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    assert nvml.nvmlDeviceIsMigDeviceHandle(instance).value == 1
    for call, device in ((nvml.nvmlDeviceGetPowerUsage, instance), (nvml.nvmlDeviceGetUtilizationRates, handle)):
        with pytest.raises(nvml.NVMLError_NotSupported):
            call(device)
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 1)


def test_links_lead_to_their_remote_ends(make_fake_nvml: MakeFakeNvml) -> None:
    links = (NvLink("00000000:2B:00.0"), NvLink("00000000:DA:00.0", to_switch=True), NvLink("", active=False))
    with initialised(make_fake_nvml([replace(hopper(), links=links), hopper()])) as nvml:
        linked, alone = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
        assert [nvml.nvmlDeviceGetNvLinkState(linked, link) for link in range(3)] == [1, 1, 0]
        assert nvml.nvmlDeviceGetNvLinkRemotePciInfo(linked, 0).busId == "00000000:2B:00.0"
        assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(linked, 1) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        assert nvml.nvmlDeviceGetNvLinkCapability(linked, 0, nvml.NVML_NVLINK_CAP_P2P_SUPPORTED) == 1
        assert nvml.nvmlDeviceGetNvLinkCapability(linked, 0, nvml.NVML_NVLINK_CAP_SLI_BRIDGE) == 0
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetNvLinkState(linked, 3)
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetNvLinkState(alone, 0)


def test_gpus_lie_to_each_other_and_to_cores_as_set(make_fake_nvml: MakeFakeNvml) -> None:
    far = replace(hopper(), host_numa_node=1, cpus=(64, 65), numa_node=2)
    fake = make_fake_nvml([hopper(), hopper(), far])
    with initialised(fake) as nvml:
        first, second, third = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(3))
        fake.set_topology(0, 1, nvml.NVML_TOPOLOGY_SINGLE)
        assert nvml.nvmlDeviceGetTopologyCommonAncestor(second, first) == nvml.NVML_TOPOLOGY_SINGLE
        assert nvml.nvmlDeviceGetTopologyCommonAncestor(first, third) == nvml.NVML_TOPOLOGY_SYSTEM
        assert len(nvml.nvmlDeviceGetTopologyNearestGpus(first, nvml.NVML_TOPOLOGY_SINGLE)) == 1
        assert list(nvml.nvmlDeviceGetCpuAffinity(first, 2)) == [0b11, 0]
        assert list(nvml.nvmlDeviceGetCpuAffinity(third, 2)) == [0, 0b11]
        assert nvml.nvmlDeviceGetNumaNodeId(third) == 2
        assert list(nvml.nvmlDeviceGetMemoryAffinity(third, 1, nvml.NVML_AFFINITY_SCOPE_NODE)) == [0b10]


def test_calls_are_counted(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert fake_nvml.calls("nvmlDeviceGetComputeRunningProcesses") == 2
    assert fake_nvml.calls("nvmlDeviceGetPcieThroughput") == 0


def test_a_blocking_pcie_read_lets_virtual_time_pass(fake_nvml: FakeNvml, nvml: Any, handle: Any) -> None:
    fake_nvml.gpu(0).pcie_block_ns = 21_000_000
    nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
    assert fake_nvml.now_s() == 0.021
