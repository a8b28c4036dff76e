"""Whether a series of runs has become slower, told as early as it can be without crying wolf.

``levels.py`` predicts each run from those before it. "A step since run τ" is the same prediction with one unknown more
from τ on. Both predict every run after τ; how much better the step predicts them, all ρ weighed by how well they fit,
is the evidence. It is looked at after each run, as it would be in a real history, and the alarm level is set from
simulations such that a hundred stable runs give an alarm in less than one of fifty series.

A history holds many series of one kind: how much runs resemble each other, which one short series says badly, is
learnt from all of them together.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from assay.stats.kinds import RHO, Kinds, Usual
from assay.stats.levels import BEGINNING, Known, after, begin, seen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Places = NDArray[np.int64]

Way = Literal[1, -1]
UP: Way = 1
DOWN: Way = -1

STEPS = np.log1p(np.array([0.05, 0.10, 0.22, 0.75]))
STEPS_BEFORE = np.array([0.44, 0.44, 0.09, 0.03])
SPREAD = np.array([0.35, 0.35, 0.35, 0.9])
"""Of a step's size: how far it may be from those four."""

HISTORY = BEGINNING
"""Runs before the first that may be called a step."""
REACH = 20
"""Runs that a step may lie back."""
CONFIRMED_BY = 4
"""Runs from the step on before it is told: two spikes in a row are not rare."""
WANDERING, ALONE = 1.4, 2.4
"""Evidence that is taken off for each unit of ρ, as noise that wanders looks like steps: for a large kind, and how much
more for a series that has none beside it."""
ALARM = 5.9
"""Evidence, as a logarithm, from which on a step is told."""
FEWEST = 10
"""Runs after which the noise of a kind is learnt."""
WORTH, LOWEST, HIGHEST = 2.5, -2.0, 4.0
"""A step is followed where the runs from it on are together so many standard errors beyond the level, each counting for
no less and no more than the other two; one that is as far as the last on the wrong side is a spike, and is left out."""
VAGUE = 0.2
"""Variance, in units of the noise's, beyond which a host's level is not known well enough to leave a step out."""
AT_ONCE = 3000
"""Steps that are followed together, for the memory it takes."""


@dataclass(frozen=True)
class Evidence:
    """For every series and run: the best evidence for a step that is told there, its first run, size and error."""

    log_odds: Samples
    first: Places
    size: Samples
    error: Samples


@dataclass(frozen=True)
class _Series:
    """Series as they are looked at: log times, hosts, how well each ρ fits up to each run, and what their kind says.

    ``weights`` and ``usual`` are what was known of the kind before each run.
    """

    logs: Samples
    names: Places
    hosts: int
    fits: Samples
    weights: Samples
    usual: Usual
    wandering: Samples


@dataclass(frozen=True)
class _Begun:
    """Steps that may have begun: in which series, at which run, and what was known before it."""

    row: Places
    first: Places
    known: Known


class Looked:
    """Series that were looked at: the evidence for a step after each run of each, for each way it may go."""

    def __init__(
        self, logs: Samples, hosts: Places | None = None, kinds: Places | None = None, *, ways: Sequence[Way] = (UP,)
    ) -> None:
        """Look at series.

        Args:
            logs: Log times, a series a row, NaN behind its end.
            hosts: Which host each run was on, from 0; null: one host.
            kinds: Which series are of one kind, from 0; null: all of them.
            ways: Steps up, steps down, or both.
        """
        names = np.zeros(logs.shape, dtype=np.int64) if hosts is None else hosts
        of_kind = np.zeros(len(logs), dtype=np.int64) if kinds is None else kinds
        self._series, begun = _learn(logs, names, Kinds(of_kind), ways)
        self._begun = dict(zip(ways, begun, strict=True))
        self.evidence: dict[Way, Evidence] = {direction: _nothing(logs.shape) for direction in ways}
        parts = [(direction, part) for direction, steps in self._begun.items() for part in _parts(steps)]
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
            begun_parts = [
                threads.submit(_follow, self.evidence[direction], part, direction, self._series)
                for direction, part in parts
            ]
            try:
                for done in begun_parts:
                    done.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def beginnings(self, row: int, way: Way, run: int) -> tuple[Places, Samples]:
        """Return with which runs a step may have begun, given a series up to a run, and how likely each is."""
        steps = self._begun[way]
        near = (steps.row == row) & (steps.first <= run - CONFIRMED_BY + 1) & (steps.first > run - REACH)
        begun = _Begun(steps.row[near], steps.first[near], steps.known.of(near))
        odds = np.full(len(begun.row), -np.inf)
        for look in _followed(begun, way, self._series):
            here = look.there & (look.run == run)
            odds[here] = look.odds[here]
        return begun.first, np.asarray(special.softmax(odds), dtype=np.float64)


def _parts(steps: _Begun) -> Iterator[_Begun]:
    """Part steps so that each part has series of its own: they are followed side by side."""
    order = np.argsort(steps.row, kind="stable")
    starts = np.flatnonzero(np.diff(steps.row[order], prepend=-1))
    cuts = [0]
    for start in starts[1:]:
        if start - cuts[-1] >= AT_ONCE:
            cuts.append(int(start))
    for low, high in pairwise([*cuts, len(order)]):
        part = order[low:high]
        if len(part):
            yield _Begun(steps.row[part], steps.first[part], steps.known.of(part))


def _nothing(shape: tuple[int, ...]) -> Evidence:
    return Evidence(np.full(shape, -np.inf), np.full(shape, -1, dtype=np.int64), np.zeros(shape), np.zeros(shape))


def _learn(logs: Samples, names: Places, kinds: Kinds, ways: Sequence[Way]) -> tuple[_Series, list[_Begun]]:
    """Return what is known of the series before each run, and where steps may have begun."""
    count = int(names.max()) + 1 if names.size else 1
    rows, runs = logs.shape
    state, rho = begin(logs, names, count), np.broadcast_to(RHO, (rows, len(RHO)))
    fits, weights = np.zeros((runs + 1, rows, len(RHO))), np.zeros((runs, rows, len(RHO)))
    usual = Usual.nothing(runs + REACH, rows, len(RHO))
    worth: list[list[Places]] = [[] for _ in ways]
    states: list[list[Known]] = [[] for _ in ways]
    for run in range(runs):
        if run >= FEWEST:
            usual.put(run + REACH, kinds.noise(state.freedom, state.squares, state.spikes, state.plain))
        if run >= HISTORY:
            weights[run] = np.log(kinds.rho(fits[run]))
            ahead = slice(run, run + REACH)
            beyond, vague = _beyond(state, usual.of(run), fits[run], logs[:, ahead], names[:, ahead])
            for index, direction in enumerate(ways):
                worth[index].append(np.flatnonzero(_worth(direction * beyond, vague)))
                states[index].append(state.of(worth[index][-1]))
        made_of = seen(names[:, run], count)[:, None, :]
        density, state = after(state, usual.of(run), rho, made_of, logs[:, run, None])
        fits[run + 1] = fits[run] + density
    series = _Series(logs, names, count, fits, weights, usual, WANDERING + ALONE / np.sqrt(kinds.sizes))
    return series, [_begun(*collected) for collected in zip(worth, states, strict=True)]


def _begun(rows: list[Places], states: list[Known]) -> _Begun:
    firsts = [np.full(len(row), HISTORY + offset) for offset, row in enumerate(rows)]
    if not rows:
        return _Begun(np.array([], dtype=np.int64), np.array([], dtype=np.int64), Known(*(np.zeros((0,)),) * 6))
    return _Begun(np.concatenate(rows), np.concatenate(firsts), Known.joined(states))


def _beyond(
    known: Known, usual: Usual, fits: Samples, logs: Samples, names: Places
) -> tuple[Samples, NDArray[np.bool_]]:
    """Return how far runs are from where they should be, in units of the noise, and where that is not known well.

    Args:
        known: Before these runs.
        usual: What noise is usual for their kinds.
        fits: How well each ρ fits so far; the best is taken.
        logs: Log times of these runs.
        names: Their hosts.
    """
    rows = np.arange(len(logs))
    best_rho = (rows, fits.argmax(axis=1))
    best, noise = known.of(best_rho), np.sqrt(known.of(best_rho).variance(usual.of(best_rho)))
    made_of = seen(names.ravel(), known.mean.shape[-1] - 1).reshape(*names.shape, -1)
    made_of[..., 0] = 0.0
    level = np.einsum("rtk,rk->rt", made_of, best.mean)
    vague = np.einsum("rtk,rkl,rtl->rt", made_of, best.spread, made_of) > VAGUE
    return np.asarray((logs - level) / noise[:, None], dtype=np.float64), vague


def _worth(beyond: Samples, vague: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where a step may have begun with the first of some runs, given how far they are the right way."""
    counted = np.where(vague & np.isfinite(beyond), HIGHEST, np.clip(beyond, LOWEST, HIGHEST))
    weight = np.where(beyond < -HIGHEST, 0.0, np.where(np.isfinite(beyond), 1.0, np.nan))
    runs = np.maximum(np.cumsum(weight, axis=1), 1.0)
    together = (np.cumsum(weight * counted, axis=1) / np.sqrt(runs))[:, CONFIRMED_BY - 1 :]
    return np.isfinite(beyond[:, 0]) & (np.where(np.isfinite(together), together, -np.inf) > WORTH).any(axis=1)


def _with_step(known: Known, usual: Usual, way: Way) -> Known:
    """Return the same knowledge with a step of unknown size beginning now, for each of the likely sizes."""
    steps, old = len(STEPS), known.mean.shape[-1]
    shape = (*known.freedom.shape, steps)
    mean, spread = np.zeros((*shape, old + 1)), np.zeros((*shape, old + 1, old + 1))
    mean[..., :old], mean[..., old] = known.mean[..., None, :], way * STEPS
    spread[..., :old, :old] = known.spread[..., None, :, :]
    spread[..., old, old] = (SPREAD * STEPS) ** 2 / known.variance(usual)[..., None]
    rest = (
        np.repeat(part[..., None], steps, axis=-1) for part in (known.freedom, known.squares, known.spikes, known.plain)
    )
    return Known(mean, spread, *rest)


@dataclass(frozen=True)
class _Look:
    """What is known of some steps after one more run: which run, whether it was there, the evidence, and the sizes."""

    run: Places
    there: NDArray[np.bool_]
    odds: Samples
    known: Known
    usual: Usual
    total: Samples


def _followed(begun: _Begun, way: Way, series: _Series) -> Iterator[_Look]:
    """Follow steps for as long as they may lie back, and tell what is known of each after each run."""
    row, first = begun.row, begun.first
    state = _with_step(begun.known, series.usual.of((first, row)), way)
    rho = np.broadcast_to(RHO[:, None], state.freedom.shape)
    weights = series.weights[first, row]
    total = np.repeat((series.fits[first, row] + weights)[..., None], len(STEPS), axis=2) + np.log(STEPS_BEFORE)
    wandering = series.wandering[row] * (special.softmax(series.fits[first, row] + weights, axis=1) @ RHO)
    for since in range(REACH):
        run = np.minimum(first + since, series.logs.shape[1] - 1)
        value = np.where(first + since == run, series.logs[row, run], np.nan)
        made_of = np.concatenate([seen(series.names[row, run], series.hosts), np.ones((len(row), 1))], axis=1)
        usual = series.usual.of((run, row)).of((..., None))
        density, state = after(state, usual, rho, made_of[:, None, None, :], value[:, None, None])
        total = total + density
        if since + 1 < CONFIRMED_BY:
            continue
        odds = _log_sum(total) - _log_sum(series.fits[run + 1, row] + weights) - wandering
        yield _Look(run, np.isfinite(value), odds, state, usual, total)


def _follow(found: Evidence, begun: _Begun, way: Way, series: _Series) -> None:
    """Follow steps, and keep where each is the best told."""
    row, first = begun.row, begun.first
    for look in _followed(begun, way, series):
        better = np.flatnonzero(look.there & (look.odds > found.log_odds[row, look.run]))
        size, error = _size(look.known.of(better), look.usual.of(better), look.total[better])
        right = way * size > 0  # a large step is explained by one the other way, begun a run too early, before its own
        better, size, error = better[right], size[right], error[right]
        at = row[better], look.run[better]
        found.log_odds[at], found.first[at], found.size[at] = look.odds[better], first[better], size
        found.error[at] = error


def _log_sum(values: Samples) -> Samples:
    flat = values.reshape(len(values), -1)
    return np.asarray(special.logsumexp(flat, axis=1), dtype=np.float64)


def _size(known: Known, usual: Usual, total: Samples) -> tuple[Samples, Samples]:
    """Return a step's size and its standard error, over all ρ and sizes as likely as they are."""
    weight = np.exp(total - total.max(axis=(1, 2), keepdims=True))
    weight /= weight.sum(axis=(1, 2), keepdims=True)
    sizes, variance = known.mean[..., -1], known.spread[..., -1, -1] * known.variance(usual)
    size = (weight * sizes).sum(axis=(1, 2))
    spread = (weight * (variance + (sizes - size[:, None, None]) ** 2)).sum(axis=(1, 2))
    return size, np.sqrt(spread)
