"""The base of every value that crosses a room: frozen, complete, and strict about its keys."""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

SCHEMA_VERSION = 1

Scalar: TypeAlias = bool | int | float | str | None
Params: TypeAlias = dict[str, Scalar]
"""Parameters or a configuration: names to plain values, in the order they were given."""


class Value(BaseModel):
    """A frozen value; unknown keys are errors, so that a misspelt one is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    def as_json(self) -> dict[str, JsonValue]:
        """Return the value as plain JSON data, under the names it is read back by."""
        return self.model_dump(mode="json", by_alias=True)


def first_problem(error: ValidationError) -> str:
    """Return the first thing a model complains about, with its place: ``options.seed: Input should be …``."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else problem["msg"]


def identity(value: Value, *, length: int = 12) -> str:
    """Return a short hash of a value's content: equal content, equal identity, on any machine."""
    text = json.dumps(value.as_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
