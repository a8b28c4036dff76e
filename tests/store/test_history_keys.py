"""What makes points of different runs one series, and what keeps them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from assay.core.results import Interference
from assay.core.values import Adaptive, Continuous, Counted, Role, SourceCheckout, Staged, Subject, Trial
from assay.machine.model import Gpu, MigInstance
from assay.store.history.importing import ShortRecord, series_points
from assay.store.identity import SeriesKey, SeriesKeys, series_key
from tests.machines import machine
from tests.store.folders import HOST, record, softmax, summary, trial

if TYPE_CHECKING:
    from assay.store.history.database import HistoryPoint

GPUS = machine(gpus=(0, 0))


def entry(of: Trial, value: float | None = 100.0, **changes: Any) -> tuple[ShortRecord, Trial]:
    return ShortRecord.model_validate_json(record(of, value, **changes).model_dump_json()), of


def points(*records: tuple[ShortRecord, Trial], keys: SeriesKeys | None = None) -> dict[str, HistoryPoint]:
    return series_points(records, keys or SeriesKeys(HOST, "/home/me/project"))[1]


def key(of: Trial, *, keys: SeriesKeys | None = None) -> SeriesKey:
    (found,) = series_points([entry(of)], keys or SeriesKeys(HOST, "/home/me/project"))[0].values()
    return found


USUAL = trial()


@pytest.mark.parametrize(
    "other",
    [
        trial(block="repeat-2", seed=7),
        trial(restarts=5, cooldown_s=1.0, retakes=2, on_interference="wait"),
        trial(mode=Adaptive(duration_s=60, precision=0.05, warmup_runs=3)),
        trial(softmax(digest="another")),
    ],
    ids=["another block", "more restarts", "longer", "other code"],
)
def test_how_long_how_often_and_which_code_do_not_make_another_series(other: Trial) -> None:
    assert key(other) == key(USUAL)


ROLE = USUAL.roles[0]
LOAD = Role(name="load", subjects=(Subject(workload="cpu_hog", impl="numpy"),), devices=("host",), duty="load")
BESIDE = ROLE.model_copy(update={"name": "cpu:1", "devices": ("cpu:1",)})


@pytest.mark.parametrize(
    "other",
    [
        trial(softmax(1)),
        trial(softmax(), softmax(1)),
        trial(softmax(impl="torch")),
        trial(softmax(config={"block": 32})),
        trial(device="cpu:1"),
        trial(cpu_groups=4),
        trial(placed_with=("cpu:0", "cpu:1")),
        trial(settings={"power_limit_w": 300}),
        trial(mode=Counted(duration_s=1, runs=10)),
        trial(mode=Adaptive(duration_s=1, cache="warm")),
        trial(mode=Adaptive(duration_s=1, settle_s=5)),
        trial(mode=Continuous(duration_s=1)),
        trial(roles=(ROLE, LOAD)),
        trial(roles=(ROLE, BESIDE), schedule="together"),
        trial(schedule="together"),
        trial(roles=(ROLE.model_copy(update={"isolation": "none"}),)),
        trial(roles=(ROLE.model_copy(update={"ranks": 2}),)),
        trial(roles=(ROLE.model_copy(update={"metered": ("cuda:1",)}),)),
        trial(mode=Staged(duration_s=1, stage_s=1)),
    ],
    ids=lambda other: "",
)
def test_other_work_another_device_or_other_conditions_are_another_series(other: Trial) -> None:
    keys = SeriesKeys(HOST, "/home/me/project")
    described = keys.described(other, other.roles[0], other.roles[0].subjects[0])
    usual = keys.described(USUAL, ROLE, ROLE.subjects[0])
    assert series_key(described, "call_us", "median")[0] != series_key(usual, "call_us", "median")[0]


def estimated(method: str) -> tuple[ShortRecord, Trial]:
    told = summary(100.0)
    return entry(
        USUAL, estimates=[told.model_copy(update={"estimate": told.estimate.model_copy(update={"method": method})})]
    )


def test_another_method_of_the_estimate_is_another_series() -> None:
    (median,), (mean,) = (points(estimated(method)) for method in ("median, order statistics", "mean, batches"))
    assert median != mean


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("geometric mean of the medians of 5 processes", "geometric mean of the medians of 12 processes"),
        ("median, ranks", "median, ranks; no interval: two levels, 1.5 and 2 (30% of the time)"),
    ],
)
def test_counts_and_a_missing_interval_make_no_other_method(one: str, other: str) -> None:
    assert points(estimated(one)).keys() == points(estimated(other)).keys()


def test_each_quantity_is_a_series_but_when_a_call_began_is_none() -> None:
    told = [summary(1.0, quantity) for quantity in ("call_us", "busy_us", "start_us")]
    known = series_points([entry(USUAL, estimates=told)], SeriesKeys(HOST, "/"))[0]
    assert sorted(one.quantity for one in known.values()) == ["busy_us", "call_us"]


def test_a_gpu_is_known_by_its_uuid_wherever_it_is_plugged_in() -> None:
    swapped = GPUS.model_copy(
        update={"gpus": tuple(g.model_copy(update={"index": 1 - g.index, "name": "Renamed"}) for g in GPUS.gpus)}
    )
    before = key(trial(device="cuda:0"), keys=SeriesKeys(GPUS, "/"))
    described = (SeriesKeys(GPUS, "/"), trial(device="cuda:0")), (SeriesKeys(swapped, "/"), trial(device="cuda:1"))
    names = {series_key(k.described(t, t.roles[0], t.roles[0].subjects[0]), "call_us", "m")[0] for k, t in described}
    assert (before.location, before.gpu, before.device, before.device_kind) == ("GPU-0", "Example", None, "cuda")
    assert len(names) == 1
    assert key(trial(device="cuda:1"), keys=SeriesKeys(GPUS, "/")).location == "GPU-1"


def test_an_instance_of_a_gpu_is_known_by_its_own_uuid() -> None:
    cut = Gpu(
        index=0, uuid="GPU-0", name="H", mig=True, instances=(MigInstance(number=0, uuid="MIG-7", parent="GPU-0"),)
    )
    found = key(trial(device="cuda:0/0"), keys=SeriesKeys(machine(gpus=(0,)).model_copy(update={"gpus": (cut,)}), "/"))
    assert found.location == "MIG-7"


def test_ranks_on_several_gpus_are_a_series_of_all_of_them() -> None:
    role = Role(name="ranks", subjects=(softmax(),), ranks=2, devices=("cuda:1", "cuda:0"), isolation="full")
    of = trial(roles=(role,))
    found = key(of, keys=SeriesKeys(GPUS, "/"))
    assert (found.location, found.conditions["ranks"]) == ("GPU-0 GPU-1", 2)


def test_hosts_of_one_class_share_their_series_and_others_do_not() -> None:
    twin = HOST.model_copy(update={"host": "another", "boot_id": "b", "memory_mib": 1.0})
    assert key(USUAL, keys=SeriesKeys(twin, "/")) == key(USUAL, keys=SeriesKeys(HOST, "/"))
    assert key(USUAL, keys=SeriesKeys(machine(cores=(8,)), "/")) != key(USUAL, keys=SeriesKeys(HOST, "/"))


@pytest.mark.parametrize("impl", ["python", "command"])
def test_functions_and_commands_belong_to_their_project(impl: str) -> None:
    of = trial(softmax(workload="bench.py:step", impl=impl))
    keys = [key(of, keys=SeriesKeys(HOST, cwd)) for cwd in ("/a/one", "/b/one", "/a/two")]
    assert keys[0] == keys[1] != keys[2]
    assert key(USUAL, keys=SeriesKeys(HOST, "/a/one")) == key(USUAL, keys=SeriesKeys(HOST, "/a/two"))


def test_what_another_checkout_measured_is_no_part_of_the_history() -> None:
    of = trial(softmax(source=SourceCheckout(checkout="/tmp/base", interpreter="python")), softmax(1))
    told = [summary(1.0, subject=0), summary(2.0, subject=1)]
    assert [point.value for point in points(entry(of, estimates=told)).values()] == [2.0]


def test_one_estimate_is_the_point_as_it_is() -> None:
    stranger = Interference(kind="processes", source="ffmpeg", amount=1.0, unit="cores", message="ffmpeg was busy")
    (point,) = points(entry(USUAL, disturbed=(stranger,))).values()
    assert (point.value, point.low, point.high, point.n, point.scope) == (100.0, 99.0, 101.0, 10, "run")
    assert (point.status, point.disturbed) == ("ok", True)


def test_repeats_are_one_point_with_an_interval_over_them() -> None:
    (point,) = points(*(entry(trial(block=f"repeat-{n}"), value) for n, value in enumerate((90, 100, 110)))).values()
    assert point.value == pytest.approx(99.67, abs=0.01)
    assert (point.n, point.scope) == (30, "run")
    assert point.low is not None
    assert point.high is not None
    assert point.low < 90
    assert point.high > 110


def test_what_failed_is_a_point_without_a_value_that_says_why() -> None:
    (point,) = points(entry(USUAL, None)).values()
    assert (point.value, point.low, point.n, point.status, point.reason) == (None, None, 0, "failed", "it fell over")


def test_a_repeat_that_failed_leaves_the_point_to_those_that_did_not() -> None:
    (point,) = points(entry(USUAL), entry(trial(block="repeat-2"), None)).values()
    assert (point.value, point.status) == (100.0, "ok")


def test_loads_are_no_series() -> None:
    told = [summary(1.0), summary(5.0, role="load")]
    (point,) = points(entry(trial(roles=(ROLE, LOAD)), estimates=told)).values()
    assert point.value == 1.0
