"""The base class of all values that cross a package boundary: frozen, complete, and strict about unknown keys."""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

SCHEMA_VERSION = 1

Scalar: TypeAlias = bool | int | float | str | None
Params: TypeAlias = dict[str, Scalar]
"""Parameters or a configuration: names to plain values, in the order given."""


class Value(BaseModel):
    """A frozen value; unknown keys are errors, so that a misspelt one is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    def as_json(self) -> dict[str, JsonValue]:
        """Return the value as plain JSON data, under the names it is read back by."""
        return self.model_dump(mode="json", by_alias=True)


PROBLEM_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "json_invalid": "is not valid JSON",
    "union_tag_not_found": "does not say what kind of thing it is",
    "union_tag_invalid": "is of a kind that is not known",
}
"""Wording for the most frequent validation errors."""


def first_problem(error: ValidationError) -> str:
    """Return the first validation error with its location: ``options.seed should be a valid integer``."""
    problem = error.errors()[0]
    if not problem["loc"] and problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    location = ".".join(str(part) for part in problem["loc"]) or "it"
    if problem["type"] in PROBLEM_MESSAGES:
        return f"{location} {PROBLEM_MESSAGES[problem['type']]}"
    message = problem["msg"]
    if message.startswith("Input should "):
        return f"{location} {message.removeprefix('Input ')}"
    return f"{location}: {message.removeprefix('Value error, ')}"


def content_id(value: Value, *, length: int = 12) -> str:
    """Return a short hash of a value's content: equal content has equal ids on any machine."""
    text = json.dumps(value.model_dump(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
