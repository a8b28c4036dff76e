"""What a run set out to do: enough to run it again, or to go on with it."""

from __future__ import annotations

import json
from typing import Self

from pydantic import Field, JsonValue

from assay.core.seals import PATTERN, sealed
from assay.core.values import SCHEMA_VERSION, Value


class Plan(Value):
    """What was asked for."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    experiment: str
    options: dict[str, JsonValue]
    seed: int
    versions: dict[str, str | None]
    cwd: str = Field(description="The folder that relative paths in the options start from.")
    created_at: str
    monitor: bool = Field(default=False, description="Whether a recorder watches meanwhile.")
    monitor_interval_s: float | None = Field(default=None, gt=0, description="Null: as is usual for the machine.")


class StoredPlan(Plan):
    """The content of ``plan.json``: also which run it is, and the digest of the machine it was planned on."""

    run_id: str = Field(min_length=1, description="What the first blocks and records are chained to.")
    machine_digest: str = Field(pattern=PATTERN, description="SHA-256 of machine.json.")

    @classmethod
    def of(cls, plan: Plan, run_id: str, machine_digest: str) -> Self:
        """Return a plan as it is stored."""
        return cls.model_validate({**plan.as_json(), "run_id": run_id, "machine_digest": machine_digest})

    @property
    def plan(self) -> Plan:
        """What was asked for, alone."""
        return Plan.model_validate(self.model_dump(exclude={"run_id", "machine_digest"}))

    def as_bytes(self) -> bytes:
        """Return the file, with its own digest."""
        return sealed(json.dumps(self.as_json(), indent=2, ensure_ascii=False)).encode() + b"\n"
