"""Others who wanted the core are told of, where it was often."""

from __future__ import annotations

from assay.timing.conditions import ContextSwitchCounter, describe_switches


def test_a_core_that_was_taken_away_often_is_told_of() -> None:
    (note,) = describe_switches(100, 2.0)
    assert note.startswith("others are busy here: the core was taken away 100 times in 2 s")


def test_a_few_switches_or_seldom_ones_are_not_worth_a_word() -> None:
    assert describe_switches(4, 0.001) == ()
    assert describe_switches(100, 10.0) == ()


def test_nothing_is_said_right_after_the_counting_began() -> None:
    assert ContextSwitchCounter().notes() == ()
