"""What a server's answers were like: as long as asked for or not, counted by whom, in chunks of how many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.experiments.energy.seen import CellSeen

OTHER_LENGTH = 0.05
"""From this share of answers on that are shorter or longer than asked for, requests are not what the cell says."""
SEVERAL = 1.02
"""From so many tokens in a chunk on it is said."""

STALLED = "the server stalled"
COUNTED = "tokens are the server's own counts (usage)"
UNCOUNTED = "the server does not count its tokens (no usage): output tokens are the chunks that came"
NONE_WHOLE = "no answer was whole"
PROMPTS = "how many tokens prompts have is not known"


def other_length(seen: CellSeen) -> str | None:
    """Say that answers had another length than was asked for; null where they had it, but for a few."""
    answered = _count(seen, "requests")
    if not answered or _count(seen, "short_requests", "long_requests") <= OTHER_LENGTH * answered:
        return None
    mean = (_count(seen, "answer_tokens") or _count(seen, "output_tokens")) / answered
    return f"answers had {mean:.1f} tokens on average, not {seen.cell.output_tokens}"


def none_whole(seen: CellSeen) -> str | None:
    """Say that windows of a server ended before an answer did; null where some answer ended in each of them."""
    without = [window for window in seen.whole if not window.count("requests")] if seen.is_server else []
    if not without:
        return None
    length = f"{max(window.window_s for window in without):.2g} s"
    if len(without) == len(seen.whole):
        return f"{NONE_WHOLE} within the window of {length}"
    return f"{NONE_WHOLE} within {len(without)} of {len(seen.whole)} windows, of up to {length}"


def notes(seen: CellSeen) -> list[str]:
    """Return what a server's user should know of its answers, the gravest first; of a model of ours nothing."""
    return (
        [*_none_whole(seen), *_length(seen), *_silent(seen), *_counted(seen), *_chunks(seen)] if seen.is_server else []
    )


def _none_whole(seen: CellSeen) -> list[str]:
    reason = none_whole(seen)
    return [] if reason is None else [f"{reason}: make scenario.window_s longer than an answer takes"]


def _length(seen: CellSeen) -> list[str]:
    """Say how many answers had fewer or more tokens than were asked for, and what that means for requests."""
    answered, requested, reason = _count(seen, "requests"), seen.cell.output_tokens, other_length(seen)
    parts = [
        f"{count:.0f} of {answered:.0f} answers {words} the {requested} tokens asked for"
        for name, words in (("short_requests", "ended before"), ("long_requests", "went on beyond"))
        if (count := _count(seen, name))
    ]
    return parts if reason is None else [f"{' and '.join(parts)}; figures of requests are left out, as {reason}"]


def _silent(seen: CellSeen) -> list[str]:
    """Say how long streams were silent that were so for far longer than usual."""
    lengths = [float(us) / 1e6 for window in seen.whole for us in window.samples("silence_us")]
    if not lengths:
        return []
    often, longest = "once" if len(lengths) == 1 else f"{len(lengths)} times", f"{max(lengths):.2g} s"
    return [f"{STALLED}: {often} a stream was silent for far longer than usual, for up to {longest}"]


def _counted(seen: CellSeen) -> list[str]:
    """Say who has counted the tokens of the answers."""
    answered, uncounted = _count(seen, "requests"), _count(seen, "uncounted_requests")
    if not answered:
        return []
    if not uncounted:
        return [COUNTED]
    if uncounted < answered:
        return [f"{uncounted:.0f} of {answered:.0f} answers came without the server's count: there chunks count"]
    per_chunk = next((ratio for window in seen.whole if (ratio := window.fact("tokens_per_chunk")) is not None), 1.0)
    several = "which may have several each" if per_chunk == 1 else f"each for {per_chunk:.3g}, as before the load"
    is_known = any(len(window.samples("input_tokens")) for window in seen.whole)
    prompts = "those of prompts are as it counted them before the load" if is_known else PROMPTS
    return [f"{UNCOUNTED}, {several}; {prompts}"]


def _chunks(seen: CellSeen) -> list[str]:
    """Say how many tokens came at once, by the server's own count."""
    chunks = sum(len(window.samples(name)) for window in seen.whole for name in ("first_token_us", "gap_us"))
    tokens = _count(seen, "output_tokens")
    if _count(seen, "uncounted_requests") or not chunks or 1 / SEVERAL <= tokens / chunks <= SEVERAL:
        return []
    text = f"a chunk has {tokens / chunks:.3g} tokens on average: it counts for about so many when it comes"
    return [f"{text}, an answer is set right by the server's count at its end, and gaps are between chunks"]


def _count(seen: CellSeen, *names: str) -> float:
    return sum(window.count(*names) for window in seen.whole)
