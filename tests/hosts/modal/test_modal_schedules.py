"""Whatever goes wrong at Modal, nothing is left there, and a run that can finish does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.standins.modal.server import ModalStandIn

pytestmark = pytest.mark.full


@pytest.mark.parametrize("seed", [*range(9), 14])
def test_nothing_is_left_after_a_schedule_of_faults(modal_stand_in: ModalStandIn, tmp_path: Path, seed: int) -> None:
    from tests.hosts.standins.modal.schedules import carried_out, planned

    schedule = planned(seed, modal_stand_in)
    outcome = carried_out(schedule, modal_stand_in, tmp_path)
    assert (outcome.left, outcome.at_once) in {(0, 1), (0, 0)}, outcome
    assert outcome.finished or schedule.killed or schedule.refused, outcome
