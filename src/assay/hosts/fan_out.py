"""One command on several kinds of GPU at once: what is kept of it, how money is shared, and how it ended.

FAN-OUT/
  fan-out.json     what was asked for, and how each kind of GPU got on
  L4/              what that machine left: its run folder, the order's files, ``leg.out``, ``leg.err``, ``rented.json``
  A100-80GB/
  report.md        every kind of GPU, and what was measured side by side
  compare.json     the comparison, as `assay compare --json` has it
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from assay.core.durable import read_json, replace_atomically
from assay.core.errors import EXIT_DEFECT, EXIT_DONE, EXIT_STOPPED, BadInput, GateSaysNo, MachineCannot
from assay.core.values import SCHEMA_VERSION, Value
from assay.hosts.choosing import Candidate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FILE = "fan-out.json"
RENTED = "rented.json"
FOLDER_VARIABLE = "ASSAY_LEG_FOLDER"
"""Names a machine's folder to the process that rents it."""

COMPARISON = "compare.json"
REPORT = "report.md"

WORST = (EXIT_DEFECT, BadInput.exit_code, MachineCannot.exit_code, EXIT_STOPPED, GateSaysNo.exit_code, EXIT_DONE)
"""Exit codes from the worst to the best: what a command of several machines ends with."""

State = Literal["refused", "waits", "done", "failed"]


class Leg(Value):
    """One kind of GPU of a fan-out."""

    asked: str = Field(description="As it was asked for: a type or a family.")
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
    legs: tuple[Leg, ...]

    @property
    def exit_code(self) -> int:
        """The worst of all machines; what was refused counts only where nothing was rented at all."""
        return worst(leg.exit_code for leg in self.legs if leg.exit_code is not None)

    def write(self, folder: Path) -> None:
        """Write it, in one step."""
        replace_atomically(folder / FILE, self.model_dump_json(indent=2, by_alias=True).encode() + b"\n")


def note(taken: Candidate) -> None:
    """Write down which offer is taken, where a fan-out wants to know; the last one counts."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        replace_atomically(Path(folder) / RENTED, taken.model_dump_json().encode())


def noted(folder: Path) -> Candidate | None:
    """Return the offer that a machine's process has taken; null: it has not come so far."""
    try:
        return Candidate.model_validate(read_json(folder / RENTED))
    except (BadInput, ValidationError):
        return None


def worst(codes: Iterable[int]) -> int:
    """Return the worst of some exit codes; one that is not known is a defect, none at all is that nothing could."""
    known_codes = [code if code in WORST else EXIT_DEFECT for code in codes]
    return min(known_codes, key=WORST.index, default=MachineCannot.exit_code)


def shared(purse_usd: float, costs_usd: Sequence[float]) -> tuple[float, ...] | None:
    """Return how much of a sum each of several machines may cost; null where it is not enough for all.

    In proportion to what each is expected to cost, so that all have the same slack.
    """
    total = math.fsum(costs_usd)
    if total > purse_usd:
        return None
    if not total:
        return tuple(purse_usd / len(costs_usd) for _ in costs_usd)
    return tuple(max(cost, purse_usd * (cost / total)) for cost in costs_usd)
