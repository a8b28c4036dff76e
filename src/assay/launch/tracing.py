"""Traces of a crew: one call of each subject on each rank as PyTorch's profiler sees it, after the times were taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.launch.handle import Answer
from assay.worker import protocol as say

if TYPE_CHECKING:
    from assay.launch.crew import Crew


def trace(crew: Crew) -> None:
    """Have every timed worker trace its subjects, in the first restart of a trial that asks for it."""
    if not crew.trial.profile or crew.restart > 0:
        return
    for role in crew.timed:
        handles = crew.of([role])
        crew.tell(handles, say.Trace())
        answers = crew.hear(handles, say.Traced, within_s=crew.trial.method.timeout_s, doing="being traced")
        for key, answer in answers.items():
            if isinstance(answer, Answer) and isinstance(answer.message, say.Traced):
                crew.traces[key] = answer.payload
                if answer.message.reason is not None:
                    crew.notes.append(f"{crew.handles[key].seat.name} was not traced: {answer.message.reason}")
