"""Thresholds held against earlier ones: one that rose beyond its interval is a regression.

    size          32     64     128    256
    baseline      ✗      ✓      ✓      ✓       from 64 on
    now           ✗      ✗      ?      ✓       it fails at 64, so that it rose
    now           ✗      ?      ?      ✓       it may still be from 64 on: whether it rose cannot be told

A baseline is a run folder, results of ``assay threshold run`` or of the older tool, or plain keys with their values.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.core.durable import read_json, read_yaml
from assay.core.errors import BadInput, nearest
from assay.experiments.differences import describe, differences
from assay.experiments.threshold import saved
from assay.experiments.threshold.identity import identity_of, shared_with
from assay.experiments.threshold.older import FILE
from assay.experiments.threshold.words import in_words
from assay.store.identity import details_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from assay.core.results import Verdict
    from assay.experiments.threshold.answers import Answer
    from assay.experiments.threshold.form import Entry
    from assay.experiments.threshold.options import Threshold, ThresholdOptions
    from assay.store.identity import Identity


@dataclass(frozen=True)
class Before:
    """One threshold as it was: the largest it may have been, infinite for never; null where that was not known."""

    highest: float | None
    said: str
    margin: float | None = None
    decided_on: str | None = None


@dataclass(frozen=True)
class Baseline:
    """Thresholds as they were, by their keys or the last parts of these, and where they were measured.

    ``identity`` and ``points``, the sizes and parameters of each key's grid, are those of results of this tool.
    """

    path: Path
    device_name: str | None
    thresholds: Mapping[str, Before]
    identity: Identity | None = None
    points: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of(self, key: str) -> Before | None:
        """Return what was known of a key."""
        return self.thresholds.get(key) or self.thresholds.get(key.rpartition(".")[2])


@dataclass(frozen=True)
class Compared:
    """One threshold against its baseline: yes, it rose; no, it did not; or that cannot be told."""

    name: str
    rose: Verdict
    said: str


def read(path: Path) -> Baseline:
    """Return the baseline in a folder or a file.

    Raises:
        BadInput: It cannot be read, or holds no thresholds.
    """
    if path.is_dir():
        return _results(path)
    content = read_yaml(path) if path.suffix in {".yaml", ".yml"} else read_json(path)
    if not isinstance(content, dict) or not content:
        raise BadInput(f"{path} holds no thresholds: it must map keys to values.")
    if "thresholds" in content or "schema" in content:
        return _results(path)
    if isinstance(content.get("recommendation"), dict):
        device = content.get("device_info")
        name = device.get("device_name") if isinstance(device, dict) else None
        return Baseline(path, str(name) if name is not None else None, _plain(content["recommendation"], path))
    return Baseline(path, None, _plain(content, path))


def _results(path: Path) -> Baseline:
    saved_results = saved.read(path)
    if saved_results.results is None:
        raise BadInput(f"{path} holds no {FILE} of this version.")
    entries = {entry.key: _entry(entry) for entry in saved_results.results.thresholds}
    points = {threshold.key: _points(threshold) for threshold, _ in saved_results.thresholds}
    return Baseline(path, saved_results.device.device_name, entries, saved_results.results.identity, points)


def _points(threshold: Threshold) -> frozenset[str]:
    return frozenset(json.dumps([point.size, point.params], sort_keys=True) for point in threshold.points)


def _entry(entry: Entry) -> Before:
    highest = math.inf if entry.decision == "disable" else None
    if entry.decision == "threshold" and entry.high is not None:
        highest = float(entry.high)
    text = {"disable": "never", "unsure": "not known", "threshold": f"from {entry.high} on"}[entry.decision]
    return Before(highest if entry.parity == "passed" else None, text, entry.margin, entry.decided_on)


def _plain(content: Any, path: Path, within: str = "") -> dict[str, Before]:
    """Return a mapping of keys to numbers, which may be nested as a configuration is; null is not known."""
    result: dict[str, Before] = {}
    for key, value in content.items():
        name = f"{within}{key}"
        if isinstance(value, dict):
            result |= _plain(value, path, f"{name}.")
        elif value is None:
            result[name] = Before(None, "not known")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            result[name] = Before(float(value), f"from {value:g} on")
    if not result and not within:
        raise BadInput(f"{path} holds no thresholds: none of its values is a number.")
    return result


def check(baseline: Baseline, options: ThresholdOptions, device_name: str | None) -> list[str]:
    """Return what is to be said of a baseline before anything is measured.

    Raises:
        BadInput: It is of another device, another margin, another time or other work, knows none of the thresholds, or
            no measurement could ever show that one rose.
    """
    if baseline.device_name is not None and device_name is not None and baseline.device_name != device_name:
        raise BadInput(
            f"{baseline.path} was measured on {baseline.device_name}, and this is {device_name}: thresholds of one say "
            "nothing about the other."
        )
    keys = [threshold.key for threshold in options.thresholds]
    if not any(baseline.of(key) for key in keys):
        near = nearest(keys[0].rpartition(".")[2], baseline.thresholds)
        raise BadInput(f"{baseline.path} has none of {', '.join(keys)}.{near}")
    for threshold in options.thresholds:
        _comparable(baseline, baseline.of(threshold.key), threshold.margin, options.decide_on)
        _same_points(baseline, threshold)
    _same_work(baseline, options)
    _can_rise(baseline, options)
    missing = [key for key in keys if baseline.of(key) is None]
    unknown = [f"{baseline.path} does not say on which device it was measured."] if baseline.device_name is None else []
    return [*unknown, *(f"{baseline.path} does not have {key}, which is not judged." for key in missing)]


def _comparable(baseline: Baseline, before: Before | None, margin: float, decide_on: str) -> None:
    if before is None:
        return
    if before.margin is not None and before.margin != margin:
        raise BadInput(
            f"{baseline.path} is of the safety margin {before.margin:g}, and {margin:g} is asked for; "
            f"--safety-margin {before.margin:g} compares like with like."
        )
    if before.decided_on is not None and before.decided_on != decide_on:
        raise BadInput(
            f"{baseline.path} was decided on {before.decided_on}, and {decide_on} is asked for; "
            f"--decide-on {before.decided_on} compares like with like."
        )


def _same_work(baseline: Baseline, options: ThresholdOptions) -> None:
    if baseline.identity is None:
        return
    names = {threshold.name for threshold in options.thresholds if baseline.of(threshold.key) is not None}
    before, now = (shared_with(identity, names) for identity in (baseline.identity, identity_of(options)))
    different = differences(details_in(before), details_in(now))
    if different:
        raise BadInput(f"{baseline.path} is not comparable: {describe(different)}.")


def _same_points(baseline: Baseline, threshold: Threshold) -> None:
    before = baseline.points.get(threshold.key)
    if before is not None and not before & _points(threshold):
        raise BadInput(f"{baseline.path} is not comparable: no point of the grid of {threshold.name} is in both.")


def _can_rise(baseline: Baseline, options: ThresholdOptions) -> None:
    """Refuse a gate that could never say no: it is not known where thresholds were, or no size is as large as that."""
    pairs = [(t, before) for t in options.thresholds if (before := baseline.of(t.key)) is not None]
    if all(before.highest is None for _, before in pairs):
        raise BadInput(f"{baseline.path} does not say where a threshold was, so that none could be seen to rise.")
    sized = [(t, before.highest) for t, before in pairs if before.highest is not None]
    finite = [(t, highest) for t, highest in sized if math.isfinite(highest)]
    if finite and len(finite) == len(sized) and all(highest > max(t.sizes) for t, highest in finite):
        threshold, highest = finite[0]
        raise BadInput(
            f"{threshold.name} was from {highest:g} on in {baseline.path}, and no larger size than "
            f"{max(threshold.sizes):g} is measured, so that it could not be seen to rise; leave --sizes out, or name "
            "larger ones."
        )


def compare(answers: Sequence[Answer], baseline: Baseline) -> list[Compared]:
    """Return for each threshold that the baseline has whether it rose."""
    return [_compared(answer, before) for answer in answers if (before := baseline.of(answer.key)) is not None]


def _compared(found: Answer, before: Before) -> Compared:
    text = f"{found.name} was {before.said}, and is {in_words(found.place)}"
    location, highest = found.place, before.highest
    if highest is not None and location.high is not None and location.high <= highest:
        return Compared(found.name, "no", f"{text}: it did not rise")
    if highest is not None and location.fails is not None and location.fails >= highest:
        return Compared(found.name, "yes", f"{text}: it rose")
    return Compared(found.name, "unsure", f"{text}: whether it rose cannot be told")
