"""How the answers of a gate are written: changes in percent, against the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.gate.answers import verdict_of
from assay.experiments.gate.plan import next_s
from assay.stats.gates import restarts_needed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Verdict
    from assay.experiments.gate.answers import Answer, Question
    from assay.experiments.gate.options import GateOptions
    from assay.store.records import Records

SAID: dict[Verdict, str] = {"yes": "passes", "no": "fails", "unsure": "not enough data"}
SPARE = 1.3
"""Of the time that is reckoned to be needed: more than that is advised."""


def percent(ratio: float) -> str:
    """Write a ratio as a change: +4.9 %, −0.3 %."""
    change = 100 * (ratio - 1)
    digits = 1 if abs(change) < 99.95 else 0
    text = f"{abs(change):.{digits}f}"
    sign = "" if float(text) == 0 else "+" if change > 0 else "−"
    return f"{sign}{text} %"


def limit(options: GateOptions, question: Question) -> str:
    """Write how much of a change is too much."""
    edge = 1 + options.minimum_effect
    change = 100 * ((1 / edge if question.higher_is_better else edge) - 1)
    return f"{'+' if change > 0 else '−'}{abs(change):.3g} %"


def change(answer: Answer) -> str:
    """Write a change with its interval, or why there is none."""
    ratio = answer.change
    if ratio is None:
        return answer.reason or "not measured"
    value, low, high = ratio
    if low is None or high is None:
        return f"{percent(value)}, a single restart"
    return f"{percent(value)} ({percent(low)} to {percent(high)})"


def headline(options: GateOptions, found: Sequence[Answer], records: Records) -> str:
    """Return the answer in one sentence, and what would help where there is none."""
    verdict = verdict_of(found)
    telling = [answer for answer in found if answer.verdict == verdict] or list(found)
    details = "; ".join(f"{a.question.name} {change(a)}, the limit is {limit(options, a.question)}" for a in telling)
    same = ", the same commit twice" if options.same_commit else ""
    n = len([record for record in records if record.status == "ok"])
    count = f"{n} restart{'' if n == 1 else 's'}"
    sentence = f"{SAID[verdict].capitalize()}: head against base{same}, {details} ({count})."
    return sentence if verdict != "unsure" else f"{sentence} {advice(options, telling, records)}".strip()


def advice(options: GateOptions, unsure: Sequence[Answer], records: Records) -> str:
    """Say what would decide it, as far as can be foreseen."""
    bad = [record for record in records if record.status != "ok"]
    if bad:
        return f"{bad[-1].reason}."
    if any(answer.reason is not None for answer in unsure):
        return ""
    needed = [restarts_needed(answer.logs, options.minimum_effect, len(unsure)) for answer in unsure]
    disturbed = sum(bool(record.disturbed) for record in records)
    if disturbed > len(records) / 2:
        busy = f"{disturbed} of {len(records)} restarts"
        return f"Others kept the machine busy in {busy}; --strangers wait waits for them."
    if None in needed:
        return "It is too near the limit for this machine's noise; with a longer --duration restarts agree better."
    most = max(n for n in needed if n is not None)
    seconds = SPARE * most * next_s(options, records)
    return f"About {most} restarts would decide it: --budget {max(1, round(seconds))}s."
