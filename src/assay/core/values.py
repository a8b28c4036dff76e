"""The base class of every value that crosses a package boundary: frozen, complete, and strict about its keys."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

SCHEMA_VERSION = 1

Scalar: TypeAlias = bool | int | float | str | None
Params: TypeAlias = dict[str, Scalar]
"""Parameters or a configuration: names to plain values, in the order they were given."""


class Value(BaseModel):
    """A frozen value; unknown keys are errors, so that a misspelt one is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that an earlier version did not have: unused, they leave identities as they were."""

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
"""What a model complains about most, in words."""


def first_problem(error: ValidationError) -> str:
    """Return the first thing a model complains about, with its place: ``options.seed should be a valid integer``."""
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
    """Return a short hash of a value's content: equal content, equal identity, on any machine."""
    text = json.dumps(_content(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _content(value: Any) -> Any:
    """Return what a value's identity is made of: all of it, but for fields that came later and are not used."""
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
