"""What people read on GitHub: the body of a pull request, and the comment under one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.threshold.words import BY
from assay.github.markdown import bare, block, code, details, plain, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.threshold.form import Row
    from assay.github.gathered import Job, Spent
    from assay.github.proposal import Change, Proposal
    from assay.github.results import Measured

MARKER = "<!-- assay: benchmark -->"
"""The first line of the one comment that is written again and again."""
LONGEST = 60_000
"""Characters; GitHub takes 65,536."""
ROWS = 200


def title(found: Proposal) -> str:
    """Return the title of a pull request: the device, and what changes."""
    changed = [
        f"{plain(change.answer.key.rpartition('.')[2], 40)} {plain(str(change.old), 20)} → {plain(str(change.new), 20)}"
        for change in found.changes
        if change.differs
    ]
    return f"Thresholds of {bare(found.measured.device)}: {', '.join(changed)}"[:250]


def body(found: Proposal, spent: Sequence[Spent], *, commit: str | None, run_url: str | None) -> str:
    """Return the body of a pull request: old and new values, intervals, the report, the cost."""
    lead = (
        f"Measured on {code(found.measured.device)}: from which size on the fast path is faster by a margin. "
        f"{code(found.path)} gets the new values; nothing else in it changes."
    )
    return _cut(
        [
            lead,
            "",
            *_changes(found.changes),
            "",
            *block(found.diff.splitlines(), "diff"),
            "",
            *_reasons(found.changes),
            "",
            *_points(found.measured),
            "",
            *_cost(spent),
            "",
            *_facts(found.measured, commit, run_url),
        ]
    )


def comment(jobs: Sequence[tuple[Job, Proposal | None, str]], *, commit: str | None, run_url: str | None) -> str:
    """Return the comment: a table of all kinds of GPU, and what came of each; ``str`` is what was done with it."""
    lines = [MARKER, "### Thresholds" + (f" at {code(commit[:12])}" if commit else ""), ""]
    for job, proposal, outcome in jobs:
        requested = f" ({code(job.gpu)} was asked for)" if job.gpu and job.measured else ""
        lines += [f"**{code(job.title)}**{requested}", ""]
        if job.measured is None:
            lines += [f"No results: {code(job.why or 'not known why', 300)}", ""]
        elif proposal is None:
            lines += [*_answers(job.measured), "", outcome, ""]
        else:
            lines += [*_changes(proposal.changes), "", outcome, "", *_reasons(proposal.changes), ""]
        if job.measured is not None:
            lines += [*_points(job.measured), ""]
        lines += [*_cost(job.spent), ""]
    if run_url:
        lines += [f"The whole report and every sample are among the artifacts of [the run]({run_url})."]
    return _cut(lines)


def _cut(lines: Sequence[str]) -> str:
    """Return lines as one text; where GitHub would not take it, without its last lines, which is said."""
    text = "\n".join(lines).rstrip() + "\n"
    if len(text) <= LONGEST:
        return text
    truncated = text[:LONGEST].rsplit("\n", 1)[0]
    closed = f"{truncated}\n```" if truncated.count("```") % 2 else truncated
    more = "\n\n</details>" if closed.count("<details>") > closed.count("</details>") else ""
    return f"{closed}{more}\n\nThe rest is too long for GitHub; it is among the artifacts of the run.\n"


def _changes(changes: Sequence[Change]) -> list[str]:
    rows = [
        (
            code(change.answer.key),
            code(change.old),
            f"**{code(change.new)}**" if change.differs else "as it is",
            change.found,
            f"{change.answer.judged.threshold.margin:g}×",
            change.answer.parity,
        )
        for change in changes
    ]
    return table(("key", "old", "new", "interval of the threshold", "margin", "parity"), rows)


def _answers(found: Measured) -> list[str]:
    rows = [(code(answer.key), code(answer.headline, 160), answer.parity) for answer in found.answers]
    return table(("key", "answer", "parity"), rows)


def _reasons(changes: Sequence[Change]) -> list[str]:
    lines = [f"{plain(c.answer.name, 60)}: {plain(reason, 400)}" for c in changes for reason in c.answer.why]
    return block(lines) if lines else []


def _points(found: Measured) -> list[str]:
    """Return every point that was measured; what a machine wrote stands in code, the rest are numbers."""
    rows = [_point(row) for row in found.results.results[:ROWS]]
    left = len(found.results.results) - len(rows)
    more = [f"And {left} more, among the artifacts of the run."] if left else []
    titles = ("threshold", "size", "sequence", "window", "speed-up (bounds)", "reference, ms", "fast, ms", "parity")
    columns = [number for number in range(len(titles)) if any(row[number] for row in rows)]
    cells = [[row[number] for number in columns] for row in rows]
    lines = table([titles[number] for number in columns], cells)
    return details(f"{len(found.results.results)} points", [*lines, *(["", *more] if more else [])])


def _point(row: Row) -> tuple[str, ...]:
    bounds = f" ({row.low:.2f} to {row.high:.2f})" if row.low is not None and row.high is not None else ""
    speed_up = "not measured" if row.speedup is None else f"{row.speedup:.2f}×{bounds}"
    return (
        code(row.threshold, 40),
        f"{row.size:g}",
        *("" if value is None else str(value) for value in (row.sequence_length, row.window_size)),
        speed_up,
        *("" if value is None else f"{value:.4g}" for value in (row.masked_ms, row.fa2_ms)),
        row.parity,
    )


def _cost(spent: Sequence[Spent]) -> list[str]:
    if not spent:
        return ["Cost: no rented machine is in the journal of this run."]
    lines = [f"{code(cost.gpu or 'a machine', 30)} at {code(cost.provider, 30)}: {_usd(cost)}" for cost in spent]
    return [f"Cost: {'; '.join(lines)}."]


def _usd(each: Spent) -> str:
    quoted = "not known" if each.quoted_usd is None else f"${each.quoted_usd:.3f}"
    billed = "not billed yet" if each.billed_usd is None else f"billed ${each.billed_usd:.3f}"
    return f"quoted {quoted}, {billed}"


def _facts(found: Measured, commit: str | None, run_url: str | None) -> list[str]:
    info = found.results.device_info
    facts = [
        ("device", info.device_name),
        ("driver", info.driver_version),
        ("PyTorch", info.torch_version),
        ("CUDA", info.cuda_version),
        ("measured", found.results.measured_at),
        ("Assay", found.results.assay),
        ("commit", commit),
    ]
    parts = [f"{name} {code(value)}" for name, value in facts if value]
    link = f"Report, samples and every pair: [the artifacts of the run]({run_url})." if run_url else ""
    return [f"{', '.join(parts)}. Decided {_decided(found)}. {link}".rstrip()]


def _decided(found: Measured) -> str:
    """Say by which time it was decided: by both only where both were taken."""
    times = {time for answer in found.answers for time in answer.by_time}
    by = found.results.thresholds[0].decided_on
    return BY[next(iter(times)) if by == "cautious" and len(times) == 1 else by]
