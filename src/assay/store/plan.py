"""What a run set out to do: enough to run it again, or to go on with it."""

from __future__ import annotations

from pydantic import Field, JsonValue

from assay.core.values import SCHEMA_VERSION, Value


class Plan(Value):
    """The content of ``plan.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    experiment: str
    options: dict[str, JsonValue]
    seed: int
    versions: dict[str, str | None]
    cwd: str = Field(description="The folder that relative paths in the options start from.")
    created_at: str
    monitor: bool = Field(default=False, description="Whether a recorder watches meanwhile.")
    monitor_interval_s: float | None = Field(default=None, gt=0, description="Null: as is usual for the machine.")
