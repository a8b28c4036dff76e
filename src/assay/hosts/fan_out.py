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
from assay.hosts.offers import OfferCandidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FILE = "fan-out.json"
OFFER_FILE = "rented.json"
FOLDER_VARIABLE = "ASSAY_FAN_OUT_FOLDER"
"""Environment variable with a run's folder, for the process that rents its machine."""

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
"""Exit codes from the worst to the best; a fan-out ends with the worst of its runs."""

State = Literal["refused", "waits", "done", "failed"]


class FanOutRun(Value):
    """One kind of GPU of a fan-out."""

    gpu_label: str = Field(description="As requested: a type or a family.")
    gpu: str | None = Field(default=None, description="The chosen type; null: none was chosen.")
    host: str | None = None
    offer: str | None = None
    usd_per_hour: float | None = None
    priced_on: str | None = Field(default=None, description="Date of the price; null: a live price.")
    expected_usd: float | None = None
    most_usd: float | None = Field(default=None, description="Cost if the machine runs up to its limit.")
    state: State = "waits"
    reason: str | None = Field(default=None, description="Why it was refused or failed.")
    exit_code: int | None = Field(default=None, description="Null: refused, or not ended.")
    folder: str | None = Field(default=None, description="Within the fan-out's folder; null: nothing was rented.")
    run: str | None = Field(default=None, description="Its run folder, within the fan-out's folder.")
    took_s: float | None = Field(default=None, description="From the request for the machine to its end.")


class FanOut(Value):
    """The content of ``fan-out.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    words: tuple[str, ...] = Field(description="The command and its options, without those that select the machine.")
    runs: tuple[FanOutRun, ...]

    @property
    def exit_code(self) -> int:
        """The worst of all runs; refused ones count only where nothing was rented at all."""
        return worst_exit_code(run.exit_code for run in self.runs if run.exit_code is not None)

    def write(self, folder: Path) -> None:
        """Write the file atomically."""
        replace_atomically(folder / FILE, self.model_dump_json(indent=2, by_alias=True).encode() + b"\n")


def record_offer(offer: OfferCandidate) -> None:
    """Record the chosen offer, if this process is part of a fan-out; the last one counts."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        replace_atomically(Path(folder) / OFFER_FILE, offer.model_dump_json().encode())


def recorded_offer(folder: Path) -> OfferCandidate | None:
    """Return the offer that a run's process has taken; null: it has not got that far."""
    try:
        return OfferCandidate.model_validate(read_json(folder / OFFER_FILE))
    except (BadInput, ValidationError):
        return None


def worst_exit_code(codes: Iterable[int]) -> int:
    """Return the worst of some exit codes; an unknown one counts as an internal error, none as ``MachineCannot``."""
    known_codes = [code if code in EXIT_CODES_WORST_FIRST else EXIT_INTERNAL_ERROR for code in codes]
    return min(known_codes, key=EXIT_CODES_WORST_FIRST.index, default=MachineCannot.exit_code)


def share_budget(budget_usd: float, costs_usd: Sequence[float]) -> tuple[float, ...] | None:
    """Return each machine's share of a budget, in USD; null where it is not enough for all.

    Shares are proportional to the expected costs, so that all have the same relative slack.
    """
    total = math.fsum(costs_usd)
    if total > budget_usd:
        return None
    if not total:
        return tuple(budget_usd / len(costs_usd) for _ in costs_usd)
    return tuple(max(cost, budget_usd * (cost / total)) for cost in costs_usd)
