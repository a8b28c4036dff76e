"""Read YAML and JSON that users write, as plain JSON data; messages name the file, the line and the column.

YAML aliases can expand to more values than memory holds; such a text is rejected without expanding it:

    a: &a [x, x, x]        3 values
    b: &b [*a, *a, *a]     9
    c: &c [*b, *b, *b]     27, and so on with every line
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.files import SURROGATE_PROBLEM, decode_text, read_bytes, read_json

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue
    from ruamel.yaml.error import YAMLError

MAX_ALIAS_VALUES = 100_000
"""Maximum number of values that all aliases of a text may expand to."""


def read_yaml(path: Path) -> JsonValue:
    """Return the content of a YAML 1.2 file as plain JSON data: keys (``0:`` is "0") and dates become text.

    Raises:
        BadInput: It cannot be read or is not YAML, or a key is repeated; the message names the file, the line and
            the column.
    """
    return parse_yaml(decode_text(read_bytes(path), path), str(path))


def parse_yaml(text: str, name: str) -> JsonValue:
    """Return the same for a text; error messages begin with its name.

    Raises:
        BadInput: It is not YAML, a key is repeated, or its aliases expand to too much.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        if (complaint := find_alias_expansion(text)) is not None:
            raise complaint
        content = _to_json_data(YAML(typ="safe", pure=True).load(text))
        if "\\" in text:
            _refuse_unusable_text(content)
    except YAMLError as error:
        raise BadInput(f"{name}{describe_yaml_error(error, text)}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{name} is not usable YAML: {error}.") from error
    return content


def read_settings(path: Path) -> JsonValue:
    """Return the content of a user's settings file: JSON if its suffix says so, else YAML.

    Raises:
        BadInput: As for `read_json` and `read_yaml`, or a text in it holds a NUL character, which no name can.
    """
    if path.suffix != ".json":
        return read_yaml(path)
    content = read_json(path)
    try:
        _refuse_unusable_text(content)
    except ValueError as error:
        raise BadInput(f"{path} is not usable JSON: {error}.") from error
    return content


def find_alias_expansion(text: str) -> YAMLError | None:
    """Return the error, with its location, where the aliases of a text expand to too much; null: they do not.

    Raises:
        YAMLError: It is not YAML.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import ComposerError
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    if "&" not in text or "*" not in text:
        return None
    sizes: dict[str, int] = {}
    open_collections: list[tuple[str | None, int]] = []
    values = aliased_values = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, CollectionStartEvent):
            open_collections.append((event.anchor, values))
            values += 1
        elif isinstance(event, CollectionEndEvent):
            anchor, before = open_collections.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, AliasEvent):
            size = sizes.get(event.anchor, 1)
            values += size
            aliased_values += size
            if aliased_values > MAX_ALIAS_VALUES:
                return ComposerError(
                    problem=f"its aliases stand for more than {MAX_ALIAS_VALUES} values", problem_mark=event.start_mark
                )
        elif isinstance(event, ScalarEvent):
            values += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
    return None


def _refuse_unusable_text(content: JsonValue) -> None:
    """Raise a ValueError where a text holds what no name, path or command can: a NUL, or half of a surrogate pair."""
    text = json.dumps(content, ensure_ascii=False)
    if "\\u0000" in text.replace("\\\\", ""):
        raise ValueError("it holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(SURROGATE_PROBLEM) from None


def _to_json_data(value: object) -> JsonValue:
    """Return a parsed YAML value as JSON data."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            plain = {
                key if isinstance(key, str) else json.dumps(_to_json_data(key)): _to_json_data(item)
                for key, item in value.items()
            }
            if len(plain) < len(value):
                raise ValueError("a key comes twice, once as a number and once as text")
            return plain
        case list() | tuple() | set():
            return [_to_json_data(item) for item in value]
        case _:
            return str(value)


def describe_yaml_error(error: YAMLError, text: str) -> str:
    """Describe why a text is not YAML, and where; the result follows the file's name.

    The parser's marks count from 0; forbidden characters have a position.
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)
    location = ""
    if mark is not None:
        location = f", line {mark.line + 1}, column {mark.column + 1}"
    elif position is not None:
        line = text.count("\n", 0, position) + 1
        location = f", line {line}, column {position - text.rfind(chr(10), 0, position)}"
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if reason.startswith("but "):
        reason = f"{getattr(error, 'context', None)} {reason}"
    return f"{location}: not valid YAML: {' '.join(str(reason).split()).rstrip('.')}."
