"""The base class of all values that cross a package boundary: frozen, complete, and strict about unknown keys."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

SCHEMA_VERSION = 1

Scalar: TypeAlias = bool | int | float | str | None
Params: TypeAlias = dict[str, Scalar]
"""Parameters or a configuration: names to plain values, in the order given."""


class Value(BaseModel):
    """A frozen value; unknown keys are errors, so that a misspelt one is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that an earlier version did not have: while they have their default, the content id does not change."""

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
    text = json.dumps(_content(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _content(value: Any) -> Any:
    """Return the content that identifies a value: all of it except ``LATER`` fields with default values."""
    if isinstance(value, Value):
        fields = type(value).model_fields
        contents = {name: getattr(value, name) for name in fields}
        unused = {name for name in type(value).LATER if contents[name] == fields[name].default}
        return {name: _content(part) for name, part in contents.items() if name not in unused}
    if isinstance(value, tuple | list):
        return [_content(part) for part in value]
    if isinstance(value, dict):
        return {key: _content(part) for key, part in value.items()}
    return value
