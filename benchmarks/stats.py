"""How often the statistics are right about noise of known truth: intervals, verdicts, and races between many.

python benchmarks/stats.py run              simulate (minutes, two processes), keep counts and seeds, print the table
python benchmarks/stats.py run window "A/A" simulate these anew, and keep the others
python benchmarks/stats.py verify           compute the table again from the kept counts; fail where a bound is broken
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
    from collections.abc import Callable, Sequence

RESULTS = Path(__file__).parent / "results" / "statistics.json"
WORKERS = 2
CHUNK = 250  # repeats that share a seed
LAST = 4000  # samples or pairs: 10 s of two calls of about 1 ms
HARDLY = 100  # samples
WIDEST = 1.8  # times the fixed-size width
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
    "+5 %": simulations.verdicts,
    "window": simulations.windows,
    "own noise": simulations.own_noise,
    "race": races,
}
RATIOS = {"A/A": 1.0, "+2 %": 1.02, "+5 %": 1.05}
OWN = ", each its own"  # noise that the two of a pair, or the candidates of a round, do not share
MOVING = ("random walk", "dwell 50–500", "thermal decay")
SLOW = ("random walk", "dwell", "wave")
WINDOW = 1000  # samples or pairs
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
    moving = [Question("window", f, WINDOW, 2000) for f in (*MOVING, *simulations.STILL)]
    own = [Question("own noise", f, WINDOW, 1000) for f in SLOW]
    power = [Question("+5 %", f, WINDOW, 1000) for f in FAMILIES]
    set_up = [Question("race", f"independent{field}", 100, 500) for field in FIELDS]
    races_of_many = [*raced, *set_up, Question("race", "spikes", 300, 500)]
    return [*moving, *own, *power, *looked, *sized, *races_of_many]


def options(question: Question) -> tuple[str, dict[str, Any]]:
    """Return the plain family of a question, and what its simulation needs to know beside it."""
    family, about = question.family.removesuffix(OWN), question.about.removesuffix(EARLY)
    chosen: dict[str, Any] = {}
    if about in {"peeked ratio", *RATIOS, "race"}:
        chosen["shared"] = not question.family.endswith(OWN)
    if about in RATIOS:
        chosen["ratio"] = RATIOS[about]
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


def run(abouts: Sequence[str], results: Kept) -> Kept:
    """Return the outcomes of all chunks by question: of these simulated anew, of the others as they were kept."""
    begin = time.monotonic()
    again = [q for q in questions() if not abouts or q.about.removesuffix(EARLY) in abouts]
    requests = [(q, zlib.crc32(f"{q.key} {chunk}".encode())) for q in again for chunk in range(q.repeats // CHUNK)]
    before = results.get("outcomes", {})
    outcomes: dict[str, list[Kept]] = {q.key: [] if q in again else before.get(q.key, []) for q in questions()}
    with ProcessPoolExecutor(WORKERS) as pool:
        for (question, _), outcome in zip(requests, pool.map(simulate, *zip(*requests, strict=True)), strict=True):
            outcomes[question.key].append(outcome)
    return {"took_s": round(time.monotonic() - begin), "chunk": CHUNK, "outcomes": outcomes}


@dataclass(frozen=True)
class Line:
    """A line of the table: what was counted, how it came out, what is required, and whether that holds."""

    what: str
    measured: str
    required: str = "–"
    holds: bool = True


def share_line(what: str, k: int, n: int, *, least: float = 0.0, most: float = 100.0, bound: float = 100.0) -> Line:
    """Return a line about a share, in percent: between least and most, and its upper bound at most as high."""
    percent = 100 * k / max(n, 1)
    requests = [f"{least:g}–{most:g}" if least > 0 and most < 100 else f"≥ {least:g}" if least > 0 else ""]
    requests += [f"≤ {most:g}"] if most < 100 and least == 0 else []
    requests += [f"bound ≤ {bound:g}"] if bound < 100 else []
    upper = 100 * float(stats.binomtest(k, n).proportion_ci().high) if n else 0.0
    required = ", ".join(part for part in requests if part) or "–"
    return Line(what, rate(k, n), required, least <= percent <= most and upper <= bound)


def rate(k: int, n: int) -> str:
    """Return a share with its exact 95 % binomial interval, in percent."""
    bounds = stats.binomtest(k, n).proportion_ci()
    return f"{100 * k / n:.2f} ({100 * bounds.low:.2f}–{100 * bounds.high:.2f})"


def _total(chunks: list[Kept]) -> tuple[Counter[str], list[int], list[float]]:
    counts: Counter[str] = Counter()
    for chunk in chunks:
        counts.update(chunk["counts"])
    return counts, [n for c in chunks for n in c["stopped_at"]], [s for c in chunks for s in c["stretch"]]


def _line_of_shape(family: str, n: int, counts: Counter[str]) -> Line:
    visible = counts.total() - counts["hidden"]
    expected = {"drift": "drift", "two levels": "two levels", "spikes": "bursts"}.get(family)
    if expected is None:
        return share_line("named drift, two levels or bursts", visible - counts["steady"], visible, most=5)
    # A drift as large as the noise cannot be seen in a hundred samples.
    least = 0 if expected == "bursts" or (expected == "drift" and n <= HARDLY) else 90
    return share_line(f"named {expected} (of {visible})", counts[expected], visible, least=least)


def _line_of_fixed(family: str, counts: Counter[str]) -> Line:
    n, refused = counts.total(), counts["refused"]
    if family == "two levels":
        share = 100 * refused / n
        return share_line(f"covered or refused (refused {share:.1f} %)", n - counts["missed"], n, least=93)
    what = f"covered (refused {refused} of {n})"
    return share_line(what, counts["covered"], n - refused, least=93, most=97)


def _lines_of_window(family: str, counts: Counter[str]) -> list[Line]:
    n = counts["covered"] + counts["missed"] + counts["refused"]
    answered = n - counts["refused"]
    what = f"the window's median covered, of {answered} intervals given"
    if family in simulations.STILL:
        return [
            share_line(what, counts["covered"], answered, least=93),
            share_line("refused", counts["refused"], n, most=2),
            share_line("called drifting or switching", counts["unsteady"], n, most=5),
        ]
    return [
        share_line(what, counts["covered"], answered, least=93),
        share_line("the median of the level without its noise covered", counts["level"], answered, least=93),
        share_line("called drifting or switching", counts["unsteady"], n, least=95 if family == "random walk" else 0),
    ]


def _lines_of_race(family: str, chunks: list[Kept]) -> list[Line]:
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
            right = sum(counts[f"right {name}"] for name in names)
            upper = 100 * float(stats.binomtest(right, raced).proportion_ci().high)
            named = f"winner within 1 % where {what} is stated ({stated:.2f} on average, {raced})"
            required = "–" if beyond else f"bound ≥ {stated:.2f}"
            lines.append(Line(named, rate(right, raced), required, beyond or upper >= stated))
    decided = f"decided wrongly (decided {100 * counts['decided'] / n:.0f} %)"
    most, lost, bound = (100.0, 100.0, 100.0) if beyond else (5.0, 0.25, 1.0)
    lines.append(share_line(decided, counts["decided wrongly"], max(counts["decided"], 1), most=most))
    lines.append(share_line("the best lost by elimination", counts["lost"], n, most=lost, bound=bound))
    stated = sum(chunk["expected_regret"] for chunk in chunks) / n / 100
    rounds = np.median([count for chunk in chunks for count in chunk["rounds"]])
    took = f"{rounds:.0f} rounds, {sum(chunk['samples'] for chunk in chunks) / n:.0f} samples"
    regret = f"{np.median(regrets):.2f}, {np.quantile(regrets, 0.99):.2f} and {max(regrets):.2f}"
    mean = f"(mean {np.mean(regrets):.2f}, stated {stated:.2f}; {took})"
    return [*lines, Line(f"regret: median, 99th percentile and worst {mean}", regret)]


def _lines(about: str, family: str, size: int, chunks: list[Kept]) -> list[Line]:
    if about == "race":
        return _lines_of_race(family, chunks)
    counts, stopped_at, stretch = _total(chunks)
    n = counts.total()
    beyond = family == "two levels" + OWN
    if about == "shape":
        return [_line_of_shape(family, size, counts)]
    if about == "window":
        return _lines_of_window(family, counts)
    if about == "fixed":
        return [_line_of_fixed(family, counts)]
    if about.startswith("peeked"):
        lines = [share_line("missed at any look", counts["missed"], n, most=100 if beyond else 5)]
        if stretch:
            width = f"{np.mean(stretch):.2f}, at most {max(stretch):.2f}"
            what = f"times the fixed-size width when ±0.5 % ({len(stretch)} of {n}, after {np.median(stopped_at):.0f})"
            lines.append(Line(what, width, "≤ 1.8", max(stretch) <= WIDEST))
        return lines
    return _lines_of_verdicts(
        about.removesuffix(EARLY), counts, f"after {np.median(stopped_at):.0f} pairs", beyond=beyond
    )


def _lines_of_verdicts(about: str, counts: Counter[str], after: str, *, beyond: bool) -> list[Line]:
    n, different = counts.total(), counts["faster"] + counts["slower"]
    if about in {"A/A", "own noise"}:
        unsure = f"(same {100 * counts['same'] / n:.1f} %, unsure {100 * counts['unsure'] / n:.1f} %, {after})"
        most, bound = (100.0, 100.0) if beyond else (5.0, 100.0) if about == "own noise" else (1.0, 2.0)
        return [share_line(f"called different {unsure}", different, n, most=most, bound=bound)]
    unsure = f"(unsure {100 * counts['unsure'] / n:.1f} %, {after})"
    least = 0.0 if beyond else 98.0 if about == "+5 %" else 90.0
    return [
        share_line(f"called slower {unsure}", counts["slower"], n, least=least),
        share_line("called same", counts["same"], n, most=100 if beyond else 1),
    ]


def lines(results: Kept) -> list[tuple[str, Line]]:
    """Return all lines of the table, each with what it is about, the noise and the size."""
    collected = []
    for key, chunks in results["outcomes"].items():
        about, family, n = key.split(" | ")
        if not chunks:
            raise SystemExit(f"{key}: not simulated yet: python benchmarks/stats.py run")
        collected += [(key, line) for line in _lines(about, family, int(n), chunks)]
    return collected


def table(results: Kept) -> str:
    """Return the published table: each share in percent with its exact 95 % interval, beside what is required."""
    rows = ["| about | noise | n | what | measured, % | required |", "|---|---|---|---|---|---|"]
    rows += [f"| {key} | {line.what} | {line.measured} | {line.required} |" for key, line in lines(results)]
    return "\n".join(rows)


def main() -> int:
    """Simulate or verify."""
    match sys.argv[1:]:
        case ["run", *abouts]:
            saved = json.loads(RESULTS.read_text(encoding="utf-8")) if abouts else {}
            text = json.dumps(run(abouts, saved), separators=(",", ":"), ensure_ascii=False)
            RESULTS.write_text(text + "\n", encoding="utf-8")
        case ["verify"]:
            pass
        case _:
            print(__doc__)
            return 2
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    print(table(saved))
    broken = [(key, line) for key, line in lines(saved) if not line.holds]
    for key, line in broken:
        print(f"does not hold: {key}: {line.what}: {line.measured}, required {line.required}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
