"""Look at every series of a history for steps, up and down."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.comparing.judging import WORDS, WORSE, sense_of
from assay.experiments.regressions.beside import confounders, others
from assay.experiments.regressions.found import Found, Moment, Stepped
from assay.experiments.regressions.usable import sort_out
from assay.experiments.regressions.words import headline
from assay.stats.changes import FALSE_SHARE, steps
from assay.stats.steps import HISTORY
from assay.store.history.page import origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.comparing.judging import Verdict
    from assay.experiments.regressions.found import Standing
    from assay.experiments.regressions.usable import Usable
    from assay.stats.changes import Step
    from assay.store.history.points import Run
    from assay.store.history.series import Course

METHOD = "Kalman filter over runs, its noise learnt with that of all series of its kind; 95 %"
MINIMUM_EFFECT = 0.01
TAKEN_BACK = 0.5
"""Of a step: where less of it is surely left at the end, it was taken back."""
DRIFT, FAR = float(np.log(1.05)), 3.0
"""A series without a step has drifted where its ends are so far apart, and so many times the noise between runs."""
SAME_STEP = 3
"""Runs within which two looks mean the same step."""


def look(
    courses: Sequence[Course],
    *,
    false_share: float = FALSE_SHARE,
    minimum_effect: float = MINIMUM_EFFECT,
    since_s: float | None = None,
) -> Found:
    """Return every step.

    Args:
        courses: Series, in time order.
        false_share: Of the steps that are told, how many may be false.
        minimum_effect: Steps that are smaller are told, and are no regressions.
        since_s: Only steps that began then or later, in seconds since 1970; null: all.
    """
    sorted_out = sort_out(courses)
    usable = sorted_out.usable
    change_points = [
        _told(one, step, confounded, minimum_effect)
        for one, every in zip(usable, _all_steps(usable, false_share), strict=True)
        for step, confounded in every
    ]
    stepped = {one.key for one in change_points}
    meant = [one for one in change_points if since_s is None or one.first_bad.began_at.timestamp() >= since_s]
    ordered = tuple(sorted(meant, key=_order))
    runs = sum(len(one.logs) for one in usable)
    origins = {origin(one.course) for one in usable}
    result = Found(
        headline="",
        steps=ordered,
        series=len(usable),
        runs=runs,
        too_short=sorted_out.too_short,
        not_positive=sorted_out.not_positive,
        drifted=tuple(one.course.name for one in usable if _drifted(one) and one.course.name not in stepped),
        false_share=false_share,
        minimum_effect=minimum_effect,
        origin="simulated" if "simulated" in origins else "fake" if "fake" in origins else "real",
    )
    return result.model_copy(update={"headline": headline(result)})


def _all_steps(usable: Sequence[Usable], false_share: float) -> list[list[tuple[Step, tuple[str, ...]]]]:
    """Return the steps of each series with what confounds them.

    Hosts and drivers have levels of their own, so that a step at a change of them is not seen as one; a second look
    without these levels finds it, and it is confounded.
    """
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(one.kind for one in usable))}
    numbers = [kinds[one.kind] for one in usable]
    logs = [one.logs for one in usable]
    adjusted = steps(logs, [one.hosts for one in usable], numbers, false_share=false_share)
    results = [
        [(step, confounders(one.runs, step)) for step in every] for one, every in zip(usable, adjusted, strict=True)
    ]
    mixed = [index for index, one in enumerate(usable) if one.hosts.any()]
    blind = steps([logs[p] for p in mixed], None, [numbers[p] for p in mixed], false_share=false_share)
    for index, every in zip(mixed, blind, strict=True):
        for step in every:
            by = confounders(usable[index].runs, step)
            if by and not any(abs(step.first - other.first) <= SAME_STEP for other, _ in results[index]):
                results[index].append((step, by))
        results[index].sort(key=lambda pair: pair[0].first)
    return results


def _told(one: Usable, step: Step, confounded: tuple[str, ...], minimum_effect: float) -> Stepped:
    course, runs = one.course, one.runs
    sense = sense_of(course.key.quantity, course.unit)
    up, down = WORDS[sense]
    verdict = up if step.way > 0 else down
    ratio = Estimate(
        value=float(np.exp(step.size)),
        low=float(np.exp(step.low)),
        high=float(np.exp(step.high)),
        unit="×",
        scope="machine" if one.hosts.any() else "run",
        method=METHOD,
        n=len(runs) - step.first,
    )
    return Stepped(
        key=course.name,
        what=course.key.label,
        where=course.key.where,
        details=course.key.details,
        quantity=course.key.quantity,
        unit=course.unit,
        standing=_standing(step, confounded, minimum_effect) or _judged(WORSE[sense], verdict),
        verdict=verdict,
        ratio=ratio,
        before=float(np.exp(np.median(one.logs[max(0, step.first - HISTORY) : step.first]))),
        first_bad=_moment(runs[step.first]),
        last_good=_moment(runs[step.first - 1]),
        earliest=_moment(runs[step.first_low]),
        latest=_moment(runs[step.first_high]),
        told=_moment(runs[step.told]),
        runs_after=len(runs) - step.first,
        chance=step.chance,
        confounded_by=confounded,
        beside=others(runs, step),
    )


def _standing(step: Step, confounded: tuple[str, ...], minimum_effect: float) -> Standing | None:
    """Say why a step is not to be judged; null when it is."""
    if not step.stands:
        return "maybe chance"
    if confounded:
        return "confounded"
    error = (step.high - step.low) / (2 * 1.96)
    if step.left * step.way + error < TAKEN_BACK * abs(step.size):
        return "taken back"
    return "small" if abs(step.size) < np.log1p(minimum_effect) else None


def _judged(worse: Verdict | None, verdict: Verdict) -> Standing:
    if worse is None:
        return "change"
    return "regression" if verdict == worse else "improvement"


def _drifted(one: Usable) -> bool:
    """Return whether a series ended far from where it began, by its own noise from run to run."""
    half = min(HISTORY, len(one.logs) // 2)
    moved = abs(float(np.median(one.logs[-half:]) - np.median(one.logs[:half])))
    noise = 1.4826 * float(np.median(np.abs(np.diff(one.logs)))) / np.sqrt(2)
    return bool(moved > max(DRIFT, FAR * noise))


def _moment(run: Run) -> Moment:
    return Moment(
        run=run.id,
        began_at=datetime.fromtimestamp(run.started_s, UTC),
        commit=run.git_commit,
        dirty=run.git_dirty,
        folder=run.folder,
    )


def _order(step: Stepped) -> tuple[int, float]:
    ranks: tuple[Standing, ...] = (
        "regression", "confounded", "change", "improvement", "taken back", "small", "maybe chance"
    )  # fmt: skip
    return ranks.index(step.standing), -abs(float(np.log(step.ratio.value)))
