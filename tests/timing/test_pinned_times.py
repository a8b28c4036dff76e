"""Functions on a machine that only keeps time have the times they had, to the fifth digit."""

from __future__ import annotations

from tests.pinning import differences
from tests.timing.pinned import KEPT, numbers


def test_every_number_is_what_it_was() -> None:
    assert differences(numbers(), KEPT) == {}
