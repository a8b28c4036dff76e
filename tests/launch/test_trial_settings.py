"""Settings of a trial: made on the GPUs of its timed roles, and gone when it ends, however it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core import leases
from assay.core.guardian import Guardian, GuardianLost
from assay.core.leases import LeaseNotReleased
from assay.core.values import Adaptive, Role, Subject, Trial
from assay.launch.conditions import GpuSettings, SettingRefused
from assay.launch.trial import Launcher
from assay.machine.detect import detect
from tests.fakes.fake_nvml import MigInstance, attached, hopper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from assay.core.results import Note
    from assay.core.values import Scalar
    from assay.machine.model import Machine
    from tests.fakes.fake_nvml import FakeNvml
    from tests.fakes.plugin import MakeFakeNvml

SUBJECT = Subject(workload="softmax", impl="numpy")


@pytest.fixture(scope="module", autouse=True)
def one_guardian() -> Iterator[None]:
    """Share one guardian: nothing here kills it."""
    with Guardian():
        yield


@pytest.fixture
def fake(make_fake_nvml: MakeFakeNvml) -> Iterator[FakeNvml]:
    """Three Hoppers behind pynvml, the last one cut into parts."""
    found = make_fake_nvml([hopper(), hopper(), hopper()])
    found.set_mig(2, [MigInstance()])
    with attached(found):
        yield found


@pytest.fixture
def machine(fake: FakeNvml) -> Machine:
    return detect()


def trial(*devices: str, **settings: Scalar) -> Trial:
    roles = [Role(name=device, subjects=(SUBJECT,), devices=(device,)) for device in devices]
    noise = Role(name="noise", subjects=(SUBJECT,), devices=("cuda:1",), duty="load")
    return Trial(block="b", roles=(*roles, noise), mode=Adaptive(duration_s=1), settings=settings, schedule="together")


def is_set(fake: FakeNvml) -> list[tuple[float, int, int]]:
    gpus = [fake.gpu(index) for index in range(2)]
    return [(gpu.power_limit_mw / 1e3, gpu.sm_lock_min_mhz, gpu.sm_lock_max_mhz) for gpu in gpus]


def kept(home: Path) -> int:
    return len(list((home / "leases").glob("*.json"))) if (home / "leases").is_dir() else 0


AS_FOUND = [(700.0, 0, 0), (700.0, 0, 0)]


def test_the_gpus_of_timed_roles_are_set_and_those_of_loads_left(fake: FakeNvml, machine: Machine) -> None:
    notes: list[Note] = []
    with GpuSettings().held(trial("cuda:0", power_limit_w=300, sm_mhz=1200, phase="capped"), machine, notes):
        assert is_set(fake) == [(300.0, 1200, 1200), (700.0, 0, 0)]
    assert is_set(fake) == AS_FOUND
    assert [(note.code, note.params) for note in notes] == [
        ("power_limit_set", {"set_w": 300.0, "read_w": 300.0}),
        ("sm_clock_locked", {"set_mhz": 1200, "read_mhz": 1200}),
    ]


def test_settings_of_other_meaning_touch_no_gpu(fake: FakeNvml, machine: Machine) -> None:
    with GpuSettings().held(trial("cuda:0", phase="alone", power_limit_w=None), machine, []):
        assert fake.setting_calls() == []


@pytest.mark.parametrize(
    ("devices", "settings", "why"),
    [
        (("cpu:0",), {"power_limit_w": 300}, "cpu:0 is no GPU and cannot be given a power limit"),
        (("cuda:2/0",), {"sm_mhz": 900}, "cuda:2/0 is a part of a GPU, and a locked SM clock would hold"),
        (("cuda:7",), {"power_limit_w": 300}, "cuda:7 is not here"),
        (("cuda:0", "cuda:1"), {"power_limit_w": 300, "sm_mhz": 9000}, "SM clocks from 9000 to 9000 MHz make no range"),
        (("cuda:0",), {"power_limit_w": 100}, "A power limit of 100 W is out of range.* 200 to 700 W"),
        (("cuda:0",), {"power_limit_w": "much"}, "power_limit_w is a positive number, not 'much'"),
        (("cuda:0",), {"power_limit_w": True}, "power_limit_w is a positive number, not True"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_reason_and_leaves_nothing_changed(
    devices: tuple[str, ...],
    settings: dict[str, Scalar],
    why: str,
    fake: FakeNvml,
    machine: Machine,
    assay_home: Path,
) -> None:
    with pytest.raises(SettingRefused, match=why), GpuSettings().held(trial(*devices, **settings), machine, []):
        pytest.fail("it was measured")
    assert is_set(fake) == AS_FOUND
    assert kept(assay_home) == 0


def test_a_trial_that_may_not_set_is_refused_before_anything_is_started(
    fake: FakeNvml, machine: Machine, assay_home: Path
) -> None:
    fake.privileged = False

    def start(errand: object) -> None:
        pytest.fail("a worker was started")

    outcome = Launcher(machine, start).measure(trial("cuda:0", power_limit_w=300))  # type: ignore[arg-type]
    assert outcome.status == "refused"
    assert "needs administrator rights" in (outcome.reason or "")
    assert kept(assay_home) == 0


def fall_over() -> None:
    raise ZeroDivisionError


def test_an_error_of_the_trial_undoes_every_setting_and_is_what_is_seen(fake: FakeNvml, machine: Machine) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        GpuSettings().held(trial("cuda:0", "cuda:1", power_limit_w=300, sm_mhz=1200), machine, []),
    ):
        fall_over()
    assert is_set(fake) == AS_FOUND
    undone = [(call.function, call.gpu) for call in fake.setting_calls()][4:]
    limit, lock = "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceResetGpuLockedClocks"
    assert undone == [(lock, 1), (limit, 1), (lock, 0), (limit, 0)]


def test_a_limit_that_somebody_else_changed_meanwhile_is_told(fake: FakeNvml, machine: Machine) -> None:
    notes: list[Note] = []
    with GpuSettings().held(trial("cuda:0", power_limit_w=300), machine, notes):
        fake.set_power_limit(0, 500.0)
    assert [(note.code, note.params) for note in notes[1:]] == [
        ("power_limit_changed", {"set_w": 300.0, "read_w": 500.0})
    ]
    assert is_set(fake) == AS_FOUND


def test_what_cannot_be_undone_is_raised_kept_and_refuses_later_trials_until_it_can(
    fake: FakeNvml, machine: Machine, assay_home: Path
) -> None:
    settings = GpuSettings()
    with (
        pytest.raises(LeaseNotReleased, match="assay reap"),
        settings.held(trial("cuda:0", "cuda:1", power_limit_w=300), machine, []),
    ):
        fake.lose(0)
    assert is_set(fake) == [(300.0, 0, 0), (700.0, 0, 0)]
    assert kept(assay_home) == 1
    with (
        pytest.raises(SettingRefused, match="what an earlier trial set is still there: Could not undo power limit"),
        settings.held(trial("cuda:1"), machine, []),
    ):
        pytest.fail("it was measured")
    fake.find(0)
    with settings.held(trial("cuda:1"), machine, []):
        assert is_set(fake) == AS_FOUND
    assert kept(assay_home) == 0


def lose_and_fall_over(fake: FakeNvml) -> None:
    fake.lose(0)
    fall_over()


def test_beside_an_error_of_the_trial_what_cannot_be_undone_is_noted(
    fake: FakeNvml, machine: Machine, assay_home: Path
) -> None:
    notes: list[Note] = []
    with pytest.raises(ZeroDivisionError), GpuSettings().held(trial("cuda:0", power_limit_w=300), machine, notes):
        lose_and_fall_over(fake)
    assert notes[-1].code == "setting_not_restored"
    fake.find(0)
    (lease,) = [leases._read_lease(path) for path in (assay_home / "leases").glob("*.json")]
    leases.release_lease(lease)
    assert is_set(fake) == AS_FOUND


def test_without_a_guardian_nothing_is_set_and_the_run_ends(
    fake: FakeNvml, machine: Machine, assay_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise GuardianLost("The guardian was killed, and no other could be started.")

    before = is_set(fake)
    monkeypatch.setattr(Guardian, "require", lost)
    with pytest.raises(GuardianLost), GpuSettings().held(trial("cuda:0", power_limit_w=300.0), machine, []):
        pytest.fail("it was measured")
    assert is_set(fake) == before
    assert list((assay_home / "leases").glob("*.json")) == []
