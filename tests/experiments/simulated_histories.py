"""Histories that are made up: series of a run a day, with what was planted in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.store.history.database import HistoryDatabase, HistoryPoint, HistoryRun, RunHistory, RunState
from assay.store.history.importing import ImportResult, write_runs
from assay.store.identity import SeriesKey, canonical_json, series_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from assay.store.history.database import HistoryLocation

FIRST_S = 1_760_000_000.0
DAY_S = 86400.0


@dataclass
class Made:
    """A history: log values by series and day, and what each day's run was on.

    ``host``, ``driver``, ``commit`` and ``method`` tell of a day.
    """

    logs: NDArray[np.float64]
    quantity: str = "call_us"
    host: Callable[[int], str] = field(default=lambda _: "host-a")
    driver: Callable[[int], str] = field(default=lambda _: "570.1")
    commit: Callable[[int], str] = field(default=lambda day: f"{day:010x}{0:030x}")
    method: Callable[[int], str] = field(default=lambda _: "median")
    disturbed: frozenset[int] = frozenset()

    def told(self) -> list[RunHistory]:
        """Return every day's run as the history keeps it."""
        return [
            self._told(day, [self._key(number, self.method(day)) for number in range(len(self.logs))])
            for day in range(self.logs.shape[1])
        ]

    def _key(self, number: int, method: str) -> tuple[str, SeriesKey]:
        described = {
            "workload": "softmax",
            "impl": "numpy",
            "params": {"rows": number},
            "config": None,
            "project": None,
            "location": "a CPU, 2 cores",
            "gpu": None,
            "device": "cpu:0",
            "device_kind": "cpu",
            "conditions": {"isolation": "full"},
        }
        return series_key(canonical_json(described), self.quantity, method)

    def _told(self, day: int, keys: Sequence[tuple[str, SeriesKey]]) -> RunHistory:
        values = np.exp(self.logs[:, day])
        run = HistoryRun(
            id=f"{day:012x}",
            experiment="run",
            started_s=FIRST_S + day * DAY_S,
            host=self.host(day),
            hostname=None,
            host_class="a CPU, 2 cores",
            driver=self.driver(day),
            git_commit=self.commit(day),
            git_dirty=False,
            versions={"assay": "0.1"},
            options_digest="0",
            origin="real",
            folder=f"/runs/{day}",
            headline="",
            trials=len(keys),
            failed=0,
        )
        points = {
            name: HistoryPoint(float(value), None, None, 9, "process", "ok", None, day in self.disturbed)
            for (name, _), value in zip(keys, values, strict=True)
            if np.isfinite(value)
        }
        return RunHistory(run, RunState(run.id, 1, "0"), dict(keys), points)


def filled(made: Made, place: HistoryLocation | None = None) -> HistoryDatabase:
    """Return a history that holds these runs."""
    database = HistoryDatabase.open() if place is None else HistoryDatabase.open(place)
    with database.writing() as connection:
        write_runs(connection, made.told(), ImportResult())
    return database


def noise(series: int, days: int, *, seed: int, sigma: float = 0.03, rho: float = 0.0) -> NDArray[np.float64]:
    """Return log values that do not change: a level each, and noise that may resemble the day before."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((series, days))
    for day in range(1, days):
        found[:, day] = rho * found[:, day - 1] + np.sqrt(1 - rho**2) * found[:, day]
    return np.asarray(rng.uniform(0, 8, (series, 1)) + sigma * found, dtype=np.float64)
