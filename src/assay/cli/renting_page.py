"""What would be rented, as a page: the offers for each kind of GPU, which is taken, and what it is expected to cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text
from assay.core.units import format_span
from assay.core.values import SCHEMA_VERSION
from assay.hosts.choosing import SET_UP_S, usd
from assay.hosts.gpu_types import types_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from assay.cli.renting_plan import Kind, Wanted
    from assay.core.page import Cell, Tone
    from assay.hosts.base import Offer
    from assay.hosts.choosing import Candidate

COLUMNS = (
    "host",
    "machine",
    "GPU",
    "$ an hour",
    "priced",
    "answers after",
    "done after",
    "about",
    "at most",
    "verdict",
)


def page(wanted: Wanted) -> Page:
    """Return what a dry run shows."""
    sections = [Section(title=label(request), elements=_elements(wanted, request)) for request in wanted.kinds]
    return Page(
        title=f"assay {wanted.verb}: what would be rented",
        lead=" ".join(headline(request) for request in wanted.kinds),
        lead_tone="good" if any(request.choice.best for request in wanted.kinds) else "bad",
        sections=(*sections, Section(title="What to know", elements=tuple(Text(text=text) for text in notes(wanted)))),
    )


def label(kind: Kind) -> str:
    """Write what is asked for: "L4", "2 × A100", "any GPU"."""
    name = kind.asked or "any GPU"
    return name if kind.choice.need.gpu_count == 1 else f"{kind.choice.need.gpu_count} × {name}"


def headline(kind: Kind) -> str:
    """Say what is taken for one kind of GPU, or that nothing is; why stands below."""
    best = kind.choice.best
    if best is None:
        return (
            f"{label(kind)}: refused." if kind.refused is not None else f"{label(kind)}: none can be rented from here."
        )
    offer = best.offer
    return (
        f"{label(kind)}: {offer.host} {offer.name}, {usd(best.cost_usd or 0.0)} for about "
        f"{format_span(best.expected_s)} at {hourly(offer)} an hour ({priced(offer)})."
    )


def priced(offer: Offer) -> str:
    """Say of when a price is."""
    return "now" if offer.priced_on is None else f"listed {offer.priced_on}"


def hourly(offer: Offer) -> str | None:
    """Write a price by the hour; null where it is not known."""
    return None if offer.usd_per_hour is None else f"${offer.usd_per_hour:.2f}"


def _elements(wanted: Wanted, kind: Kind) -> tuple[Table | Text, ...]:
    if kind.refused is not None:
        return (Text(text=f"refused: {kind.refused}. Nothing is rented for it.", tone="bad"),)
    candidates = [candidate for candidate in kind.choice.candidates if concerns(kind, candidate.offer)]
    if not candidates:
        return (Text(text=sentence(f"Nobody who can be asked offers it: {kind.why_none}"), tone="bad"),)
    tones: list[Tone] = [_tone(kind, candidate) for candidate in candidates]
    return (
        Table(
            title="Offers, the cheapest for the whole of it first",
            columns=tuple(
                Column(title=title, numeric=title not in {"host", "machine", "GPU", "verdict"}) for title in COLUMNS
            ),
            rows=tuple(_row(wanted, kind, candidate) for candidate in candidates),
            tones=tuple(tones),
        ),
    )


def concerns(kind: Kind, offer: Offer) -> bool:
    """Return whether an offer could be what is asked for, if it were free and cheap enough."""
    need = kind.choice.need
    same = need.gpu is None or (offer.gpu is not None and bool(set(types_of(need.gpu)) & set(types_of(offer.gpu))))
    return same and offer.gpu_count in {None, need.gpu_count}


def _row(wanted: Wanted, kind: Kind, each: Candidate) -> tuple[Cell, ...]:
    offer = each.offer
    return (
        offer.host,
        offer.name if offer.region is None else f"{offer.name} ({offer.region})",
        offer.gpu if (offer.gpu_count or 1) == 1 else f"{offer.gpu_count} × {offer.gpu}",
        hourly(offer),
        offer.priced_on or "now",
        None if offer.ready_s is None else format_span(offer.ready_s),
        format_span(each.expected_s),
        None if each.cost_usd is None else usd(each.cost_usd),
        None if each.most_usd is None or each.most_usd < (each.cost_usd or 0.0) else usd(each.most_usd),
        _verdict(wanted, kind, each),
    )


def _verdict(wanted: Wanted, kind: Kind, each: Candidate) -> str:
    if each == kind.choice.best:
        return "taken"
    if each.why_not is not None and each.why_not == wanted.shut.get(each.offer.host):
        return "cannot be asked from here: see below"
    return each.why_not or "would do"


def _tone(kind: Kind, each: Candidate) -> Tone:
    if each == kind.choice.best:
        return "good"
    return "plain" if each.why_not is None else "unsure"


def notes(wanted: Wanted) -> list[str]:
    """Say what the numbers rest on."""
    run_s = wanted.expected.run_s
    lines = [
        (
            f"The run itself takes about {format_span(run_s)} ({wanted.expected.said}), setting the machine up "
            f"{format_span(SET_UP_S)}; after how long it answers is as seen here before, as the host says, or assumed."
        ),
        (
            "“At most” is the price until the machine's deadline, at which it is ended whatever happens; there is none "
            "where the money or the time is less than what is expected, and nothing is rented."
        ),
    ]
    if any(candidate.offer.priced_on for kind in wanted.kinds for candidate in kind.choice.candidates):
        lines.append(
            "A price with a month is from the snapshot in this package and may have changed; “now” was just asked for."
        )
    if wanted.max_cost_usd is not None:
        lines.append(f"--max-cost: {usd(wanted.max_cost_usd)} for all of it.")
    if wanted.left_usd is not None:
        lines.append(f"Of this month's budget {usd(max(0.0, wanted.left_usd))} are left.")
    return [*lines, *(sentence(f"{name}: {why}") for name, why in wanted.shut.items())]


def sentence(text: str) -> str:
    """Return a clause with its full stop, where it has no mark of its own."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def as_data(wanted: Wanted) -> dict[str, JsonValue]:
    """Return the same as JSON."""
    return {
        "schema": SCHEMA_VERSION,
        "dry_run": True,
        "verb": wanted.verb,
        "expected_run_s": wanted.expected.run_s,
        "expected_run_said": wanted.expected.said,
        "max_cost_usd": wanted.max_cost_usd,
        "month_left_usd": wanted.left_usd,
        "kinds": [
            {
                "asked": request.asked,
                "gpu_count": request.choice.need.gpu_count,
                "refused": request.refused,
                "why_none": request.why_none,
                "chosen": None if request.choice.best is None else request.choice.best.as_json(),
                "candidates": [c.as_json() for c in request.choice.candidates if concerns(request, c.offer)],
            }
            for request in wanted.kinds
        ],
        "expected_usd": _sum([request.choice.best.cost_usd for request in wanted.kinds if request.choice.best]),
        "most_usd": _sum([request.choice.best.most_usd for request in wanted.kinds if request.choice.best]),
        "shut": dict(wanted.shut),
    }


def _sum(amounts: Sequence[float | None]) -> float | None:
    amounts_known = [amount for amount in amounts if amount is not None]
    return sum(amounts_known) if amounts_known else None
