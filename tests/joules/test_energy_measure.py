"""``assay.energy`` on a device of known joules: what it says, when it refuses, and what it does about faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import assay
from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.joules.measure import Energy, energy
from assay.joules.per_call import estimate_call_energy
from tests.joules.trials import installed, model_of
from tests.joules.world import Kernel, VirtualRig, hopper_like, no_counter, opened, probed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.joules.world import Kind, Profile, World

FLAT: Profile = ((0.0002, 400.0),)


def measured(
    profile: Profile = FLAT, *, kind: Kind | None = None, when: Callable[[World], None] | None = None, **asked: Any
) -> tuple[Energy, Kernel]:
    """Measure a kernel of a known profile on a Hopper; ``when`` prepares the world."""
    model = probed(kind) if kind is not None else model_of("Hopper")
    with opened(kind or hopper_like(53.0), seed=3) as (world, meter):
        kernel = Kernel(world, profile)
        if when is not None:
            when(world)
        with installed(VirtualRig(world, meter, model)):
            return energy(kernel, seed=3, name="kernel", **asked), kernel


def test_a_short_call_is_told_to_a_percent_with_its_bounds() -> None:
    found, kernel = measured()
    assert found.joules.value == pytest.approx(kernel.joules, rel=0.01)
    assert found.joules.low is not None
    assert found.joules.high is not None
    assert found.joules.low <= kernel.joules <= found.joules.high
    assert found.joules.unit == "J"
    assert found.systematic_j == pytest.approx(0.05 * found.joules.value, rel=0.01)
    assert found.power_w == pytest.approx(400.0, rel=0.01)
    assert found.call_us == pytest.approx(200.0, rel=0.01)
    assert found.idle_w == pytest.approx(78.0, rel=0.02)
    assert found.coverage > 0.9
    assert found.crosscheck == pytest.approx(1.0, abs=0.02)
    assert found.method == "counter"
    assert found.calls * found.call_us / 1e6 == pytest.approx(found.window_s - found.rests_s)
    assert found.stopped == "precise enough"
    assert found.took_s <= 3.0
    assert found.origin == "fake"
    assert found.readings


def test_it_is_public_reads_well_and_comes_back_from_json() -> None:
    assert assay.energy is energy
    assert assay.Energy is Energy
    found, _ = measured()
    text = str(found)
    assert text.startswith("kernel on fake:0: 80")
    assert " mJ (" in text
    assert "systematic ±5 %" in text
    assert "78 W idle, not subtracted" in text
    assert max(map(len, text.splitlines())) < 120
    told = found.as_json()
    assert "readings" not in told
    assert Energy.model_validate(told).joules == found.joules


def test_idle_power_is_subtracted_only_when_asked() -> None:
    gross, kernel = measured()
    net, _ = measured(net=True)
    assert gross.joules.value == pytest.approx(kernel.joules, rel=0.01)
    assert net.net
    assert net.joules.value == pytest.approx(kernel.joules - 78.0 * kernel.seconds, rel=0.015)
    assert net.idle_w == gross.idle_w
    assert "78 W idle, subtracted" in str(net)


def test_the_same_seed_gives_the_same_number() -> None:
    assert measured()[0].joules == measured()[0].joules


def test_calls_at_the_sensors_own_period_fool_power_readings_and_not_the_energy() -> None:
    found, kernel = measured(((0.025, 500.0), (0.075, 100.0)))
    assert found.joules.value == pytest.approx(kernel.joules, rel=0.01)
    assert found.crosscheck is not None
    assert abs(found.crosscheck - 1) > 0.1
    assert found.rests_s > 0
    assert any("integrated power says" in note for note in found.notes)


def test_rests_that_vary_the_phase_are_taken_off() -> None:
    found, kernel = measured(((0.03, 600.0), (0.05, 200.0)))
    assert found.rests_s / found.window_s > 0.02
    assert found.joules.value == pytest.approx(kernel.joules, rel=0.01)
    assert found.systematic_j > 0.05 * found.joules.value


def test_a_call_longer_than_the_budget_is_made_once_and_said_so() -> None:
    found, kernel = measured(((2.0, 300.0), (2.5, 500.0)))
    assert found.calls == 1
    assert found.joules.value == pytest.approx(kernel.joules, rel=0.01)
    assert "one call takes longer than the whole budget" in found.notes
    assert any("not warmed up" in note for note in found.notes)


def test_a_budget_too_short_for_the_sensor_is_refused_with_one_that_would_do() -> None:
    with pytest.raises(MachineCannot, match=r"give budget_s=\d") as refusal:
        measured(budget_s=0.5)
    needed_s = float(str(refusal.value).rpartition("budget_s=")[2].split()[0])
    found, _ = measured(budget_s=needed_s)
    assert found.took_s <= needed_s + 0.1


def test_a_precision_out_of_reach_spends_the_budget_and_says_so() -> None:
    found, _ = measured(precision=0.0001)
    assert found.stopped == "budget spent"
    assert found.took_s == pytest.approx(3.0, abs=0.5)
    assert "not reached" in str(found)


@pytest.mark.parametrize("asked", [{"budget_s": -1.0}, {"budget_s": 0}, {"precision": -0.1}, {"precision": 1.5}])
def test_negative_budgets_and_precisions_are_bad_input(asked: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        energy(lambda: None, **asked)  # type: ignore[arg-type]


def test_what_cannot_be_called_is_bad_input() -> None:
    with pytest.raises(BadInput, match="cannot be called"):
        energy(5)  # type: ignore[arg-type]


def test_a_function_that_raises_at_once_or_midway_is_blamed() -> None:
    model = model_of("Hopper")
    with opened(hopper_like()) as (world, meter), installed(VirtualRig(world, meter, model)):
        kernel = Kernel(world, ((0.001, 400.0),))

        def breaks_later() -> None:
            if kernel.calls > 800:
                raise ValueError("the moon is in the wrong phase")
            kernel()

        def breaks() -> None:
            raise ValueError("at once")

        with pytest.raises(TrialFailed, match="breaks_later raised ValueError: the moon"):
            energy(breaks_later, name="breaks_later")
        with pytest.raises(TrialFailed, match="at once"):
            energy(breaks)
        assert not world.samplings


def test_a_gpu_lost_midway_is_told_with_the_reason() -> None:
    with pytest.raises(MachineCannot, match="GPU is lost"):
        measured(when=lambda world: world.fake.lose(0, at_s=11.5))


def test_a_counter_that_resets_midway_is_refused() -> None:
    model = model_of("Hopper")
    with opened(hopper_like(53.0), seed=3) as (world, meter):
        kernel = Kernel(world, ((0.001, 400.0),))

        def resets_the_counter() -> None:
            kernel()
            if kernel.calls == 1200:
                world.look_now()
                world.fake.reset_counter(0)

        with (
            installed(VirtualRig(world, meter, model)),
            pytest.raises(MachineCannot, match="Joules cannot be told: the energy counter went back by"),
        ):
            energy(resets_the_counter)


def test_without_a_counter_power_is_integrated_and_said_so() -> None:
    found, kernel = measured(kind=no_counter(53.0))
    assert found.method == "instant power"
    assert found.joules.value == pytest.approx(kernel.joules, rel=0.02)
    assert found.crosscheck is None
    assert any("no energy counter" in note for note in found.notes)


def test_without_a_counter_calls_at_the_sensors_period_have_bounds_as_wide_as_the_ignorance() -> None:
    found, kernel = measured(((0.025, 500.0), (0.075, 100.0)), kind=no_counter(53.0))
    assert found.joules.low is not None
    assert found.joules.high is not None
    assert found.joules.low - found.systematic_j <= kernel.joules <= found.joules.high + found.systematic_j
    assert found.stopped == "budget spent"


def test_without_a_counter_long_calls_are_read_by_the_power_that_sees_all_of_them() -> None:
    """Instant power sees 25 ms of each 100 ms of a call; average power sees the whole, if the budget waits for it."""
    found, kernel = measured(((0.1, 500.0), (0.2, 100.0)), kind=no_counter(53.0), budget_s=9.0)
    assert found.method == "average power"
    assert found.systematic_j < 0.1 * found.joules.value
    assert found.joules.low is not None
    assert found.joules.high is not None
    assert found.joules.low - found.systematic_j <= kernel.joules <= found.joules.high + found.systematic_j


def test_a_gpu_is_refused_where_there_is_none() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(MachineCannot, match="CUDA"):
        energy(lambda: None, device="cuda")


def test_the_plan_of_a_power_only_card_waits_for_its_window() -> None:
    import random

    from assay.joules.measure import plan_measurement

    model = probed(no_counter()).model_copy(update={"instant": None})
    assert model.average is not None
    todo = plan_measurement(model, 0.001, 6.0, 0.05, random.Random(0))
    assert todo.warm_s is not None
    assert todo.warm_s > model.average.window_s


def test_what_comes_with_the_answer_is_enough_to_judge_again() -> None:
    found, _ = measured()
    again = estimate_call_energy(found.readings, found.boundaries, found.open_ns, found.sensor)
    assert again.per_call.joules == pytest.approx(found.joules.value, rel=0.002)
    assert again.calls == found.calls
    assert {"readings", "knots", "open_ns"}.isdisjoint(found.as_json())
