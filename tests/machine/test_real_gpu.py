"""What only a real card can answer. Nothing on it is ever set: setters meet the fake in ``test_settings.py``."""

from __future__ import annotations

import os
import time

import pytest

from assay.core.errors import MachineCannot
from assay.machine import nvidia
from assay.machine.detect import detect
from assay.machine.devices import AllGpusHidden, choose_devices, cuda_order
from assay.machine.interference import find_outside_activity, take_snapshot
from assay.machine.model import Machine, describe_differences

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def here() -> Machine:
    seen = detect()
    if not seen.gpus or seen.has_fake_driver:
        pytest.skip(f"no real GPU: {seen.gpu_note}")
    return seen


def test_every_gpu_says_who_it_is(here: Machine) -> None:
    for gpu in here.gpus:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.pci_bus_id is not None
        assert gpu.compute_capability is not None
        assert gpu.memory_mib is not None
        assert gpu.sm_max_mhz is not None
        assert gpu.state is not None
        assert gpu.node is None or gpu.node in {node.id for node in here.nodes}
    assert here.driver
    assert here.cuda_driver


def test_a_real_machine_is_known_again_while_its_clocks_move(here: Machine) -> None:
    time.sleep(0.5)
    assert describe_differences(here, detect()) == []


def test_a_real_gpu_is_touched(here: Machine) -> None:
    for gpu in here.gpus:
        nvidia.smoke_test(gpu.uuid)
    with pytest.raises(MachineCannot):
        nvidia.smoke_test("GPU-00000000-0000-0000-0000-000000000000")


def test_cuda_counts_the_gpus_as_foretold(here: Machine) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA")
    try:
        order = cuda_order(here.gpus, os.environ)
    except AllGpusHidden as hidden:
        pytest.skip(str(hidden))
    assert torch.cuda.device_count() == len(order.devices)
    for device in order.devices:
        told = str(torch.cuda.get_device_properties(device.cuda_index).uuid)
        assert told in device.uuid


def test_this_process_on_a_real_gpu_is_no_stranger(here: Machine) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA")
    before = take_snapshot()
    torch.zeros(2**20, device="cuda")
    torch.cuda.synchronize()
    after = take_snapshot()
    grown = {p.pid for p in after.gpu_processes} - {p.pid for p in before.gpu_processes}
    print("on the GPU before", before.gpu_processes, "after", after.gpu_processes, "comparable", after.pids_comparable)
    if after.pids_comparable and grown:
        assert os.getpid() in grown
        assert os.getpid() not in {p.pid for p in find_outside_activity(before, after, {os.getpid()}).gpu_processes}


def test_all_gpus_are_chosen_when_nothing_is_said(here: Machine) -> None:
    assert all(device.startswith("cuda:") for device in choose_devices(here, environment={}))
