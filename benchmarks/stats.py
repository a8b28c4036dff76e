"""How often the statistics are right about noise of known truth: intervals, verdicts, and races between many.

python benchmarks/stats.py run       simulate (minutes, two processes), keep counts and seeds, print the table
python benchmarks/stats.py verify    compute the table again from the kept counts
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.stats import simulations
from tests.stats.noise_families import FAMILIES
from tests.stats.races import RACE_NOISES, races

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results" / "statistics.json"
WORKERS = 2
CHUNK = 250  # repeats that share a seed
LAST = 4000  # samples or pairs: 10 s of two calls of about 1 ms
Kept = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What is simulated, on which family, at which size, how often."""

    about: str
    family: str
    n: int
    repeats: int

    @property
    def key(self) -> str:
        """Return the question's name among the kept outcomes."""
        return f"{self.about} | {self.family} | {self.n}"


SIMULATE: dict[str, Callable[..., object]] = {
    "shape": simulations.shapes,
    "fixed": simulations.fixed_intervals,
    "peeked median": simulations.peeked_medians,
    "peeked ratio": simulations.peeked_ratios,
    "A/A": simulations.verdicts,
    "+2 %": simulations.verdicts,
    "race": races,
}
OWN = ", each its own"  # noise that the two of a pair, or the candidates of a round, do not share
EARLY, EARLY_FIRST = ", first look at 16", 16
FIELDS: dict[str, dict[str, Any]] = {
    ", all others 2 % behind": {"fields": ("one ahead",)},
    " of 1 %, all others 10 % behind": {"fields": ("10 % ahead",), "noise": 0.01},
}


def questions() -> list[Question]:
    """Return all that is asked."""
    sized = [Question(about, f, n, 2000) for about in ("shape", "fixed") for f in FAMILIES for n in (100, 300, 1000)]
    together = (*FAMILIES, "AR(1) 0.6" + OWN, "two levels" + OWN)
    looked = [
        Question(about + early, f, LAST, 2000)
        for early in ("", EARLY)
        for about, families in (("peeked median", FAMILIES), *((a, together) for a in ("peeked ratio", "A/A", "+2 %")))
        for f in families
    ]
    raced = [
        Question("race", f, n, 2000) for f in (*RACE_NOISES, "AR(1) 0.6" + OWN, "two levels" + OWN) for n in (3, 30)
    ]
    set_up = [Question("race", f"independent{field}", 100, 500) for field in FIELDS]
    return [*looked, *sized, *raced, *set_up, Question("race", "spikes", 300, 500)]


def options(question: Question) -> tuple[str, dict[str, Any]]:
    """Return the plain family of a question, and what its simulation needs to know beside it."""
    family, about = question.family.removesuffix(OWN), question.about.removesuffix(EARLY)
    chosen: dict[str, Any] = {}
    if about in {"peeked ratio", "A/A", "+2 %", "race"}:
        chosen["shared"] = not question.family.endswith(OWN)
    if about in {"A/A", "+2 %"}:
        chosen["ratio"] = 1.0 if about == "A/A" else 1.02
    if about != question.about:
        chosen["first"] = EARLY_FIRST
    for field, setting in FIELDS.items():
        if family.endswith(field):
            family, chosen = family.removesuffix(field), {**chosen, **setting}
    return family, chosen


def simulate(question: Question, seed: int) -> Kept:
    """Return the outcomes of one chunk of repeats."""
    family, chosen = options(question)
    outcome = SIMULATE[question.about.removesuffix(EARLY)](family, question.n, CHUNK, seed, **chosen)
    return {"seed": seed, **vars(outcome)}


def run() -> Kept:
    """Return the outcomes of all chunks by question."""
    begin = time.monotonic()
    asked = [(q, zlib.crc32(f"{q.key} {chunk}".encode())) for q in questions() for chunk in range(q.repeats // CHUNK)]
    kept: dict[str, list[Kept]] = {q.key: [] for q in questions()}
    with ProcessPoolExecutor(WORKERS) as pool:
        for (question, _), outcome in zip(asked, pool.map(simulate, *zip(*asked, strict=True)), strict=True):
            kept[question.key].append(outcome)
    return {"took_s": round(time.monotonic() - begin), "chunk": CHUNK, "outcomes": kept}


def rate(k: int, n: int) -> str:
    """Return a share with its exact 95 % binomial interval, in percent."""
    bounds = stats.binomtest(k, n).proportion_ci()
    return f"{100 * k / n:.2f} ({100 * bounds.low:.2f}–{100 * bounds.high:.2f})"


def _total(chunks: list[Kept]) -> tuple[Counter[str], list[int], list[float]]:
    counts: Counter[str] = Counter()
    for chunk in chunks:
        counts.update(chunk["counts"])
    return counts, [n for c in chunks for n in c["stopped_at"]], [s for c in chunks for s in c["stretch"]]


def _line_of_shape(family: str, counts: Counter[str]) -> tuple[str, str, str]:
    seen = counts.total() - counts["hidden"]
    expected = {"drift": "drift", "two levels": "two levels", "spikes": "bursts"}.get(family)
    if expected is None:
        return "named drift, two levels or bursts", rate(seen - counts["steady"], seen), "≤ 5"
    wanted = "≥ 90" if expected != "bursts" else "–"
    return f"named {expected} (of {seen})", rate(counts[expected], seen), wanted


def _line_of_fixed(family: str, counts: Counter[str]) -> tuple[str, str, str]:
    if family == "two levels":
        share = 100 * counts["refused"] / counts.total()
        return (
            f"covered or refused (refused {share:.1f} %)",
            rate(counts.total() - counts["missed"], counts.total()),
            "≥ 93",
        )
    given = counts.total() - counts["refused"]
    return f"covered (refused {counts['refused']} of {counts.total()})", rate(counts["covered"], given), "93–97"


def _lines_of_race(family: str, chunks: list[Kept]) -> list[tuple[str, str, str]]:
    counts: Counter[str] = Counter()
    for chunk in chunks:
        counts.update(chunk["counts"])
    regrets = [regret / 100 for chunk in chunks for regret in chunk["regrets"]]
    n, beyond = len(regrets), family == "two levels" + OWN or family.endswith("2 % behind")
    lines = []
    for what, names in (("95 % or more", ("0.95",)), ("less", ("0", "0.5", "0.8"))):
        raced = sum(counts[f"in {name}"] for name in names)
        if raced:
            stated = 100 * sum(chunk["stated"].get(name, 0.0) for chunk in chunks for name in names) / raced
            share = rate(sum(counts[f"right {name}"] for name in names), raced)
            required = "–" if beyond else f"bound ≥ {stated:.2f}"
            lines.append(
                (f"winner within 1 % where {what} is stated ({stated:.2f} on average, {raced})", share, required)
            )
    decided = f"decided wrongly (decided {100 * counts['decided'] / n:.0f} %)"
    lines.append((decided, rate(counts["decided wrongly"], max(counts["decided"], 1)), "–" if beyond else "≤ 5"))
    lines.append(("the best lost by elimination", rate(counts["lost"], n), "–" if beyond else "≤ 0.25, bound ≤ 1"))
    stated = sum(chunk["expected_regret"] for chunk in chunks) / n / 100
    rounds = np.median([count for chunk in chunks for count in chunk["rounds"]])
    took = f"{rounds:.0f} rounds, {sum(chunk['samples'] for chunk in chunks) / n:.0f} samples"
    regret = f"{np.median(regrets):.2f}, {np.quantile(regrets, 0.99):.2f} and {max(regrets):.2f}"
    mean = f"(mean {np.mean(regrets):.2f}, stated {stated:.2f}; {took})"
    return [*lines, (f"regret: median, 99th percentile and worst {mean}", regret, "–")]


def _lines(about: str, family: str, chunks: list[Kept]) -> list[tuple[str, str, str]]:
    if about == "race":
        return _lines_of_race(family, chunks)
    counts, stopped_at, stretch = _total(chunks)
    n = counts.total()
    beyond = family == "two levels" + OWN
    if about == "shape":
        return [_line_of_shape(family, counts)]
    if about == "fixed":
        return [_line_of_fixed(family, counts)]
    if about.startswith("peeked"):
        lines = [("missed at any look", rate(counts["missed"], n), "–" if beyond else "≤ 5")]
        if stretch:
            size = f"{np.mean(stretch):.2f}, at most {max(stretch):.2f}"
            what = f"times the fixed-size width when ±0.5 % ({len(stretch)} of {n}, after {np.median(stopped_at):.0f})"
            lines.append((what, size, "≤ 1.8"))
        return lines
    return _lines_of_verdicts(
        about.removesuffix(EARLY), counts, f"after {np.median(stopped_at):.0f} pairs", beyond=beyond
    )


def _lines_of_verdicts(about: str, counts: Counter[str], after: str, *, beyond: bool) -> list[tuple[str, str, str]]:
    n, different = counts.total(), counts["faster"] + counts["slower"]
    if about == "A/A":
        unsure = f"(same {100 * counts['same'] / n:.1f} %, unsure {100 * counts['unsure'] / n:.1f} %, {after})"
        return [(f"called different {unsure}", rate(different, n), "–" if beyond else "≤ 1, bound ≤ 2")]
    unsure = f"(unsure {100 * counts['unsure'] / n:.1f} %, {after})"
    return [
        (f"called slower {unsure}", rate(counts["slower"], n), "–" if beyond else "≥ 90"),
        ("called same", rate(counts["same"], n), "–" if beyond else "≤ 1"),
    ]


def table(kept: Kept) -> str:
    """Return the published table: each share in percent with its exact 95 % interval, beside what is required."""
    lines = ["| about | noise | n | what | measured, % | required |", "|---|---|---|---|---|---|"]
    for key, chunks in kept["outcomes"].items():
        about, family, n = key.split(" | ")
        lines += [f"| {about} | {family} | {n} | {' | '.join(line)} |" for line in _lines(about, family, chunks)]
    return "\n".join(lines)


def main() -> int:
    """Simulate or verify."""
    if sys.argv[1:] == ["run"]:
        RESULTS.write_text(json.dumps(run(), separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
    elif sys.argv[1:] != ["verify"]:
        print(__doc__)
        return 2
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
