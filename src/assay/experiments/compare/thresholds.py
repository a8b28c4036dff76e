"""Compare thresholds with earlier ones: one that rose beyond its interval is a regression.

    size          32     64     128    256
    baseline      ✗      ✓      ✓      ✓       from 64 on
    now           ✗      ✗      ?      ✓       it fails at 64: it rose
    now           ✗      ?      ?      ✓       it may still be from 64 on: unsure

A baseline is a run folder, results of ``assay threshold run`` or of the older tool, or plain keys with their values.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.errors import BadInput, suggest_nearest
from assay.core.files import read_json
from assay.core.results import Verdict
from assay.core.values import Value
from assay.core.yaml_input import read_yaml
from assay.experiments.compare.pairing import THRESHOLD_QUANTITY, describe_differences, find_differences
from assay.experiments.threshold import results_file as saved
from assay.experiments.threshold.answers import build_answer, describe_location
from assay.experiments.threshold.results_file import RESULTS_FILE, build_identity, select_identity
from assay.store.identity import identity_details

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.experiments.compare.pairing import ResultTable
    from assay.experiments.threshold.answers import ThresholdAnswer
    from assay.experiments.threshold.spec import Threshold, ThresholdOptions
    from assay.store.identity import Identity


RISE_TEXTS: dict[Verdict, str] = {"yes": "it rose", "no": "it did not rise", "unsure": "inconclusive"}


@dataclass(frozen=True)
class BaselineThreshold:
    """One threshold as it was: the largest it may have been, infinite for never; null where that was not known."""

    highest: float | None
    text: str
    margin: float | None = None
    decided_on: str | None = None


@dataclass(frozen=True)
class ThresholdBaseline:
    """Thresholds as they were, by their keys or the last parts of these, and where they were measured.

    ``identity`` and ``points``, the sizes and parameters of each key's grid, are those of results of this tool.
    """

    path: Path
    device_name: str | None
    thresholds: Mapping[str, BaselineThreshold]
    identity: Identity | None = None
    points: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def threshold_of(self, key: str) -> BaselineThreshold | None:
        """Return what was known of a key."""
        return self.thresholds.get(key) or self.thresholds.get(key.rpartition(".")[2])


class ThresholdRise(Value):
    """Whether a threshold rose: yes, no, or unsure."""

    name: str
    against: str = Field(description="The result that is compared with the baseline.")
    rose: Verdict
    text: str


def read_baseline(path: Path) -> ThresholdBaseline:
    """Return the baseline in a folder or a file.

    Raises:
        BadInput: It cannot be read, or holds no thresholds.
    """
    if path.is_dir():
        return _read_results(path)
    content = read_yaml(path) if path.suffix in {".yaml", ".yml"} else read_json(path)
    if not isinstance(content, dict) or not content:
        raise BadInput(f"{path} holds no thresholds: it must map keys to values.")
    if "thresholds" in content or "schema" in content:
        return _read_results(path)
    if isinstance(content.get("recommendation"), dict):
        device = content.get("device_info")
        name = device.get("device_name") if isinstance(device, dict) else None
        return ThresholdBaseline(
            path, str(name) if name is not None else None, _parse_values(content["recommendation"], path)
        )
    return ThresholdBaseline(path, None, _parse_values(content, path))


def _read_results(path: Path) -> ThresholdBaseline:
    saved_results = saved.read_saved(path)
    results = saved_results.results
    if results is None:
        raise BadInput(f"{path} holds no {RESULTS_FILE} of this version.")
    entries: dict[str, BaselineThreshold] = {}
    for entry in results.thresholds:
        highest = math.inf if entry.decision == "disable" else None
        if entry.decision == "threshold" and entry.high is not None:
            highest = float(entry.high)
        text = {"disable": "never", "unsure": "not known", "threshold": f"from {entry.high} on"}[entry.decision]
        certain = highest if entry.parity == "passed" else None
        entries[entry.key] = BaselineThreshold(certain, text, entry.margin, entry.decided_on)
    points = {threshold.key: _point_keys(threshold) for threshold, _ in saved_results.thresholds}
    return ThresholdBaseline(path, saved_results.device.device_name, entries, results.identity, points)


def _point_keys(threshold: Threshold) -> frozenset[str]:
    return frozenset(json.dumps([point.size, point.params], sort_keys=True) for point in threshold.points)


def _parse_values(content: Any, path: Path, within: str = "") -> dict[str, BaselineThreshold]:
    """Return a mapping of keys to numbers, which may be nested as a configuration is; null is not known."""
    result: dict[str, BaselineThreshold] = {}
    for key, value in content.items():
        name = f"{within}{key}"
        if isinstance(value, dict):
            result |= _parse_values(value, path, f"{name}.")
        elif value is None:
            result[name] = BaselineThreshold(None, "not known")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            result[name] = BaselineThreshold(float(value), f"from {value:g} on")
    if not result and not within:
        raise BadInput(f"{path} holds no thresholds: none of its values is a number.")
    return result


def check_baseline(baseline: ThresholdBaseline, options: ThresholdOptions, device_name: str | None) -> list[str]:
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
    recorded = {t.key: before for t in options.thresholds if (before := baseline.threshold_of(t.key)) is not None}
    keys = [threshold.key for threshold in options.thresholds]
    if not recorded:
        near = suggest_nearest(keys[0].rpartition(".")[2], baseline.thresholds)
        raise BadInput(f"{baseline.path} has none of {', '.join(keys)}.{near}")
    for threshold in options.thresholds:
        _check_settings(baseline, recorded.get(threshold.key), threshold.margin, options.decide_on)
        points = baseline.points.get(threshold.key)
        if points is not None and not points & _point_keys(threshold):
            raise BadInput(f"{baseline.path} is not comparable: no point of the grid of {threshold.name} is in both.")
    if baseline.identity is not None:
        names = {threshold.name for threshold in options.thresholds if threshold.key in recorded}
        identities = (select_identity(identity, names) for identity in (baseline.identity, build_identity(options)))
        different = find_differences(*map(identity_details, identities))
        if different:
            raise BadInput(f"{baseline.path} is not comparable: {describe_differences(different)}.")
    _check_can_rise(baseline, [(t, recorded[t.key].highest) for t in options.thresholds if t.key in recorded])
    unknown = [f"{baseline.path} does not say on which device it was measured."] if baseline.device_name is None else []
    return [*unknown, *(f"{baseline.path} does not have {k}, which is not judged." for k in keys if k not in recorded)]


def _check_settings(
    baseline: ThresholdBaseline, before: BaselineThreshold | None, margin: float, decide_on: str
) -> None:
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


def _check_can_rise(baseline: ThresholdBaseline, recorded: Sequence[tuple[Threshold, float | None]]) -> None:
    """Refuse a gate that could never say no: it is not known where thresholds were, or no size is as large as that."""
    sized = [(threshold, highest) for threshold, highest in recorded if highest is not None]
    if not sized:
        raise BadInput(f"{baseline.path} does not say where a threshold was, so that none could be seen to rise.")
    threshold, highest = sized[0]
    if all(math.isfinite(h) and h > max(t.sizes) for t, h in sized):
        raise BadInput(
            f"{threshold.name} was from {highest:g} on in {baseline.path}, and no larger size than "
            f"{max(threshold.sizes):g} is measured, so that it could not be seen to rise; leave --sizes out, or name "
            "larger ones."
        )


def compare_with_baseline(
    answers: Sequence[ThresholdAnswer], baseline: ThresholdBaseline, against: str
) -> tuple[ThresholdRise, ...]:
    """Return for each threshold that the baseline has whether it rose."""
    rises = []
    for answer in answers:
        before, location = baseline.threshold_of(answer.key), answer.location
        if before is None:
            continue
        rose: Verdict = "unsure"
        if before.highest is not None and location.high is not None and location.high <= before.highest:
            rose = "no"
        elif before.highest is not None and location.fails is not None and location.fails >= before.highest:
            rose = "yes"
        text = f"{answer.name} was {before.text}, and is {describe_location(location)}: {RISE_TEXTS[rose]}"
        rises.append(ThresholdRise(name=answer.name, against=against, rose=rose, text=text))
    return tuple(rises)


def compare_thresholds(table: ResultTable) -> tuple[ThresholdRise, ...]:
    """Return for each threshold that the baseline and another result on the same model have whether it rose.

    The other is decided again by the baseline's margin and time.
    """
    others = dict.fromkeys(p.against for p in table.pairs if p.name.quantity == THRESHOLD_QUANTITY and p.is_comparable)
    return tuple(rise for path in others for rise in _compare_files(Path(table.sources[0].path), Path(path)))


def _compare_files(first: Path, second: Path) -> tuple[ThresholdRise, ...]:
    try:
        before, old, new = read_baseline(first), saved.read_saved(first), saved.read_saved(second)
    except BadInput:
        return ()
    margin = None if old.results is None else old.thresholds[0][0].margin
    decide_on = new.decide_on if old.results is None else old.decide_on
    answers = [build_answer(item, decide_on) for item in new.judge(margin, decide_on)]
    return compare_with_baseline(answers, before, str(second))
