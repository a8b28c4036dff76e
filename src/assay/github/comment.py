"""What people read on GitHub: title and body of a pull request, and one comment, which is updated in place.

Untrusted text is shown literally in Markdown, never as a link, a mention, a picture or a heading. Only code is
shown literally everywhere on GitHub, so every untrusted word is in code; only its printable part is kept:
characters that reverse the text direction or have no width are removed.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

from assay.experiments.threshold.answers import DECIDED_BY
from assay.github.api import get_field

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.experiments.threshold.results_file import ThresholdRow
    from assay.github.api import GitHubApi
    from assay.github.pull_request import Proposal, ProposedChange
    from assay.github.results import JobResults, RentalCost, VerifiedResults


_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_ALLOWED_CHARACTERS = "×±→–µ·…²³°√⌊⌋“”’≤≥"
"""The non-ASCII characters that Assay itself writes."""


def plain_text(text: str, at_most: int = 200) -> str:
    """Return a text on one line, without hidden characters: ASCII and the characters that Assay itself writes."""
    line = " ".join(text.split())
    visible = "".join(c for c in line if unicodedata.category(c) not in _HIDDEN_CATEGORIES)
    allowed = "".join(c if c.isascii() or c in _ALLOWED_CHARACTERS else "?" for c in visible)
    return allowed if len(allowed) <= at_most else f"{allowed[: at_most - 1]}…"


def code_span(text: object, at_most: int = 80) -> str:
    """Return a text as inline code, safe in a table cell."""
    shown = plain_text(str(text), at_most).replace("`", "'").replace("|", "¦").strip()
    return f"`{shown or ' '}`"


def title_text(text: str, at_most: int = 60) -> str:
    """Return a text for a title or a commit: letters and digits, nothing that mentions a person or an issue."""
    return " ".join(re.sub(r"[^A-Za-z0-9 .()+_-]", " ", plain_text(text, at_most)).split()) or "a device"


def code_block(lines: Iterable[str], kind: str = "text") -> list[str]:
    """Return lines as a code block."""
    shown = ["".join(c for c in line if c.isprintable()).replace("```", "'''") for line in lines]
    return [f"```{kind}", *shown, "```"]


def format_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table; its cells must already be escaped."""
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *(f"| {' | '.join(row)} |" for row in rows)]


MARKER = "<!-- assay: benchmark -->"
"""The first line of the one comment that is updated repeatedly."""
MAX_CHARACTERS = 60_000
"""Characters; GitHub allows 65,536."""
MAX_ROWS = 200


def pull_request_title(proposal: Proposal) -> str:
    """Return the title of a pull request: the device, and what changes."""
    changed = [
        f"{plain_text(change.answer.key.rpartition('.')[2], 40)} {plain_text(str(change.old), 20)} → "
        f"{plain_text(str(change.new), 20)}"
        for change in proposal.changes
        if change.differs
    ]
    return f"Thresholds of {title_text(proposal.measured.device)}: {', '.join(changed)}"[:250]


def pull_request_body(
    proposal: Proposal, costs: Sequence[RentalCost], *, commit: str | None, run_url: str | None
) -> str:
    """Return the body of a pull request: old and new values, intervals, the report, the cost."""
    lead = (
        f"Measured on {code_span(proposal.measured.device)}: from which size on the fast path is faster by a margin. "
        f"{code_span(proposal.path)} gets the new values; nothing else in it changes."
    )
    return _join_sections(
        [
            [lead],
            _changes_table(proposal.changes),
            code_block(proposal.diff.splitlines(), "diff"),
            _reasons_block(proposal.changes),
            _points_table(proposal.measured),
            _cost_lines(costs),
            _fact_lines(proposal.measured, commit, run_url),
        ]
    )


def comment_body(
    jobs: Sequence[tuple[JobResults, Proposal | None, str]], *, commit: str | None, run_url: str | None
) -> str:
    """Return the comment: a table for each kind of GPU, and its outcome, which is the ``str`` of each job."""
    sections = [[MARKER, "### Thresholds" + (f" at {code_span(commit[:12])}" if commit else "")]]
    for job, proposal, outcome in jobs:
        requested = f" ({code_span(job.gpu)} was requested)" if job.gpu and job.measured else ""
        sections.append([f"**{code_span(job.title)}**{requested}"])
        if job.measured is None:
            sections.append([f"No results: {code_span(job.missing.detail if job.missing else 'not known why', 300)}"])
        else:
            table = _changes_table(proposal.changes) if proposal else _answers_table(job.measured)
            reasons = _reasons_block(proposal.changes) if proposal else []
            sections += [table, [outcome], reasons, _points_table(job.measured)]
        sections.append(_cost_lines(job.costs))
    if run_url:
        sections.append([f"The whole report and every sample are among the artifacts of [the run]({run_url})."])
    return _join_sections(sections)


def _join_sections(sections: Iterable[Sequence[str]]) -> str:
    """Return sections as one text; if it is too long for GitHub, without its last lines, which is stated."""
    text = "\n\n".join("\n".join(lines) for lines in sections if lines).rstrip() + "\n"
    if len(text) <= MAX_CHARACTERS:
        return text
    truncated = text[:MAX_CHARACTERS].rsplit("\n", 1)[0]
    closed = f"{truncated}\n```" if truncated.count("```") % 2 else truncated
    details_end = "\n\n</details>" if closed.count("<details>") > closed.count("</details>") else ""
    return f"{closed}{details_end}\n\nThe rest is too long for GitHub; it is among the artifacts of the run.\n"


def _changes_table(changes: Sequence[ProposedChange]) -> list[str]:
    rows = [
        (
            code_span(change.answer.key),
            code_span(change.old),
            f"**{code_span(change.new)}**" if change.differs else "as it is",
            change.interval_text,
            f"{change.answer.judgement.threshold.margin:g}×",
            change.answer.parity,
        )
        for change in changes
    ]
    return format_table(("key", "old", "new", "interval of the threshold", "margin", "parity"), rows)


def _answers_table(verified: VerifiedResults) -> list[str]:
    rows = [(code_span(answer.key), code_span(answer.headline, 160), answer.parity) for answer in verified.answers]
    return format_table(("key", "answer", "parity"), rows)


def _reasons_block(changes: Sequence[ProposedChange]) -> list[str]:
    lines = [
        f"{plain_text(c.answer.name, 60)}: {plain_text(reason, 400)}" for c in changes for reason in c.answer.reasons
    ]
    return code_block(lines) if lines else []


def _points_table(verified: VerifiedResults) -> list[str]:
    """Return every measured point; text from the machine is in code, the rest are numbers."""
    results = verified.results.results
    rows = [_point_row(row) for row in results[:MAX_ROWS]]
    titles = ("threshold", "size", "sequence", "window", "speed-up (bounds)", "reference, ms", "fast, ms", "parity")
    columns = [number for number in range(len(titles)) if any(row[number] for row in rows)]
    cells = [[row[number] for number in columns] for row in rows]
    lines = format_table([titles[number] for number in columns], cells)
    if len(results) > len(rows):
        lines += ["", f"And {len(results) - len(rows)} more, among the artifacts of the run."]
    return [f"<details><summary>{len(results)} points</summary>", "", *lines, "", "</details>"]


def _point_row(row: ThresholdRow) -> tuple[str, ...]:
    bounds = f" ({row.low:.2f} to {row.high:.2f})" if row.low is not None and row.high is not None else ""
    return (
        code_span(row.threshold, 40),
        f"{row.size:g}",
        *("" if value is None else str(value) for value in (row.sequence_length, row.window_size)),
        "not measured" if row.speedup is None else f"{row.speedup:.2f}×{bounds}",
        *("" if value is None else f"{value:.4g}" for value in (row.masked_ms, row.fa2_ms)),
        row.parity,
    )


def _cost_lines(costs: Sequence[RentalCost]) -> list[str]:
    if not costs:
        return ["Cost: no rented machine is in the journal of this run."]
    texts = []
    for cost in costs:
        quoted = "not known" if cost.quoted_usd is None else f"${cost.quoted_usd:.3f}"
        billed = "not billed yet" if cost.billed_usd is None else f"billed ${cost.billed_usd:.3f}"
        gpu, provider = code_span(cost.gpu or "a machine", 30), code_span(cost.provider, 30)
        texts.append(f"{gpu} at {provider}: quoted {quoted}, {billed}")
    return [f"Cost: {'; '.join(texts)}."]


def _fact_lines(verified: VerifiedResults, commit: str | None, run_url: str | None) -> list[str]:
    info = verified.results.device_info
    facts = [
        ("device", info.device_name),
        ("driver", info.driver_version),
        ("PyTorch", info.torch_version),
        ("CUDA", info.cuda_version),
        ("measured", verified.results.measured_at),
        ("Assay", verified.results.assay),
        ("commit", commit),
    ]
    parts = [f"{name} {code_span(value)}" for name, value in facts if value]
    link = f"Report, samples and every pair: [the artifacts of the run]({run_url})." if run_url else ""
    return [f"{', '.join(parts)}. Decided {_decision_basis(verified)}. {link}".rstrip()]


def _decision_basis(verified: VerifiedResults) -> str:
    """Return the time that the decision is based on: both only if both were measured."""
    times = {time for answer in verified.answers for time in answer.by_time}
    by = verified.results.thresholds[0].decided_on
    return DECIDED_BY[next(iter(times)) if by == "cautious" and len(times) == 1 else by]


def find_comment(api: GitHubApi, number: int) -> Any | None:
    """Return Assay's comment; null: there is none.

    It begins with the marker and was written by a bot: a person's copy of it does not count.
    """
    for comment in api.pages(f"/issues/{number}/comments", "look for our comment"):
        if str(get_field(comment, "body") or "").startswith(MARKER) and get_field(comment, "user", "type") == "Bot":
            return comment
    return None


def write_comment(api: GitHubApi, number: int, text: str) -> str:
    """Write Assay's comment, and return its URL."""
    existing = find_comment(api, number)
    if existing is not None:
        path, what = f"/issues/comments/{int(get_field(existing, 'id'))}", "write our comment anew"
        comment = api.make_once(lambda: api.send("PATCH", path, {"body": text}, what))
    else:
        path, what = f"/issues/{number}/comments", "write a comment"
        comment = api.make_once(lambda: api.send("POST", path, {"body": text}, what), lambda: find_comment(api, number))
    return str(get_field(comment, "html_url"))
