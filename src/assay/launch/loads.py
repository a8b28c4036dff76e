"""Loads: workers that run without being timed, up before and down after what is timed beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.launch.crew import Load
from assay.launch.handle import Answer
from assay.launch.samples import unpacked
from assay.worker import protocol as say

if TYPE_CHECKING:
    from assay.launch.crew import Crew
    from assay.launch.handle import Handle


def raise_load(crew: Crew, handles: list[Handle]) -> None:
    """Have workers run untimed, and wait until each has made its first calls."""
    crew.tell(handles, say.Hold())
    crew.hear(handles, say.Holding, within_s=crew.trial.method.timeout_s, doing="raising the load")


def release(crew: Crew, handles: list[Handle]) -> None:
    """End a load, and keep how much of one it was, with the samples of continuous calls."""
    crew.tell(handles, say.Release())
    answers = crew.hear(handles, say.Released, within_s=crew.trial.method.timeout_s, doing="ending the load")
    for key, answer in answers.items():
        if isinstance(answer, Answer) and isinstance(answer.message, say.Released):
            crew.held[key] = crew.held.get(key, Load()).and_then(answer.message)
            crew.series.extend(unpacked(crew.handles[key].seat, answer.message, answer.payload))
