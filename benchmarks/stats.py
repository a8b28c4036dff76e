"""How often the statistics are right about noise of known truth, in five families.

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stats.simulations import Outcome

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


SIMULATE: dict[str, Callable[..., Outcome]] = {
    "shape": simulations.shapes,
    "fixed": simulations.fixed_intervals,
    "peeked median": simulations.peeked_medians,
    "peeked ratio": simulations.peeked_ratios,
    "A/A": simulations.verdicts,
    "+2 %": simulations.verdicts,
}
OWN = ", each its own"  # noise that the two of a pair do not share


def questions() -> list[Question]:
    """Return all that is asked."""
    sized = [Question(about, f, n, 2000) for about in ("shape", "fixed") for f in FAMILIES for n in (100, 300, 1000)]
    medians = [Question("peeked median", f, LAST, 2000) for f in FAMILIES]
    together = (*FAMILIES, "AR(1) 0.6" + OWN, "two levels" + OWN)
    paired = [Question(about, f, LAST, 2000) for about in ("peeked ratio", "A/A", "+2 %") for f in together]
    return medians + paired + sized


def options(question: Question) -> dict[str, Any]:
    """Return what the simulation of pairs needs to know beside family and size."""
    if question.about not in {"peeked ratio", "A/A", "+2 %"}:
        return {}
    shared = {"shared": not question.family.endswith(OWN)}
    return shared if question.about == "peeked ratio" else {"ratio": 1.0 if question.about == "A/A" else 1.02, **shared}


def simulate(question: Question, seed: int) -> Kept:
    """Return the outcomes of one chunk of repeats."""
    family = question.family.removesuffix(OWN)
    outcome = SIMULATE[question.about](family, question.n, CHUNK, seed, **options(question))
    return {"seed": seed, "counts": outcome.counts, "stopped_at": outcome.stopped_at, "stretch": outcome.stretch}


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


def _lines(about: str, family: str, chunks: list[Kept]) -> list[tuple[str, str, str]]:
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
    different, after = counts["faster"] + counts["slower"], f"after {np.median(stopped_at):.0f} pairs"
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
