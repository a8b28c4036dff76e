"""Change single values in a YAML file, and nothing else: comments, order, quotes and line ends stay as they are.

    runtime:                                       runtime:
      fa2_min_len_win: 64     # measured   ──>       fa2_min_len_win: 128     # Updated by benchmark; measured
      fa2_min_len_cmp: 16                            fa2_min_len_cmp: 16

text ──events──> documents ──< YamlNode: a scalar, a mapping, a sequence or an alias, each with its position
     ──tokens──> where a scalar itself begins after its anchor, and where the last token of a line ends

Only the characters of the value are replaced, and the mark is put into the comment of its line. The edited text is
parsed again and must differ from the original in these values alone. Values are written so that YAML 1.1 and YAML 1.2
parsers read the same.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from assay.core.errors import BadInput, suggest_nearest
from assay.core.files import lock_current_file, read_text, replace_atomically
from assay.core.yaml_input import describe_yaml_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from assay.core.values import Scalar


MERGE_KEY = "<<"
BLOCK_STYLES = {"|", ">"}


@dataclass(frozen=True)
class _PathStep:
    """A mapping on the path to a value, with the key and value that the path follows."""

    mapping: YamlNode
    key: YamlNode
    value: YamlNode


def find_value(tree: YamlTree, key: str, name: str) -> tuple[YamlNode, YamlNode]:
    """Return the last part of a dotted key, and its scalar, in whichever document of the text it is.

    Raises:
        BadInput: It does not exist, exists more than once, is not a single value, or is shared with other places. The
            message begins with ``name`` and gives the line.
    """
    if not all(part.strip() for part in key.split(".")):
        raise BadInput(f"{key!r} is not a key: write names with dots between them, as runtime.fa2_min_len_win.")
    matches = [(root, steps) for root in tree.documents for steps in _key_paths(root, key.split("."))]
    if not matches:
        raise BadInput(_missing_key_message(tree, key, name))
    if len(matches) > 1:
        lines = " and ".join(map(str, sorted(steps[-1].key.line for _, steps in matches)))
        raise BadInput(f"{name}, lines {lines}: {key} stands there more than once, and it is not clear which is meant.")
    root, steps = matches[0]
    _refuse_duplicates(steps, key, name)
    _refuse_shared(root, steps, key, name)
    return steps[-1].key, _require_scalar(steps[-1].value, key, name)


def _key_paths(node: YamlNode, names: Sequence[str]) -> Iterator[tuple[_PathStep, ...]]:
    """Yield every path from a node that matches these names; a key may contain dots."""
    for count in range(1, len(names) + 1):
        matches = [step for step in node.pairs if step[0].has_value(".".join(names[:count]))]
        if not matches:
            continue
        step = _PathStep(node, *matches[-1])  # of several, most parsers use the last
        if count == len(names):
            yield (step,)
        else:
            yield from ((step, *rest) for rest in _key_paths(step.value, names[count:]))


def _refuse_duplicates(steps: Sequence[_PathStep], key: str, name: str) -> None:
    for step in steps:
        lines = [str(k.line) for k, _ in step.mapping.pairs if k.has_value(step.key.value)]
        if len(lines) > 1:
            what = f"{step.key.value}, on the way to {key}," if step.key is not steps[-1].key else key
            raise BadInput(
                f"{name}, lines {' and '.join(lines)}: {what} stands there more than once; remove all but one."
            )


def _refuse_shared(root: YamlNode, steps: Sequence[_PathStep], key: str, name: str) -> None:
    """Reject a value that an alias elsewhere repeats: changing it would change that too."""
    used = {part.value: part.line for part in root.parts if part.kind == "alias"}
    for node in (*(step.mapping for step in steps), steps[-1].value):
        if node.anchor is not None and node.anchor in used:
            raise BadInput(
                f"{name}, line {steps[-1].key.line}: {key} is part of &{node.anchor}, which line {used[node.anchor]} "
                f"repeats as *{node.anchor}; changing it would change that too, so write one of them out."
            )


def _require_scalar(value: YamlNode, key: str, name: str) -> YamlNode:
    where = f"{name}, line {value.line}: {key}"
    if value.kind == "alias":
        raise BadInput(f"{where} is *{value.value}, a value that stands elsewhere; write it out here to change it.")
    if value.kind != "scalar":
        what = "a list" if value.kind == "sequence" else "a mapping"
        raise BadInput(f"{where} is {what}, and only a single value can be changed.")
    if value.tag is not None:
        raise BadInput(f"{where} has the tag {value.tag}, and what that makes of a value is not known here.")
    if value.style in BLOCK_STYLES:
        raise BadInput(f"{where} is a block of text ({value.style}), and only a value on its line can be changed.")
    return value


def _missing_key_message(tree: YamlTree, key: str, name: str) -> str:
    """Return how far the path exists, why no further, and similar names."""
    names = key.split(".")
    for count in range(len(names) - 1, -1, -1):
        for root in tree.documents:
            for node in [steps[-1].value for steps in _key_paths(root, names[:count])] if count else [root]:
                reason = _unreachable_reason(node, key, ".".join(names[:count]))
                if reason is not None:
                    return f"{name}, line {reason}"
    scalar_keys = [dotted for root in tree.documents for dotted in _dotted_keys(root, "")]
    return f"{name} has no key {key}.{suggest_nearest(key, scalar_keys)}"


def _unreachable_reason(node: YamlNode, key: str, reached: str) -> str | None:
    """Return, starting with the line, why a key cannot be in the node its prefix leads to; null: it just is not."""
    if node.kind == "alias":
        return f"{node.line}: {reached} is *{node.value}, which stands elsewhere; write it out here to change {key}."
    merged = next((k.line for k, _ in node.pairs if k.has_value(MERGE_KEY)), None)
    if merged is not None:
        return (
            f"{merged}: {key} is not written there; it may come from what {MERGE_KEY} merges, where others would "
            f"change with it, so write it out beside {MERGE_KEY} to change it."
        )
    if node.kind != "mapping" and reached:
        what = "a list" if node.kind == "sequence" else "a single value"
        return f"{node.line}: {reached} is {what}, so that there is no {key} in it."
    return None


def _dotted_keys(node: YamlNode, before: str) -> Iterator[str]:
    """Yield every dotted key with a single value."""
    for key, value in node.pairs:
        name = f"{before}{key.value}"
        if value.kind == "mapping":
            yield from _dotted_keys(value, f"{name}.")
        elif value.kind == "scalar":
            yield name


NodeKind = Literal["scalar", "mapping", "sequence", "alias"]
END_EVENTS = {"MappingEndEvent", "SequenceEndEvent"}

_TRAILING_BLANKS = re.compile(r"[ \t]+(?=#|\r?$)", re.MULTILINE)
"""Blanks before a comment or a line's end. YAML allows tabs there but the parser does not, so it gets spaces."""


@dataclass(frozen=True)
class YamlNode:
    """A node of a document, from character ``start`` up to ``end``; ``line`` counts from 1.

    Attributes:
        last_line: The line that it ends on.
        value: A scalar's content, unescaped, or the name that an alias refers to.
        style: A scalar's quote, or ``|`` or ``>`` of a block; null: plain.
        tag: The explicit tag; null where there is none.
        pairs: A mapping's keys and values, in order.
        items: A sequence's items.
    """

    kind: NodeKind
    start: int
    end: int
    line: int
    last_line: int
    value: str = ""
    style: str | None = None
    anchor: str | None = None
    tag: str | None = None
    pairs: tuple[tuple[YamlNode, YamlNode], ...] = ()
    items: tuple[YamlNode, ...] = ()

    def has_value(self, text: str) -> bool:
        """Return whether it is a scalar with this content."""
        return self.kind == "scalar" and self.value == text

    @property
    def parts(self) -> Iterator[YamlNode]:
        """The node and all its descendants."""
        yield self
        for part in (*(part for pair in self.pairs for part in pair), *self.items):
            yield from part.parts


@dataclass(frozen=True)
class ScalarSlot:
    """The position of a scalar: start and end character, and the line that it ends on, counted from 1."""

    start: int
    end: int
    line: int


class YamlTree:
    """A text's documents and token positions.

    Raises:
        BadInput: The text is not YAML; the message begins with ``name`` and gives the line.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self._scalar_starts: dict[int, int] = {}
        self._spans: list[tuple[int, int, int]] = []
        self._colons: list[int] = []
        plain = _TRAILING_BLANKS.sub(lambda blanks: " " * len(blanks[0]), text)
        try:
            self.documents = tuple(_parse_documents(plain))
            self._look_at_words(plain)
        except YAMLError as error:
            raise BadInput(f"{name}{_parse_error_text(error, text)}") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise BadInput(f"{name} is not usable YAML: {error}.") from error

    def _look_at_words(self, text: str) -> None:
        for token in YAML(typ="safe", pure=True).scan(text):
            first, last = token.start_mark, token.end_mark
            if last.index > first.index:
                self._spans.append((first.line + 1, last.line + 1, last.index))
                if type(token).__name__ == "ScalarToken":
                    self._scalar_starts[last.index] = first.index
                elif type(token).__name__ == "ValueToken":
                    self._colons.append(last.index)

    def slot(self, key: YamlNode, value: YamlNode) -> ScalarSlot:
        """Return the position of a scalar itself, after its anchor; of an empty one, where it would be."""
        if value.end in self._scalar_starts and value.end > value.start:
            return ScalarSlot(self._scalar_starts[value.end], value.end, value.last_line)
        if value.end > value.start:
            return ScalarSlot(value.end, value.end, value.last_line)
        colon = next((end for end in self._colons if end > key.end), key.end)
        return ScalarSlot(colon, colon, key.last_line)

    def meaning(self, slot: ScalarSlot) -> object:
        """Return the value of a slot's scalar: a number, text, true, false or null; its characters where unclear."""
        source = self.text[slot.start : slot.end]
        try:
            return YAML(typ="safe", pure=True).load(source)
        except (YAMLError, ValueError):
            return source

    def line_end(self, slot: ScalarSlot) -> int:
        """Return where the last token ends on the line that a slot ends on: only a comment may follow.

        If a token continues on the next line, as quoted text may, the line that it ends on is used.
        """
        line, position = slot.line, slot.end
        for first, last, end in self._spans:
            if first <= line <= last and end > position:
                line, position = last, end
        return position


def _parse_documents(text: str) -> Iterator[YamlNode]:
    events = iter(YAML(typ="safe", pure=True).parse(text))
    for event in events:
        if type(event).__name__ == "DocumentStartEvent":
            yield _parse_node(next(events), events)


def _parse_node(event: Any, events: Iterator[Any]) -> YamlNode:
    """Return the node that begins with an event, consuming the rest of its events."""
    name, first, last = type(event).__name__, event.start_mark, event.end_mark
    anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
    fields: dict[str, Any] = {"anchor": anchor, "tag": None if tag is None else str(tag)}
    children: list[YamlNode] = []
    if name == "AliasEvent":
        kind: NodeKind = "alias"
        fields = {"value": anchor}
    elif name == "ScalarEvent":
        kind = "scalar"
        fields |= {"value": event.value, "style": event.style}
    else:
        while type(next_event := next(events)).__name__ not in END_EVENTS:
            children.append(_parse_node(next_event, events))
        last = next_event.end_mark
        kind = "sequence" if name == "SequenceStartEvent" else "mapping"
        fields |= (
            {"items": tuple(children)}
            if kind == "sequence"
            else {"pairs": tuple(zip(children[0::2], children[1::2], strict=True))}
        )
    return YamlNode(kind, first.index, last.index, first.line + 1, last.line + 1, **fields)


def _parse_error_text(error: YAMLError, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and re.match(r" *\t", lines[mark.line]):
        return f", line {mark.line + 1}: it is indented by a tab, which YAML does not allow; use spaces."
    return describe_yaml_error(error, text)


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
_NOT_TEXT = frozenset({"y", "yes", "n", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"})
"""Words that some YAML parsers do not read as text."""

_UNPRINTABLE = re.compile("[^ -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def equal_scalars(one: object, other: Scalar) -> bool:
    """Return whether two values are equal: numbers by value, and booleans only to booleans."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other


def format_scalar(value: Scalar, style: str | None) -> str:
    """Return a value as YAML; text keeps the quotes of what it replaces, and is quoted where necessary."""
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, str):
        return _format_text(value, style)
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    digits, exponent, power = repr(value).partition("e")
    return f"{digits if '.' in digits else f'{digits}.0'}{exponent}{power}"


def _format_text(value: str, style: str | None) -> str:
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise BadInput(f"{value!r} is not text that can be written to a file.")
    if style is None and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    if style == "'" and not _UNPRINTABLE.search(value):
        return "'" + value.replace("'", "''") + "'"
    inside = value.replace("\\", "\\\\").replace('"', '\\"')

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return f'"{_UNPRINTABLE.sub(escape, inside)}"'


def differs_only_in(before: YamlTree, expected: Mapping[YamlNode, Scalar], after: YamlTree) -> bool:
    """Return whether the second text differs from the first only in some values, and has the expected ones there.

    ``expected`` maps key nodes of the first text to their new values.
    """
    if len(before.documents) != len(after.documents):
        return False
    roots = zip(before.documents, after.documents, strict=True)
    return all(_node_differs_only_in(old, expected, new, after) for old, new in roots)


def _node_differs_only_in(
    old_node: YamlNode, expected: Mapping[YamlNode, Scalar], new_node: YamlNode, after: YamlTree
) -> bool:
    if _node_content(old_node) != _node_content(new_node):
        return False
    for (old_key, old), (key, new) in zip(old_node.pairs, new_node.pairs, strict=True):
        if not _node_differs_only_in(old_key, expected, key, after):
            return False
        if old_key not in expected:
            if not _node_differs_only_in(old, expected, new, after):
                return False
        elif (new.kind, new.anchor, new.tag) != ("scalar", old.anchor, None) or not equal_scalars(
            after.meaning(after.slot(key, new)), expected[old_key]
        ):
            return False
    return all(
        _node_differs_only_in(old, expected, new, after)
        for old, new in zip(old_node.items, new_node.items, strict=True)
    )


def _node_content(node: YamlNode) -> tuple[object, ...]:
    return node.kind, node.value, node.style, node.anchor, node.tag, len(node.pairs), len(node.items)


DEFAULT_MARK = "Updated by benchmark"
LOCK_TIMEOUT_S = 10.0
"""How long to wait for another writer: an edit takes milliseconds."""

TextSpan = tuple[int, int]
"""Start and end character."""


def edit_text(
    text: str, changes: Mapping[str, Scalar], mark: str | None = DEFAULT_MARK, *, name: str = "The text"
) -> str:
    """Return a text with the values of some dotted keys changed, ``mark`` in the comment of each changed line.

    A value that is already equal is left alone, and gets no mark: editing twice changes nothing. Error messages about
    the text begin with ``name``.

    Raises:
        BadInput: The text is not YAML, or a key cannot be changed without changing something else too.
    """
    if mark is not None and (not mark.isprintable() or mark != mark.strip("# ") or not mark):
        raise BadInput(f"{mark!r} cannot be a comment: it must be one line of text.")
    tree = YamlTree(text, name)
    values: dict[TextSpan, str] = {}
    marks: dict[TextSpan, str] = {}
    expected: dict[YamlNode, Scalar] = {}
    for key, value in changes.items():
        last, node = find_value(tree, key, name)
        slot = tree.slot(last, node)
        if equal_scalars(tree.meaning(slot), value):
            continue
        new, expected[last] = format_scalar(value, node.style), value
        values[slot.start, slot.end] = f" {new}" if slot.start == slot.end else new
        if mark is not None:
            position, insertion = _mark_insertion(text, tree.line_end(slot), mark)
            marks[position, position] = insertion
    after = _apply_patches(text, (*values.items(), *marks.items()))
    if not differs_only_in(tree, expected, YamlTree(after, name) if expected else tree):
        line, what = min(key.line for key in expected), ", ".join(changes)
        raise BadInput(f"{name}, line {line}: {what} cannot be changed without changing more; change it by hand.")
    return after


def _mark_insertion(text: str, position: int, mark: str) -> tuple[int, str]:
    """Return the position and the text to insert so that the line whose last token ends at ``position`` is marked.

    An existing comment stays, after the mark: ``# keep me`` becomes ``# Updated by benchmark; keep me``.
    """
    blank = position
    while text[blank : blank + 1] in {" ", "\t"}:
        blank += 1
    if text[blank : blank + 1] != "#" or blank == position:
        return blank, f"{' ' * max(0, 2 - (blank - position))}# {mark}"
    body = re.match(r"[^\r\n\x85\u2028\u2029]*", text[blank + 1 :])
    comment = body[0] if body else ""
    if re.search(rf"(?:^|;)\s*{re.escape(mark)}\s*(?:;|$)", comment):
        return blank, ""
    apart = "" if not comment.strip() else ";" if comment[0].isspace() else "; "
    return blank + 1, f" {mark}{apart}"


def _apply_patches(text: str, patches: Iterable[tuple[TextSpan, str]]) -> str:
    """Return a text with some spans replaced; patches at the same position are applied in the given order."""
    parts: list[str] = []
    position = 0
    for (start, end), new in sorted(patches, key=lambda patch: patch[0]):
        parts += [text[position:start], new]
        position = end
    return "".join([*parts, text[position:]])


def unified_diff(before: str, after: str, path: Path | str) -> str:
    """Return the changes as a unified diff; empty where there are none."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = difflib.unified_diff(old, new, fromfile=str(path), tofile=str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def preview_edit(path: Path, changes: Mapping[str, Scalar], mark: str | None = DEFAULT_MARK) -> str:
    """Return, as a unified diff, what ``edit_file`` would change in a file."""
    text = read_text(_resolve_file(path))
    return unified_diff(text, edit_text(text, changes, _mark_for(text, mark), name=str(path)), path)


def edit_file(path: Path, changes: Mapping[str, Scalar], mark: str | None = DEFAULT_MARK) -> str:
    """Change values in a file, whole or not at all, and return the changes as a unified diff.

    The file is read under a lock against other writers; it keeps its permissions, and a link keeps pointing to it.

    Raises:
        BadInput: The file cannot be read, or cannot be changed as requested; it is left as it was.
        MachineCannot: It is not writable, or another process keeps writing it.
    """
    real = _resolve_file(path)
    with lock_current_file(real, LOCK_TIMEOUT_S):
        text = read_text(real)
        after = edit_text(text, changes, _mark_for(text, mark), name=str(path))
        if after != text:
            replace_atomically(real, after.encode(), like=real.stat())
    return unified_diff(text, after, path)


def _mark_for(text: str, mark: str | None) -> str | None:
    """Return the mark, or null for JSON, which has no comments."""
    try:
        json.loads(text)
    except ValueError:
        return mark
    return None


def _resolve_file(path: Path) -> Path:
    """Return the file that a path resolves to."""
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except (OSError, RuntimeError) as error:
        raise BadInput(f"{path} cannot be read: {error}.") from None
    if not real.is_file():
        raise BadInput(f"{path} is {'a folder' if real.is_dir() else 'something else'}, but a file is needed.")
    return real
