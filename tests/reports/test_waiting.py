"""One line while something is timed: what is being done, and for how long at most."""

from __future__ import annotations

import io

from rich.console import Console

from assay.reports.progress import StatusLine
from assay.worker.request import PhaseStarted

LOADING = PhaseStarted(phase="loading", name="f", within_s=60)
CALLING = PhaseStarted(phase="calling", name="f", within_s=60)
TIMING = PhaseStarted(phase="timing", name="f and\ng", within_s=60)


def said(*, terminal: bool) -> str:
    buffer = io.StringIO()
    line = StatusLine(Console(file=buffer, width=60, force_terminal=terminal), budget_s=10.0)
    line.tick()
    for begins in (LOADING, CALLING, TIMING):
        line.begins(begins)
        line.tick()
    line.close()
    line.tick()
    return buffer.getvalue()


def test_without_a_terminal_there_is_a_plain_line_for_each_step() -> None:
    assert said(terminal=False) == "loading f …\ntiming f and g, for 10 s at most …\n"


def test_on_a_terminal_one_line_is_renewed_and_taken_away() -> None:
    text = said(terminal=True)
    assert "\n" not in text
    assert "first call of f …" in text
    assert "timing f and g …  at most 10" in text
    assert text.endswith("\r\x1b[2K")


def test_of_several_processes_it_says_which_and_for_how_long() -> None:
    buffer = io.StringIO()
    line = StatusLine(Console(file=buffer, width=60))
    for number in (1, 2):
        line.process(number, 2)
        line.begins(LOADING)
        line.begins(TIMING.model_copy(update={"budget_s": 2.0}))
    assert buffer.getvalue() == (
        "process 1 of 2: loading f …\nprocess 1 of 2: timing f and g, for 2.0 s at most …\n"
        "process 2 of 2: loading f …\nprocess 2 of 2: timing f and g, for 2.0 s at most …\n"
    )


def test_a_log_that_cannot_be_written_does_not_end_the_measurement() -> None:
    class Full(io.StringIO):
        refused = 0

        def write(self, _text: str) -> int:
            self.refused += 1
            raise OSError(28, "No space left on device")

    for terminal in (True, False):
        log = Full()
        line = StatusLine(Console(file=log, force_terminal=terminal), budget_s=1.0)
        line.begins(TIMING)
        line.close()
        assert log.refused
        assert log.getvalue() == ""
