"""How often decisions are right where the truth is known: thresholds of a speed-up, and regressions of a history.

python benchmarks/decisions.py run thresholds     from which size on is it faster: simulated, beside simple rules
python benchmarks/decisions.py run regressions    has it become slower: simulated, beside simple rules and an oracle
python benchmarks/decisions.py run asv            the same series given to asv (--venvs FOLDER)
python benchmarks/decisions.py run otava          the same series given to Apache Otava (--venvs FOLDER)
python benchmarks/decisions.py run recorded       recorded series in which nothing was changed (--venvs FOLDER)
python benchmarks/decisions.py run time           regressions of 1,000 series of a year, in a process of its own
python benchmarks/decisions.py verify             compute the tables again from what is kept

The first four are simulated: they show what decisions are worth, and nothing about any machine. Seeds follow from the
names of what is asked. Minutes each, in two processes.
"""

from __future__ import annotations

import json
import lzma
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.decisions_detectors import SIMPLE, all_told, ours
from benchmarks.decisions_noise import CHANGED_AT, FAMILIES, SERIES, history
from benchmarks.decisions_oracles import SILENT, alarm_level
from benchmarks.decisions_recorded import as_history, kernels, record
from benchmarks.decisions_regression_tables import recorded_table, regression_tables, time_table
from benchmarks.decisions_rivals import BY_HOST, NAMES, Rival
from benchmarks.decisions_tables import threshold_tables
from benchmarks.decisions_thresholds import CHUNK, CURVES, NOISES, REPEATS, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.decisions_noise import Family

RESULTS = Path(__file__).parent / "results" / "decisions.json"
SAMPLES = Path(__file__).parent / "results" / "decisions.samples.json.xz"
WORKERS = 2
HISTORIES = {0.0: 40, 0.10: 20, 0.05: 20}
"""Histories of each family without a change, and with one of a size."""
RIVALS_HISTORIES = {0.0: 6, 0.10: 4, 0.05: 4}
"""The first of them, which the rivals are asked about: they are slow to ask after every run."""
Kept = dict[str, Any]


def key_of(family: str, change: float) -> str:
    """Return the name of a question among what is kept."""
    return f"{family} | {change:g}"


def thresholds() -> Kept:
    """Return by rule, curve and noise how often each outcome came."""
    requests = [(curve, noise, chunk) for curve in CURVES for noise in NOISES for chunk in range(REPEATS // CHUNK)]
    saved: dict[str, Kept] = {}
    with ProcessPoolExecutor(WORKERS) as pool:
        for (curve, noise, _), result in zip(requests, pool.map(simulate, *zip(*requests, strict=True)), strict=True):
            for rule, outcome in result.items():
                sum_ = saved.setdefault(f"{rule} | {curve} | {noise}", {"counts": Counter(), "pairs": 0})
                sum_["counts"].update(outcome["counts"])
                sum_["pairs"] += outcome["pairs"]
    return {"outcomes": saved}


def _judged(family: Family, change: float, number: int, level: float) -> dict[str, list[int]]:
    return all_told(family, level, history(family, change, number))


def regressions() -> tuple[Kept, Kept]:
    """Return the oracles' alarm levels, and by question and detector the run at which each series was told."""
    begun = sum(os.times()[:4])
    requests = [
        (family, change, number) for family in FAMILIES for change, n in HISTORIES.items() for number in range(n)
    ]
    summary: dict[str, dict[str, list[int]]] = {}
    with ProcessPoolExecutor(WORKERS) as pool:
        levels = dict(zip(FAMILIES, pool.map(alarm_level, FAMILIES), strict=True))
        jobs = [(*question, levels[question[0]]) for question in requests]
        for (family, change, _), result in zip(requests, pool.map(_judged, *zip(*jobs, strict=True)), strict=True):
            for detector, runs in result.items():
                summary.setdefault(key_of(family, change), {}).setdefault(detector, []).extend(runs)
    return {"series": SERIES, "levels": levels, "cpu_s": round(sum(os.times()[:4]) - begun)}, summary


def _asked(rival: Rival, question: tuple[Family, float, int], how: str) -> list[list[int]]:
    first = CHANGED_AT - 1 if question[1] else SILENT
    return rival.alarms(history(*question), first=first, by_host=how == BY_HOST)


def rivals(venvs: Path, name: str) -> Kept:
    """Return by question the runs after which a rival says that each series has become slower."""
    rival = Rival.within(venvs, name)
    requests = [
        (rival, (family, change, number), how)
        for family in FAMILIES
        for how in (("", BY_HOST) if family == "sticky hosts" else ("",))
        for change, n in RIVALS_HISTORIES.items()
        for number in range(n)
    ]
    summary: Kept = {}
    with ProcessPoolExecutor(WORKERS) as pool:
        for (_, question, how), runs in zip(requests, pool.map(_asked, *zip(*requests, strict=True)), strict=True):
            summary.setdefault(key_of(question[0] + how, question[1]), []).extend(runs)
    return summary


def recorded(venvs: Path) -> Kept:
    """Return recorded series, and when each detector tells a step in them."""
    saved: Kept = {"series": record(), "told": {}}
    for series in (saved["series"], kernels()):
        history = as_history(series)
        alarms = {"Assay": ours(history), **{name: rule(history) for name, rule in SIMPLE.items()}}
        for name, shown in NAMES.items():
            alarms[shown] = [min(runs, default=-1) for runs in Rival.within(venvs, name).alarms(history)]
        for index, name in enumerate(series):
            saved["told"][name] = {detector: runs[index] for detector, runs in alarms.items()}
    return saved


def timing() -> Kept:
    """Return what the verb took."""
    from benchmarks.decisions_time import timed

    return timed()


def _load() -> tuple[Kept, Kept]:
    saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    samples = json.loads(lzma.decompress(SAMPLES.read_bytes())) if SAMPLES.exists() else {}
    return saved, samples


def _keep(part: str, result: Kept, output: Kept | None) -> None:
    """Put what a part found beside what the others did."""
    saved, samples = _load()
    RESULTS.write_text(json.dumps({**saved, part: result}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if output is not None:
        packed = json.dumps({**samples, part: output}, separators=(",", ":"), ensure_ascii=False)
        SAMPLES.write_bytes(lzma.compress(packed.encode(), preset=9))


def run(part: str, venvs: Path) -> None:
    """Run one part and keep what it found."""
    if part == "regressions":
        _keep(part, *regressions())
    elif part in NAMES:
        _keep(part, {"shown": NAMES[part]}, rivals(venvs, part))
    else:
        parts: dict[str, Callable[[], Kept]] = {
            "thresholds": thresholds,
            "recorded": lambda: recorded(venvs),
            "time": timing,
        }
        _keep(part, parts[part](), None)


PARTS = ("thresholds", "regressions", *NAMES, "recorded", "time")


def tables() -> list[str]:
    """Return the published tables of all parts that were run."""
    saved, samples = _load()
    lines = threshold_tables(saved["thresholds"]["outcomes"]) if "thresholds" in saved else []
    if "regressions" in samples:
        requests = {shown: samples[name] for name, shown in NAMES.items() if name in samples}
        lines += ["", *regression_tables(samples["regressions"], requests)]
    lines += ["", *recorded_table(saved["recorded"])] if "recorded" in saved else []
    lines += ["", *time_table(saved["time"])] if "time" in saved else []
    return lines


def main() -> int:
    """Run a part or verify."""
    match sys.argv[1:]:
        case ["run", part] if part in PARTS:
            run(part, Path(tempfile.gettempdir()))
        case ["run", part, "--venvs", folder] if part in PARTS:
            run(part, Path(folder))
        case ["verify"]:
            pass
        case _:
            print(__doc__)
            return 2
    print("\n".join(tables()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
