"""``assay doctor`` against fakes of 0, 1, 4 and 8 GPUs, and as a command on this machine."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest
from ruamel.yaml import YAML

from assay.cli.doctor import run_doctor
from assay.core.errors import MachineCannot
from assay.machine import doctor
from assay.machine.detect import detect
from assay.machine.nvidia import smoke_test
from assay.worker import probes as software
from tests.fakes import trees
from tests.fakes.fake_nvml import attached, hopper
from tests.machines import machine as built

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml
    from tests.fakes.trees import Tree
    from tests.running import Assay


@pytest.mark.full
def test_the_doctor_speaks_json_about_this_machine(assay: Assay) -> None:
    ran = assay("doctor", "--json")
    assert ran.code == 0, ran.err
    told = ran.data
    topics = {finding["facts"]["topic"] for finding in told["findings"]}
    assert {"isolation", "noise", "gpus", "software", "tools"} <= topics
    assert told["machine"]["hostname"] is None
    assert told["inference_yaml"] is None
    for finding in told["findings"]:
        assert finding["verdict"] in {"yes", "no", "unsure"}


@pytest.mark.full
def test_the_doctor_speaks_to_people_in_eighty_columns(assay: Assay) -> None:
    ran = assay("doctor")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("assay doctor\nIsolation up to level '")
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_gpu_that_is_not_there_ends_it_with_3(assay: Assay) -> None:
    ran = assay("doctor", "--gpus", "0,1")
    assert ran.code == 3
    assert "There is no GPU 0 here" in ran.err


asked_once = cache(software.query_software)
"""What PyTorch says of itself here, which is the same beside every fake; the commands above ask it each time."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("describe", "gpus", "nodes"),
    [
        (trees.one_socket, 0, 1),
        (trees.gpu_without_a_node, 1, 2),
        (trees.four_gpus_crossed, 4, 2),
        (trees.eight_gpus_on_two_nodes, 8, 2),
    ],
)
def test_machines_of_several_gpus_and_nodes_are_described_and_touched(
    describe: Callable[[Path], Tree],
    gpus: int,
    nodes: int,
    tmp_path: Path,
    make_fake_nvml: MakeFakeNvml,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(software, "query_software", asked_once)
    tree = describe(tmp_path / "root")
    numbers = tuple(map(str, range(gpus)))
    with attached(make_fake_nvml(tree.gpus)):
        machine = detect(tree.root)
        assert run_doctor(machine, numbers, smoke_test, as_json=True) == 0
        told = json.loads(capsys.readouterr().out)
        assert run_doctor(machine, numbers, smoke_test, as_json=False) == 0
    page = capsys.readouterr().out
    assert len(told["machine"]["gpus"]) == gpus
    assert len(told["machine"]["nodes"]) == nodes
    assert ("NVIDIA H" in page) == (gpus > 0)
    assert "fake" in page
    if gpus:
        config = YAML(typ="safe").load(told["inference_yaml"])["backend"]
        assert config["device_ids"] == list(range(gpus))
        assert config["type"] == "pytorch"
        limits = [int(limit.removesuffix("MiB")) for limit in config["max_memory"].values()]
        memories = [gpu["memory_mib"] for gpu in told["machine"]["gpus"]]
        assert limits == [int(0.9 * memory) for memory in memories]


def test_a_gpu_that_is_lost_when_touched_ends_it_with_3(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    with attached(fake):
        machine = detect()
        fake.lose(1)
        with pytest.raises(MachineCannot, match="lost"):
            run_doctor(machine, ("0", "1"), smoke_test, as_json=True)


@pytest.mark.full
def test_how_a_gpu_is_touched_is_handed_in(
    make_fake_nvml: MakeFakeNvml, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software, "query_software", asked_once)
    with attached(make_fake_nvml([hopper(), hopper()])):
        machine = detect()
        seen: list[str] = []
        run_doctor(machine, ("1",), seen.append, as_json=True)
    assert seen == [machine.gpus[1].uuid]
    assert "device_ids: [1]" in json.loads(capsys.readouterr().out)["inference_yaml"]


def test_what_is_wrong_comes_with_its_fix() -> None:
    ok = {f.claim: f for f in doctor.check_machine(built(), has_gpu_hardware=False)}
    assert all(f.facts["fix"] is None for f in ok.values() if f.verdict == "yes")
    plugged = doctor.check_machine(built(), has_gpu_hardware=True)[0]
    assert plugged.verdict == "no"
    assert "install its driver" in str(plugged.facts["fix"])


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ("ID=debian\n", "apt-get install numactl"),
        ("ID=ubuntu\nID_LIKE=debian\n", "apt-get install numactl"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install numactl"),
        ("ID=arch\n", "pacman -S numactl"),
        ("ID=alpine\n", "apk add numactl"),
        ("ID=beos\n", "install numactl with your package manager"),
    ],
)
def test_missing_tools_come_with_the_command_of_the_distribution(release: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(release)
    found = doctor.check_tools(tmp_path, has_gpu_hardware=True, find=lambda name: None)
    fixes = {f.claim.split()[0]: str(f.facts["fix"]) for f in found}
    assert fixes["numactl"].removeprefix("sudo ") == command
    assert {"nvidia-smi", "nvcc", "ncu", "numactl", "taskset"} == set(fixes)
    without = doctor.check_tools(tmp_path, has_gpu_hardware=False, find=lambda name: None)
    assert {f.claim.split()[0] for f in without} == {"numactl", "taskset"}


def test_a_gpu_plugged_in_is_noticed_without_a_driver(tmp_path: Path) -> None:
    assert not doctor.has_nvidia_hardware(tmp_path)
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert doctor.has_nvidia_hardware(tmp_path)


def test_missing_permissions_come_with_the_way_to_get_them(tmp_path: Path) -> None:
    with_gpu = built(gpus=(0,))
    parameters = tmp_path / doctor.DRIVER_PARAMETERS
    parameters.parent.mkdir(parents=True)
    parameters.write_text("RmProfilingAdminOnly: 1\n")
    rapl, limits, counters = doctor.check_permissions(with_gpu, tmp_path, user_id=1000)
    assert (rapl.verdict, rapl.reason) == ("unsure", "this machine has none")
    assert (limits.verdict, counters.verdict) == ("no", "no")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in str(counters.facts["fix"])
    assert [f.verdict for f in doctor.check_permissions(with_gpu, tmp_path, user_id=0)] == ["unsure", "yes", "yes"]
    energy = tmp_path / doctor.RAPL_PATH
    energy.parent.mkdir(parents=True)
    energy.write_text("12345\n")
    assert [f.verdict for f in doctor.check_permissions(built(), tmp_path, user_id=1000)] == ["yes"]
