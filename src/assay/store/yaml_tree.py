"""A YAML text as a tree that knows where in the text everything stands. Nothing is resolved, nothing is lost.

text ──events──> documents ──< Node: a scalar, a mapping, a sequence or an alias, each with its place
     ──tokens──> where a scalar itself begins behind its anchor, and where the last word of a line ends
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from assay.core.durable import yaml_complaint
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["scalar", "mapping", "sequence", "alias"]
ENDS = {"MappingEndEvent", "SequenceEndEvent"}

_LOOSE = re.compile(r"[ \t]+(?=#|\r?$)", re.MULTILINE)
"""Blanks before a comment or a line's end. YAML allows tabs there, which the parser does not: it is shown spaces."""


@dataclass(frozen=True)
class Node:
    """Something in a document, from character ``start`` up to ``end``; ``line`` counts from 1.

    Attributes:
        last_line: The line that it ends on.
        value: A scalar's content, unescaped, or the name that an alias refers to.
        style: A scalar's quote, or ``|`` or ``>`` of a block; null: plain.
        tag: Where it is written out; null where it is not.
        pairs: A mapping's keys and values, in order.
        items: What a sequence holds.
    """

    kind: Kind
    start: int
    end: int
    line: int
    last_line: int
    value: str = ""
    style: str | None = None
    anchor: str | None = None
    tag: str | None = None
    pairs: tuple[tuple[Node, Node], ...] = ()
    items: tuple[Node, ...] = ()

    @property
    def parts(self) -> Iterator[Node]:
        """Itself and all that is within it."""
        yield self
        for part in (*(part for pair in self.pairs for part in pair), *self.items):
            yield from part.parts


@dataclass(frozen=True)
class Slot:
    """Where a scalar stands: from a character up to another, and the line that it ends on, counted from 1."""

    start: int
    end: int
    line: int


class Tree:
    """A text's documents, and where its words stand.

    Raises:
        BadInput: The text is not YAML; the sentence begins with ``name`` and tells the line.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self._scalar_starts: dict[int, int] = {}
        self._spans: list[tuple[int, int, int]] = []
        self._colons: list[int] = []
        plain = _LOOSE.sub(lambda blanks: " " * len(blanks[0]), text)
        try:
            self.documents = tuple(_documents(plain))
            self._look_at_words(plain)
        except YAMLError as error:
            raise BadInput(f"{name}{_complaint(error, text)}") from error
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

    def slot(self, key: Node, value: Node) -> Slot:
        """Return where a scalar itself stands, behind its anchor; of an empty one, where it would."""
        if value.end in self._scalar_starts and value.end > value.start:
            return Slot(self._scalar_starts[value.end], value.end, value.last_line)
        if value.end > value.start:
            return Slot(value.end, value.end, value.last_line)
        colon = next((end for end in self._colons if end > key.end), key.end)
        return Slot(colon, colon, key.last_line)

    def meaning(self, slot: Slot) -> object:
        """Return what the scalar in a slot means: a number, text, true, false or null; its characters where unclear."""
        source = self.text[slot.start : slot.end]
        try:
            return YAML(typ="safe", pure=True).load(source)
        except (YAMLError, ValueError):
            return source

    def line_end(self, slot: Slot) -> int:
        """Return where the last word ends of the line that a slot ends on: behind it there is a comment, if any.

        Where a word reaches into the next line, as text in quotes may, the line that it ends on is meant.
        """
        line, position = slot.line, slot.end
        for first, last, end in self._spans:
            if first <= line <= last and end > position:
                line, position = last, end
        return position


def _documents(text: str) -> Iterator[Node]:
    events = iter(YAML(typ="safe", pure=True).parse(text))
    for event in events:
        if type(event).__name__ == "DocumentStartEvent":
            yield _node(next(events), events)


def _node(event: Any, events: Iterator[Any]) -> Node:
    """Return the node that begins with an event, taking the rest of it from those that follow."""
    name, first, last = type(event).__name__, event.start_mark, event.end_mark
    anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
    fields: dict[str, Any] = {"anchor": anchor, "tag": None if tag is None else str(tag)}
    within: list[Node] = []
    if name == "AliasEvent":
        kind: Kind = "alias"
        fields = {"value": anchor}
    elif name == "ScalarEvent":
        kind = "scalar"
        fields |= {"value": event.value, "style": event.style}
    else:
        while type(following := next(events)).__name__ not in ENDS:
            within.append(_node(following, events))
        last = following.end_mark
        kind = "sequence" if name == "SequenceStartEvent" else "mapping"
        fields |= {"items": tuple(within)} if kind == "sequence" else {"pairs": tuple(_paired(within))}
    return Node(kind, first.index, last.index, first.line + 1, last.line + 1, **fields)


def _paired(nodes: list[Node]) -> Iterator[tuple[Node, Node]]:
    return zip(nodes[0::2], nodes[1::2], strict=True)


def _complaint(error: YAMLError, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and re.match(r" *\t", lines[mark.line]):
        return f", line {mark.line + 1}: it is indented by a tab, which YAML does not allow; use spaces."
    return yaml_complaint(error, text)
