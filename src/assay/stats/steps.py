"""Whether a series of runs has become slower, told as early as it can be without crying wolf.

``levels.py`` predicts each run from those before it. "A step since run τ" is the same prediction with one unknown more
from τ on. Both predict every run after τ; how much better the step predicts them, all ρ weighed by how well they fit,
is the evidence. It is looked at after each run, as it would be in a real history, and the alarm level is set from
simulations such that a hundred stable runs give an alarm in less than one of fifty series.

A history holds many series of one kind: how much runs resemble each other, which one short series says badly, is
learnt from all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from assay.stats.kinds import Usual, shared_rho, usual_noise
from assay.stats.levels import BEGINNING, RHO, Known, after, begin, seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Places = NDArray[np.int64]

Way = Literal[1, -1]
UP, DOWN = 1, -1

STEPS = np.log1p(np.array([0.05, 0.10, 0.22]))
STEPS_BEFORE = np.array([0.45, 0.45, 0.10])
SPREAD = 0.35
"""Of a step's size: how far it may be from those three."""

HISTORY = BEGINNING
"""Runs before the first that may be called a step."""
REACH = 20
"""Runs that a step may lie back."""
CONFIRMED_BY = 3
"""Runs from the step on before it is told: two spikes in a row are not rare."""
ALARM = 6.9
"""Evidence, as a logarithm, from which on a step is told."""
FEWEST = 10
"""Runs after which the noise of a kind is learnt."""
WORTH, LOWEST, HIGHEST = 2.5, -2.0, 4.0
"""A step is followed where the runs from it on are together so many standard errors beyond the level, each counting for
no less and no more than the other two; one that is as far as the last on the wrong side is a spike, and is left out."""
VAGUE = 0.2
"""Variance, in units of the noise's, beyond which a host's level is not known well enough to leave a step out."""
AT_ONCE = 4000
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


@dataclass(frozen=True)
class _Begun:
    """Steps that may have begun: in which series, at which run, and what was known before it."""

    row: Places
    first: Places
    known: Known


def evidence(
    logs: Samples, hosts: Places | None = None, kinds: Places | None = None, *, ways: Sequence[Way] = (UP,)
) -> list[Evidence]:
    """Return the evidence for a step after each run of each series, for each way it may go.

    Args:
        logs: Log times, a series a row, NaN behind its end.
        hosts: Which host each run was on, from 0; null: one host.
        kinds: Which series are of one kind, from 0; null: all of them.
        ways: Steps up, steps down, or both.
    """
    names = np.zeros(logs.shape, dtype=np.int64) if hosts is None else hosts
    of_kind = np.zeros(len(logs), dtype=np.int64) if kinds is None else kinds
    count = int(names.max()) + 1 if names.size else 1
    fits, usual, begun = _learn(logs, names, of_kind, ways)
    series = _Series(logs, names, count, fits, _weights(fits, of_kind), usual)
    found = []
    for way, steps in zip(ways, begun, strict=True):
        told = _nothing(logs.shape)
        for start in range(0, len(steps.row), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            _follow(told, _Begun(steps.row[part], steps.first[part], steps.known.of(part)), way, series)
        found.append(told)
    return found


def _nothing(shape: tuple[int, ...]) -> Evidence:
    return Evidence(np.full(shape, -np.inf), np.full(shape, -1, dtype=np.int64), np.zeros(shape), np.zeros(shape))


def _learn(
    logs: Samples, names: Places, kinds: Places, ways: Sequence[Way]
) -> tuple[Samples, Usual, list[_Begun]]:
    """Return how well each ρ fits the runs before each, what noise is usual, and where steps may have begun."""
    count = int(names.max()) + 1 if names.size else 1
    known, rho = begin(logs, count), np.broadcast_to(RHO, (len(logs), len(RHO)))
    fits = np.zeros((logs.shape[1] + 1, len(logs), len(RHO)))
    usual = Usual(np.zeros((logs.shape[1] + REACH, len(logs), len(RHO))), np.zeros((logs.shape[1] + REACH, len(logs), len(RHO))))
    rows: list[list[Places]] = [[] for _ in ways]
    states: list[list[Known]] = [[] for _ in ways]
    for run in range(logs.shape[1]):
        if run >= FEWEST:
            _learn_usual(usual, run + REACH, known, kinds)
        if run >= HISTORY:
            beyond, vague = _beyond(known, usual.of(run), fits[run], logs[:, run : run + REACH], names[:, run : run + REACH])
            for place, way in enumerate(ways):
                rows[place].append(np.flatnonzero(_worth(way * beyond, vague)))
                states[place].append(known.of(rows[place][-1]))
        made_of = seen(names[:, run], count)[:, None, :]
        density, known = after(known, usual.of(run), rho, made_of, logs[:, run, None])
        fits[run + 1] = fits[run] + density
    return fits, usual, [_begun(*each) for each in zip(rows, states, strict=True)]


def _learn_usual(usual: Usual, run: int, known: Known, kinds: Places) -> None:
    """Keep what is known now of the noise of each kind for the run that is as far ahead as a step may reach."""
    for kind in np.unique(kinds):
        of_kind = kinds == kind
        found = usual_noise(known.freedom[of_kind], known.squares[of_kind])
        usual.freedom[run, of_kind], usual.squares[run, of_kind] = found.freedom, found.squares


def _begun(rows: list[Places], states: list[Known]) -> _Begun:
    firsts = [np.full(len(row), HISTORY + place) for place, row in enumerate(rows)]
    if not rows:
        return _Begun(np.array([], dtype=np.int64), np.array([], dtype=np.int64), Known(*(np.zeros((0,)),) * 6))
    return _Begun(np.concatenate(rows), np.concatenate(firsts), Known.joined(states))


def _beyond(
    known: Known, usual: Usual, fits: Samples, logs: Samples, names: Places
) -> tuple[Samples, NDArray[np.bool_]]:
    """Return how far runs are from where they should be, in units of the noise, and where that is not known well.

    Args:
        known: Before these runs.
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


def _weights(fits: Samples, kinds: Places) -> Samples:
    """Return the logarithm of what each series' kind says of each ρ, before each run."""
    found = np.empty_like(fits)
    for kind in np.unique(kinds):
        found[:, kinds == kind] = np.log(shared_rho(fits[:, kinds == kind]))[:, None, :]
    return found


def _with_step(known: Known, usual: Usual, way: Way) -> Known:
    """Return the same knowledge with a step of unknown size beginning now, for each of the likely sizes."""
    steps, old = len(STEPS), known.mean.shape[-1]
    shape = (*known.freedom.shape, steps)
    mean, spread = np.zeros((*shape, old + 1)), np.zeros((*shape, old + 1, old + 1))
    mean[..., :old], mean[..., old] = known.mean[..., None, :], way * STEPS
    spread[..., :old, :old] = known.spread[..., None, :, :]
    spread[..., old, old] = (SPREAD * STEPS) ** 2 / known.variance(usual)[..., None]
    rest = (
        np.repeat(each[..., None], steps, axis=-1) for each in (known.freedom, known.squares, known.spikes, known.plain)
    )
    return Known(mean, spread, *rest)


def _follow(found: Evidence, begun: _Begun, way: Way, series: _Series) -> None:
    """Follow steps for as long as they may lie back, and keep where each is the best told."""
    row, first = begun.row, begun.first
    known = _with_step(begun.known, series.usual.of((first, row)), way)
    rho = np.broadcast_to(RHO[:, None], known.freedom.shape)
    weights = series.weights[first, row]
    total = np.repeat((series.fits[first, row] + weights)[..., None], len(STEPS), axis=2) + np.log(STEPS_BEFORE)
    for since in range(REACH):
        run = np.minimum(first + since, series.logs.shape[1] - 1)
        value = np.where(first + since == run, series.logs[row, run], np.nan)
        made_of = np.concatenate([seen(series.names[row, run], series.hosts), np.ones((len(row), 1))], axis=1)
        usual = series.usual.of((run, row)).of((..., None))
        density, known = after(known, usual, rho, made_of[:, None, None, :], value[:, None, None])
        total = total + density
        if since + 1 < CONFIRMED_BY:
            continue
        odds = _log_sum(total) - _log_sum(series.fits[run + 1, row] + weights)
        better = np.isfinite(value) & (odds > found.log_odds[row, run])
        at = row[better], run[better]
        size, error = _size(known.of(better), usual.of(better), total[better])
        found.log_odds[at], found.first[at], found.size[at], found.error[at] = odds[better], first[better], size, error


def _log_sum(values: Samples) -> Samples:
    flat = values.reshape(len(values), -1)
    return np.asarray(special.logsumexp(flat, axis=1), dtype=np.float64)


def _size(known: Known, usual: Usual, total: Samples) -> tuple[Samples, Samples]:
    """Return a step's size and its standard error, over all ρ and sizes as likely as they are."""
    weight = np.exp(total - total.max(axis=(1, 2), keepdims=True))
    weight /= weight.sum(axis=(1, 2), keepdims=True)
    each, variance = known.mean[..., -1], known.spread[..., -1, -1] * known.variance(usual)
    size = (weight * each).sum(axis=(1, 2))
    spread = (weight * (variance + (each - size[:, None, None]) ** 2)).sum(axis=(1, 2))
    return size, np.sqrt(spread)
