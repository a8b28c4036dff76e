"""One command on several kinds of GPU in parallel: its record on disk, how the budget is shared, and how it ended."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from assay.core.errors import EXIT_INTERNAL_ERROR, EXIT_OK, EXIT_STOPPED, BadInput, GateFailed, MachineCannot
from assay.core.files import read_json, replace_atomically
from assay.core.values import SCHEMA_VERSION, Value
from assay.hosts.choose import OfferCandidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FILE = "fan-out.json"
OFFER_FILE = "rented.json"
FOLDER_VARIABLE = "ASSAY_LEG_FOLDER"
"""Names a machine's folder to the process that rents it."""

COMPARISON = "compare.json"
REPORT = "report.md"

EXIT_CODES_WORST_FIRST = (
    EXIT_INTERNAL_ERROR,
    BadInput.exit_code,
    MachineCannot.exit_code,
    EXIT_STOPPED,
    GateFailed.exit_code,
    EXIT_OK,
)
"""Exit codes from the worst to the best: what a command of several machines ends with."""

State = Literal["refused", "waits", "done", "failed"]


class FanOutRun(Value):
    """One kind of GPU of a fan-out."""

    gpu_label: str = Field(description="As it was asked for: a type or a family.")
    gpu: str | None = Field(default=None, description="The type that was chosen; null: none was.")
    host: str | None = None
    offer: str | None = None
    usd_per_hour: float | None = None
    priced_on: str | None = Field(default=None, description="The day of the price; null: of this moment.")
    expected_usd: float | None = None
    most_usd: float | None = Field(default=None, description="If the machine ran up to its limit.")
    state: State = "waits"
    reason: str | None = Field(default=None, description="Why it was refused, or failed.")
    exit_code: int | None = Field(default=None, description="Null: it was refused, or has not ended.")
    folder: str | None = Field(default=None, description="Within the fan-out's folder; null: nothing was rented.")
    run: str | None = Field(default=None, description="Its run folder, within the fan-out's folder.")
    took_s: float | None = Field(default=None, description="From asking for the machine to its end.")


class FanOut(Value):
    """The content of ``fan-out.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    words: tuple[str, ...] = Field(description="The verb and its options, without what says where.")
    runs: tuple[FanOutRun, ...]

    @property
    def exit_code(self) -> int:
        """The worst of all machines; what was refused counts only where nothing was rented at all."""
        return worst_exit_code(leg.exit_code for leg in self.runs if leg.exit_code is not None)

    def write(self, folder: Path) -> None:
        """Write it, in one step."""
        replace_atomically(folder / FILE, self.model_dump_json(indent=2, by_alias=True).encode() + b"\n")


def record_offer(offer: OfferCandidate) -> None:
    """Write down which offer is taken, where a fan-out wants to know; the last one counts."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        replace_atomically(Path(folder) / OFFER_FILE, offer.model_dump_json().encode())


def recorded_offer(folder: Path) -> OfferCandidate | None:
    """Return the offer that a machine's process has taken; null: it has not come so far."""
    try:
        return OfferCandidate.model_validate(read_json(folder / OFFER_FILE))
    except (BadInput, ValidationError):
        return None


def worst_exit_code(codes: Iterable[int]) -> int:
    """Return the worst of some exit codes; one that is not known is a defect, none at all is that nothing could."""
    known_codes = [code if code in EXIT_CODES_WORST_FIRST else EXIT_INTERNAL_ERROR for code in codes]
    return min(known_codes, key=EXIT_CODES_WORST_FIRST.index, default=MachineCannot.exit_code)


def share_budget(purse_usd: float, costs_usd: Sequence[float]) -> tuple[float, ...] | None:
    """Return how much of a sum each of several machines may cost; null where it is not enough for all.

    In proportion to what each is expected to cost, so that all have the same slack.
    """
    total = math.fsum(costs_usd)
    if total > purse_usd:
        return None
    if not total:
        return tuple(purse_usd / len(costs_usd) for _ in costs_usd)
    return tuple(max(cost, purse_usd * (cost / total)) for cost in costs_usd)
