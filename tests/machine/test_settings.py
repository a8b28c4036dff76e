"""Power limits and locked clocks: set under a lease, and gone again however the holder ends."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot, StopRequested
from assay.core.guardian import Guardian, GuardianNotStarted
from assay.core.leases import LeaseNotReleased
from assay.core.processes import stop_on_signals
from assay.machine import nvidia
from tests.fakes.fake_nvml import MigInstance, attached, hopper
from tests.guardians import guardian_of, guardians_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Eventually, StartPython
    from tests.fakes.fake_nvml import FakeNvml
    from tests.fakes.plugin import MakeFakeNvml

UUID = "GPU-fa4e0000-0000-4000-8000-000000000000"
UNKNOWN = 999

HOLD = """
import sys, time
from assay.core.guardian import Guardian
from assay.machine import nvidia
with Guardian():
    nvidia.set_power_limit(sys.argv[1], 300.0)
    nvidia.lock_sm_clocks(sys.argv[1], 1000, 1200)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module", autouse=True)
def one_guardian() -> Iterator[None]:
    """Share one guardian: only those of other processes are killed."""
    with Guardian():
        yield


@pytest.fixture
def fake(fake_nvml: FakeNvml, fake_pynvml: object) -> FakeNvml:
    """One Hopper behind pynvml."""
    return fake_nvml


def limit_w(fake: FakeNvml) -> float:
    return fake.gpu(0).power_limit_mw / 1e3


def lock_mhz(fake: FakeNvml) -> tuple[int, int]:
    return fake.gpu(0).sm_lock_min_mhz, fake.gpu(0).sm_lock_max_mhz


def kept(home: Path) -> list[Path]:
    return sorted((home / "leases").glob("*.json")) if (home / "leases").is_dir() else []


def test_a_power_limit_holds_until_its_lease_is_released(fake: FakeNvml, assay_home: Path) -> None:
    lease = nvidia.set_power_limit(UUID, 450.5)
    assert limit_w(fake) == 450.5
    assert lease.args["watts"] == 700.0
    assert kept(assay_home) == [lease.path]
    leases.release_lease(lease)
    assert limit_w(fake) == 700.0
    assert kept(assay_home) == []


def test_limits_set_one_upon_the_other_are_undone_one_after_the_other(fake: FakeNvml) -> None:
    outer = nvidia.set_power_limit(UUID, 500.0)
    inner = nvidia.set_power_limit(UUID, 300.0)
    leases.release_lease(inner)
    assert limit_w(fake) == 500.0
    leases.release_lease(outer)
    assert limit_w(fake) == 700.0


def of_another(lease: leases.Lease, pid: int) -> leases.Lease:
    """Have a lease belong to another process, as if that had taken it."""
    other = lease.model_copy(update={"owner": replace(lease.owner, pid=pid, start_ticks=1)})
    lease.path.write_text(other.model_dump_json())
    return other


def test_a_limit_that_another_run_holds_is_left_to_it(
    fake: FakeNvml, assay_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_another(nvidia.set_power_limit(UUID, 500.0), 4711)
    monkeypatch.setattr("assay.core.processes.is_alive", lambda owner: True)
    with pytest.raises(MachineCannot, match="held by another run, process 4711"):
        nvidia.set_power_limit(UUID, 300.0)
    assert limit_w(fake) == 500.0
    assert len(kept(assay_home)) == 1


def test_what_a_dead_run_left_is_undone_before_a_limit_is_set_anew(fake: FakeNvml, assay_home: Path) -> None:
    of_another(nvidia.set_power_limit(UUID, 250.0), 2**22 - 1)
    lease = nvidia.set_power_limit(UUID, 400.0)
    assert lease.args["watts"] == 700.0
    leases.release_lease(lease)
    assert limit_w(fake) == 700.0
    assert kept(assay_home) == []


def test_clocks_kept_for_one_run_are_not_locked_by_another(
    fake: FakeNvml, assay_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = nvidia.claim_sm_clocks(UUID)
    leases.release_lease(nvidia.lock_sm_clocks(UUID, 1200, 1200))
    of_another(claim, 4711)
    monkeypatch.setattr("assay.core.processes.is_alive", lambda owner: True)
    with pytest.raises(MachineCannot, match="held by another run"):
        nvidia.lock_sm_clocks(UUID, 1200, 1200)
    assert lock_mhz(fake) == (0, 0)


def test_locked_clocks_hold_until_their_lease_is_released(fake: FakeNvml, assay_home: Path) -> None:
    lease = nvidia.lock_sm_clocks(UUID, 1200, 1200)
    assert lock_mhz(fake) == (1200, 1200)
    leases.release_lease(lease)
    assert lock_mhz(fake) == (0, 0)
    assert kept(assay_home) == []


def test_the_lease_is_written_before_the_limit_is_set(
    fake: FakeNvml, assay_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    seen: list[int] = []
    really = pynvml.nvmlDeviceSetPowerManagementLimit

    def watch(*arguments: object) -> None:
        seen.append(len(kept(assay_home)))
        really(*arguments)

    monkeypatch.setattr(pynvml, "nvmlDeviceSetPowerManagementLimit", watch)
    nvidia.set_power_limit(UUID, 300.0)
    assert seen == [1]


@pytest.mark.parametrize("watts", [199.9, 700.1, 0.0, -5.0, math.nan, math.inf])
def test_a_limit_out_of_range_is_bad_input_that_names_the_range(watts: float, fake: FakeNvml, assay_home: Path) -> None:
    with pytest.raises(BadInput, match=f"GPU {UUID} takes 200 to 700 W"):
        nvidia.set_power_limit(UUID, watts)
    assert kept(assay_home) == []
    assert fake.setting_calls() == []


@pytest.mark.parametrize(("low", "high"), [(100, 1200), (1200, 1000), (1000, 2500), (-1, 1000), (0, 0)])
def test_clocks_out_of_range_are_bad_input_that_names_the_range(
    low: int, high: int, fake: FakeNvml, assay_home: Path
) -> None:
    with pytest.raises(BadInput, match="from 345 to 1980 MHz"):
        nvidia.lock_sm_clocks(UUID, low, high)
    assert kept(assay_home) == []
    assert fake.setting_calls() == []


def test_where_clocks_are_not_listed_only_the_highest_is_checked(fake: FakeNvml) -> None:
    fake.fail("nvmlDeviceGetSupportedMemoryClocks", 3)
    assert nvidia.lock_sm_clocks(UUID, 100, 300)
    with pytest.raises(BadInput, match="from 0 to 1980 MHz"):
        nvidia.lock_sm_clocks(UUID, 100, 2000)


def test_without_rights_nothing_is_set_and_no_lease_stays(fake: FakeNvml, assay_home: Path) -> None:
    fake.privileged = False
    with pytest.raises(MachineCannot, match=r"power limit of GPU .* needs administrator rights .*root") as caught:
        nvidia.set_power_limit(UUID, 300.0)
    with pytest.raises(MachineCannot, match=r"SM clock of GPU .* needs administrator rights"):
        nvidia.lock_sm_clocks(UUID, 1000, 1200)
    assert caught.value.exit_code == 3
    assert (limit_w(fake), lock_mhz(fake)) == (700.0, (0, 0))
    assert kept(assay_home) == []


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceSetPowerManagementLimit"],
)
def test_a_gpu_that_offers_no_power_limit_is_refused(function: str, fake: FakeNvml, assay_home: Path) -> None:
    fake.fail(function, 3)
    with pytest.raises(MachineCannot, match=f"GPU {UUID} (offers no power limits|does not let)"):
        nvidia.set_power_limit(UUID, 300.0)
    assert kept(assay_home) == []


def test_an_instance_has_no_power_limit_of_its_own(fake: FakeNvml) -> None:
    fake.set_mig(0, [MigInstance(uuid="MIG-a")])
    with pytest.raises(MachineCannot, match="GPU MIG-a offers no power limits"):
        nvidia.set_power_limit("MIG-a", 300.0)


def test_a_failure_whose_effect_is_not_known_is_undone_at_once(fake: FakeNvml, assay_home: Path) -> None:
    fake.fail("nvmlDeviceSetGpuLockedClocks", UNKNOWN)
    with pytest.raises(MachineCannot, match=r"did not set the SM clock .* Unknown Error"):
        nvidia.lock_sm_clocks(UUID, 1000, 1200)
    assert [call.function for call in fake.setting_calls()][-1] == "nvmlDeviceResetGpuLockedClocks"
    assert kept(assay_home) == []


def test_a_limit_that_the_driver_takes_and_does_not_hold_is_not_called_set(
    fake: FakeNvml, assay_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlDeviceSetPowerManagementLimit", lambda *_: None)
    with pytest.raises(MachineCannot, match="took a power limit of 300 W without an error, but holds 700 W"):
        nvidia.set_power_limit(UUID, 300.0)
    assert kept(assay_home) == []


def test_a_gpu_lost_while_a_limit_holds_keeps_the_lease_until_it_is_back(fake: FakeNvml, assay_home: Path) -> None:
    lease = nvidia.set_power_limit(UUID, 300.0)
    fake.lose(0)
    with pytest.raises(LeaseNotReleased, match="GPU is lost"):
        leases.release_lease(lease)
    assert kept(assay_home) == [lease.path]
    fake.find(0)
    leases.release_lease(lease)
    assert limit_w(fake) == 700.0
    assert kept(assay_home) == []


def test_undoing_twice_does_no_harm(fake: FakeNvml) -> None:
    for _ in range(2):
        nvidia.restore_power_limit(UUID, 700.0)
        nvidia.unlock_sm_clocks(UUID)
    assert limit_w(fake) == 700.0
    assert [call.function for call in fake.setting_calls()] == ["nvmlDeviceResetGpuLockedClocks"] * 2


def test_after_a_restart_of_the_machine_there_is_nothing_left_to_undo(fake: FakeNvml) -> None:
    fake.gpu(0).power_limit_mw = 400_000
    nvidia.restore_power_limit(UUID, 700.0, boot="another-boot")
    nvidia.unlock_sm_clocks(UUID, boot="another-boot")
    assert fake.setting_calls() == []


def test_a_holder_killed_outright_leaves_the_gpu_as_it_was(
    make_fake_nvml: MakeFakeNvml, start_python: StartPython, eventually: Eventually, assay_home: Path
) -> None:
    fake = make_fake_nvml([hopper()])
    holder = start_python(HOLD, UUID, env=fake.env())
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert (limit_w(fake), lock_mhz(fake)) == (300.0, (1000, 1200))
    os.kill(holder.pid, signal.SIGKILL)
    eventually(lambda: limit_w(fake) == 700.0 and lock_mhz(fake) == (0, 0))
    eventually(lambda: kept(assay_home) == [])


def test_a_guardian_killed_while_a_limit_holds_is_replaced_and_restores_it_after_a_kill(
    make_fake_nvml: MakeFakeNvml, start_python: StartPython, eventually: Eventually, assay_home: Path
) -> None:
    fake = make_fake_nvml([hopper()])
    holder = start_python(HOLD, UUID, env=fake.env())
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    guardian = guardian_of(holder.pid)
    os.kill(guardian, signal.SIGKILL)
    eventually(lambda: guardians_of(holder.pid) not in ([], [guardian]))
    assert (limit_w(fake), lock_mhz(fake)) == (300.0, (1000, 1200))
    holder.kill()
    eventually(lambda: limit_w(fake) == 700.0 and lock_mhz(fake) == (0, 0))
    eventually(lambda: kept(assay_home) == [])


def test_a_guardian_killed_between_the_check_and_the_change_is_replaced(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    guardian = guardian_of(os.getpid())
    write = nvidia._write_power_limit

    def killed_before(*arguments: Any) -> None:
        os.kill(guardian, signal.SIGKILL)
        write(*arguments)

    monkeypatch.setattr(nvidia, "_write_power_limit", killed_before)
    lease = nvidia.set_power_limit(UUID, 300.0)
    eventually(lambda: guardians_of(os.getpid()) not in ([], [guardian]))
    monkeypatch.undo()
    assert limit_w(fake) == 300.0
    leases.release_lease(lease)


def test_a_limit_is_restored_and_the_holder_stopped_where_no_guardian_can_be_had(
    fake: FakeNvml, assay_home: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    def refuse(stdin: int) -> None:
        raise GuardianNotStarted("there are too many processes")

    seen: list[float] = []

    def hold() -> None:
        with stop_on_signals():
            lease = nvidia.set_power_limit(UUID, 300.0)
            try:
                monkeypatch.setattr("assay.core.guardian._spawn", refuse)
                os.kill(guardian_of(os.getpid()), signal.SIGKILL)
                time.sleep(60)
            finally:
                seen.append(limit_w(fake))
                leases.release_lease(lease)

    with pytest.raises(StopRequested, match="no other could be started: there are too many processes"):
        hold()
    assert (seen, limit_w(fake)) == ([300.0], 700.0)
    assert kept(assay_home) == []
    monkeypatch.undo()
    Guardian.require()


def test_reaping_restores_what_a_holder_that_was_killed_with_its_guardian_left(
    make_fake_nvml: MakeFakeNvml, start_python: StartPython, eventually: Eventually, assay_home: Path
) -> None:
    fake = make_fake_nvml([hopper()])
    holder = start_python(HOLD, UUID, env=fake.env())
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    guardian = guardian_of(holder.pid)
    holder.send_signal(signal.SIGSTOP)  # so that both are killed before either can answer
    os.kill(guardian, signal.SIGKILL)
    holder.kill()
    holder.wait()
    with attached(fake):
        left = {lease.kind for lease in leases.find_orphaned_leases()}
        outcomes = {report.outcome for report in leases.reap_leases()}
    assert left == {"power limit", "locked clock"}
    assert outcomes == {"released"}
    assert leases.find_orphaned_leases() == []
    assert (limit_w(fake), lock_mhz(fake)) == (700.0, (0, 0))
    assert kept(assay_home) == []
