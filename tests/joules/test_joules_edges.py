"""Clocks, meters, pollers, wording, rigs and kept models at the edges of what they take."""

from __future__ import annotations

import os
import random
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import MachineCannot
from assay.core.results import Estimate
from assay.joules import sensor_model as probing
from assay.joules.devices import CpuCallLoad
from assay.joules.measure import Energy
from assay.joules.readings import GpuPowerMeter, HostMonotonicClock, MeterReading, RaplMeter
from assay.joules.sensor_model import (
    CounterModel,
    PowerModel,
    SensorModel,
    check_sensors,
    load_sensor_model,
    save_sensor_model,
)
from assay.joules.window_energy import format_energy_estimate
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def counter(period_s: float, **more: float) -> CounterModel:
    told = {"jitter_s": 0.0, "quantum_j": 0.001, "lag_s": 0.0, "lag_error_s": 0.0, "read_s": 0.0, **more}
    return CounterModel(period_s=period_s, **told)


def power(period_s: float, window_s: float) -> PowerModel:
    return PowerModel(
        period_s=period_s, window_s=window_s, lag_s=0.0, lag_error_s=0.0, with_counter=False, explained=1.0
    )


def model(**sensors: Any) -> SensorModel:
    return SensorModel(device="GPU-1", driver="580", **sensors)


class Turned:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.at_ns = 7 * MS

    def now_ns(self) -> int:
        return self.at_ns

    def sleep(self, seconds: float) -> None:
        self.at_ns += round(seconds * 1e9)

    def turn_ms(self, ms: int = 1) -> None:
        self.at_ns += ms * MS


def test_there_is_no_waiting_for_no_time_and_half_a_second_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for seconds in (-1.0, 0.0, 0.5):
        HostMonotonicClock().sleep(seconds)
    assert slept == [0.5]


def test_two_cards_models_are_kept_beside_each_other_and_found_by_the_doctor() -> None:
    gpu = machine(gpus=(0,)).gpus[0]
    for device, driver in (("GPU-1", "580"), ("GPU-2", "580"), (gpu.uuid, "580.1"), (gpu.uuid, "unknown")):
        save_sensor_model(
            SensorModel(device=device, driver=driver, counter=counter(0.1) if driver == "580.1" else None)
        )
    assert load_sensor_model("GPU-1", "580") == model()
    assert load_sensor_model("GPU-2", "580") is not None
    assert [one.verdict for one in check_sensors(machine(gpus=(0,), driver="580.1"))] == ["yes"]
    assert [one.verdict for one in check_sensors(machine(gpus=(0,), driver=None))] == ["no"]
    assert [one.verdict for one in check_sensors(machine(gpus=(0,), driver="590"))] == ["unsure"]


def test_a_mean_over_more_than_a_period_sees_all_of_the_time() -> None:
    assert power(0.1, 0.025).seen_share == pytest.approx(0.25)
    assert power(0.1, 1.0).seen_share == 1.0


def test_a_period_is_written_in_seconds_where_milliseconds_would_be_a_thousand() -> None:
    assert "every 999 ms" in model(counter=counter(0.9992)).describe()
    assert model(counter=counter(0.9995)).describe().partition(",")[0].endswith(" s")
    assert model().describe() == "it shows neither energy nor power"


class Card:
    """A GPU's sensor that answers as told: power in W or null, then the counter in J, null, or no answer."""

    lost = None
    last_error = ""

    def __init__(self, *answers: tuple[float | None, float | None, bool]) -> None:
        self.left = list(answers)
        self.asked = 0

    def read(self, *, traffic: bool) -> Any:
        assert not traffic
        watts, self._joules, self._answers = self.left.pop(0)
        shown = SimpleNamespace(power_instant_w=watts, power_average_w=None, power_usage_w=None)
        return shown if watts is not None else None

    def meter(self) -> Any:
        self.asked += 1
        return SimpleNamespace(energy_j=self._joules) if self._answers else None


def read_all(card: Card) -> list[tuple[float | None, float | None] | None]:
    meter = GpuPowerMeter(card, Turned())  # type: ignore[arg-type]
    found = [meter.read() for _ in list(card.left)]
    return [None if one is None else (one.instant_w, one.energy_j) for one in found]


def test_a_counter_that_once_answered_is_asked_again_after_it_was_silent() -> None:
    card = Card((50.0, 1.0, True), (50.0, None, False), (None, 3.0, True), (None, None, False))
    assert read_all(card) == [(50.0, 1.0), (50.0, None), (None, 3.0), None]
    assert read_all(Card((None, None, False), (50.0, 2.0, True))) == [None, (50.0, 2.0)]


def test_a_counter_that_did_not_answer_beside_power_is_asked_no_more() -> None:
    card = Card((50.0, None, False), (51.0, 2.0, True))
    assert read_all(card) == [(50.0, None), (51.0, None)]
    assert card.asked == 1
    without = Card((None, None, True), (51.0, 2.0, True))
    assert read_all(without) == [None, (51.0, None)]


def test_one_counter_that_may_be_read_is_enough_not_to_ask_for_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1"):
        (tmp_path / "sys/class/powercap" / name / "energy_uj").mkdir(parents=True)
        (tmp_path / "sys/class/powercap" / name / "name").write_text("package")
    monkeypatch.setattr(os, "access", lambda path, _: "rapl:1" in str(path))
    with pytest.raises(MachineCannot, match="do not answer"):
        RaplMeter(tmp_path, Turned())


class Switched:
    """A load and a sampling that write down what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def run(self, seconds: float) -> None:
        self.told.append(("keep", seconds))

    def rest(self, seconds: float) -> None:
        self.told.append(("rest", seconds))

    def start(self) -> None:
        self.told.append(("start", 0.0))

    def boundaries(self) -> list[Any]:
        return []

    def stop(self) -> list[MeterReading]:
        return [MeterReading(5 * MS, 5 * MS, 6 * MS, energy_j=1.0, instant_w=50.0)]


def test_the_probe_switches_a_load_on_and_off_sixteen_times_after_a_long_step() -> None:
    both: Any = Switched()
    found = probing.probe_sensors(both, both, "GPU-1", "580")
    assert found == model()  # one reading shows nothing
    assert both.told[:4] == [("start", 0.0), ("rest", 0.5), ("keep", 1.3), ("rest", 0.8)]
    bursts, last = both.told[4:-1], both.told[-1]
    assert [what for what, _ in bursts] == ["keep", "rest"] * 16
    chance = random.Random(5)
    assert [length for _, length in bursts] == pytest.approx([chance.uniform(0.03, 0.17) for _ in range(32)])
    assert last == ("rest", 0.17)
    assert probing.PROBE_INTERVAL_S == 0.002
    with pytest.raises(MachineCannot, match="neither energy nor power"):
        probing.fit_sensor_model([], [], "GPU-1", "580")


def test_calls_are_made_until_the_time_is_just_up() -> None:
    clock = Turned()
    keeper = CpuCallLoad(clock.turn_ms, clock, 0.001)
    keeper.run(0.003)
    assert [(knot.t_ns // MS, knot.calls) for knot in keeper.boundaries()] == [(7, 0), (8, 1), (9, 2), (10, 3)]


@pytest.mark.parametrize(("call_s", "calls"), [(1.0, 1), (0.00025, 4), (1.0000005e-6, 999), (0.0, 1_000_000)])
def test_short_calls_are_put_together_up_to_a_millisecond(call_s: float, calls: int) -> None:
    keeper = CpuCallLoad(lambda: None, Turned(), call_s)
    keeper.run(0.0)
    assert [knot.calls for knot in keeper.boundaries()] == [0, calls]


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=None, high=None, unit="J", scope="process", method="counter", n=1)


def test_a_systematic_bound_is_written_where_there_is_one_of_some_energy() -> None:
    assert format_energy_estimate(estimate(2.0), 0.5) == "2.000 J, systematic ±25 %"
    assert format_energy_estimate(estimate(2.0), None) == format_energy_estimate(estimate(2.0), 0.0) == "2.000 J"
    assert "systematic" not in format_energy_estimate(estimate(0.0), 0.5)


def test_an_energy_says_whether_its_precision_was_reached() -> None:
    told: dict[str, Any] = {
        "name": "f", "device": "cuda:0", "joules": estimate(2.0), "net": False, "systematic_j": 0.1, "power_w": 100.0,
        "call_us": 5.0, "calls": 2, "window_s": 1.0, "rests_s": 0.0, "idle_w": None, "coverage": 1.0,
        "method": "counter", "crosscheck": None, "ticks": 9, "precision_wanted": 0.01, "precision_reached": 0.01,
        "sensor": model(), "took_s": 3.0,
    }  # fmt: skip
    reached = Energy(stopped="precise enough", **told)
    assert "±1 % reached" in str(reached)
    assert "±1 % not reached" in str(Energy(stopped="budget spent", **told))
    assert reached.open_ns == 0
