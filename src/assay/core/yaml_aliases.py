"""YAML files whose aliases stand for so much that they would fill the memory: found without unfolding them.

a: &a [x, x, x]        3 values
b: &b [*a, *a, *a]     9
c: &c [*b, *b, *b]     27, and so on with every line
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ruamel.yaml.error import YAMLError

MOST_VALUES = 100_000
"""Values that aliases may stand for in one text, all together."""


def too_many(text: str) -> YAMLError | None:
    """Return the complaint, with its place, where the aliases of a text stand for too much; null: they do not.

    Raises:
        YAMLError: It is not YAML.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import ComposerError
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    if "&" not in text or "*" not in text:
        return None
    sizes: dict[str, int] = {}
    open_ones: list[tuple[str | None, int]] = []
    values = by_aliases = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, CollectionStartEvent):
            open_ones.append((event.anchor, values))
            values += 1
        elif isinstance(event, CollectionEndEvent):
            anchor, before = open_ones.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, AliasEvent):
            size = sizes.get(event.anchor, 1)
            values += size
            by_aliases += size
            if by_aliases > MOST_VALUES:
                return ComposerError(
                    problem=f"its aliases stand for more than {MOST_VALUES} values", problem_mark=event.start_mark
                )
        elif isinstance(event, ScalarEvent):
            values += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
    return None
