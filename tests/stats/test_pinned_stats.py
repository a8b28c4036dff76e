"""What statistics say about made-up samples is what they said, to the fifth digit."""

from __future__ import annotations

from tests.pinning import differences
from tests.stats.pinned import KEPT, numbers


def test_every_number_is_what_it_was() -> None:
    assert differences(numbers(), KEPT) == {}
