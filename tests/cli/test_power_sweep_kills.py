"""Sweeps killed outright at random moments: every limit and clock is as it was found, and no process is left."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.cli.sweep_kills import VARIANTS, Forked, kill_guardian_then_parent, killed
from tests.fakes.fake_nvml import attached, hopper

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml
    from tests.forking import Forking

pytestmark = pytest.mark.full

KILLS = 10
LATEST_S = 1.2
"""After the first change; a trial takes about as long."""


def test_killed_at_ten_random_moments_limits_and_clocks_are_restored_and_nothing_is_left(
    make_fake_nvml: MakeFakeNvml, workplace: Path, forking: Forking
) -> None:
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)
    chance, start = random.Random(20261115), partial(Forked, forking)
    with attached(fake):
        found = [
            killed(fake, start, workplace, chance, variant=VARIANTS[number % len(VARIANTS)], latest_s=LATEST_S)
            for number in range(KILLS)
        ]
    assert [each for each in found if not each.whole] == []
    assert sum(each.changed for each in found) >= 3


def test_a_guardian_killed_in_a_sweep_is_replaced_and_restores_the_limits_when_the_sweep_is_killed(
    make_fake_nvml: MakeFakeNvml, workplace: Path, forking: Forking
) -> None:
    fake = make_fake_nvml([hopper()], virtual=False)
    with attached(fake):
        assert kill_guardian_then_parent(fake, partial(Forked, forking), workplace)
