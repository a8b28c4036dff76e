"""GPUMonitor: the names of the older tool, and what they mean now."""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

import assay
from assay.core.errors import MachineCannot
from tests.fakes.fake_nvml import FakeNvml, ampere, attached, hopper
from tests.running import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.plugin import MakeFakeNvml

NOT_SUPPORTED = 3


@pytest.fixture
def gpus(make_fake_nvml: MakeFakeNvml) -> Iterator[FakeNvml]:
    one = replace(hopper(), utilisation_percent=80, memory_used_bytes=10 * 2**30, temperature_c=70, idle_w=500.0)
    other = replace(one, utilisation_percent=20, memory_used_bytes=2**30, idle_w=200.0)
    fake = make_fake_nvml([one, other], virtual=False)
    with attached(fake):
        yield fake


def watched(fake: FakeNvml, ids: list[int], *, calls: int = 20, interval: float = 0.01) -> dict[str, Any]:
    """Watch an operation that lasts until the GPUs were looked at so many times."""
    begin = fake.calls("nvmlDeviceGetFieldValues")

    def operation(word: str, *, again: int) -> str:
        wait_for(lambda: fake.calls("nvmlDeviceGetFieldValues") >= begin + calls)
        return word * again

    return assay.GPUMonitor.monitor_multi_gpu_during_operation(operation, ids, interval, "ab", again=2)


def test_one_look_at_each_gpu_and_null_for_one_that_is_not_there(gpus: FakeNvml) -> None:
    looks = assay.GPUMonitor.get_multi_gpu_stats([0, 1, 5])
    assert looks[5] is None
    first = looks[0]
    assert isinstance(first, assay.GPUStats)
    told = asdict(first)
    assert told.pop("timestamp") > 0
    assert told == {
        "gpu_id": 0,
        "utilization_percent": 80,
        "memory_used_mb": 10240.0,
        "memory_total_mb": 143771.0,
        "memory_percent": pytest.approx(100 * 10240 / 143771),
        "temperature_c": 70,
        "power_draw_w": 500.0,
    }


def test_one_field_that_is_not_offered_throws_no_look_away(gpus: FakeNvml) -> None:
    gpus.fail("nvmlDeviceGetTemperature", NOT_SUPPORTED)
    first = assay.GPUMonitor.get_multi_gpu_stats([0])[0]
    assert first is not None
    assert (first.temperature_c, first.power_draw_w) == (None, 500.0)


def test_availability_is_said_with_the_reason(gpus: FakeNvml) -> None:
    assert assay.GPUMonitor.check_multi_gpu_available([0, 1])["all_available"] is True
    gpus.lose(1)
    told = assay.GPUMonitor.check_multi_gpu_available([0, 1, 7])
    assert told["all_available"] is False
    assert (told["requested_gpus"], told["available_gpus"], told["unavailable_gpus"]) == ([0, 1, 7], [0], [1, 7])
    assert "lost" in told["errors"][1].lower()
    assert told["errors"][7] == "there is no such GPU; there are 0"


def test_without_a_driver_no_gpu_is_available_and_the_driver_is_the_reason() -> None:
    told = assay.GPUMonitor.check_multi_gpu_available([0])
    assert told["all_available"] is False
    assert "NVML does not answer" in told["errors"][0]


def test_a_look_is_printed_for_people(gpus: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    assay.GPUMonitor.print_multi_gpu_info([0, 9])
    assert capsys.readouterr().out.splitlines() == [
        "GPU 0: 80 % busy, 10240 MB used, of 143771 MB, 70 °C, 500.0 W",
        "GPU 9: there is no such GPU; there are 0, 1",
    ]


def test_gpus_are_watched_while_an_operation_runs_and_not_after_it(gpus: FakeNvml) -> None:
    told = watched(gpus, [0, 1])
    assert (told["result"], told["success"], told["error"], told["gpu_ids"]) == ("abab", True, None, [0, 1])
    assert told["duration"] > 0
    first = told["per_gpu_stats"][0]
    assert first["samples"] >= 5
    assert (first["avg_utilization_percent"], first["max_utilization_percent"]) == (80.0, 80.0)
    assert (first["avg_power_w"], first["max_power_w"], first["power_reading"]) == (500.0, 500.0, "power_instant_w")


def test_the_aggregates_mean_what_their_documentation_says(gpus: FakeNvml) -> None:
    found = watched(gpus, [0, 1])["aggregate_stats"]
    assert found["total_avg_utilization"] == 100.0
    assert found["total_max_utilization"] == 80.0
    assert found["total_avg_memory_mb"] == 11264.0
    assert found["total_max_memory_mb"] == 11264.0
    assert found["avg_utilization_per_gpu"] == 50.0
    assert found["avg_memory_per_gpu_mb"] == 5632.0
    assert found["any_gpu_active"] is True
    assert found["total_avg_power_w"] == pytest.approx(700.0)
    assert found["total_max_power_w"] == 500.0
    assert found["peak_sum_power_w"] == 700.0


def test_joules_are_those_of_the_counters(gpus: FakeNvml) -> None:
    told = watched(gpus, [0, 1], calls=400)
    each = [told["per_gpu_stats"][gpu]["energy_j"] for gpu in (0, 1)]
    assert told["aggregate_stats"]["total_energy_j"] == pytest.approx(sum(each))
    assert each[0] == pytest.approx(2.5 * each[1], rel=0.35)  # the counter ticks every 100 ms


def test_a_sum_over_gpus_of_which_one_does_not_say_is_null_and_not_less(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), ampere()], virtual=False)
    fake.fail("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED, gpu=1)
    with attached(fake):
        found = watched(fake, [0, 1])["aggregate_stats"]
    assert (found["total_avg_utilization"], found["avg_utilization_per_gpu"]) == (None, None)
    assert found["total_max_utilization"] == 0.0
    assert found["any_gpu_active"] is None
    assert found["total_avg_memory_mb"] == 0.0


def test_an_operation_that_fails_is_told_with_what_was_seen_until_then(gpus: FakeNvml) -> None:
    def broken() -> None:
        raise ValueError("out of tokens")

    told = assay.GPUMonitor.monitor_multi_gpu_during_operation(broken, [0], 0.01)
    assert (told["result"], told["success"], told["error"]) == (None, False, "ValueError: out of tokens")
    assert 0 in told["per_gpu_stats"]


def test_a_gpu_that_is_not_there_is_refused_before_the_operation_runs(gpus: FakeNvml) -> None:
    ran = threading.Event()
    with pytest.raises(MachineCannot, match="There is no GPU 4"):
        assay.GPUMonitor.monitor_multi_gpu_during_operation(ran.set, [0, 4])
    assert not ran.is_set()
