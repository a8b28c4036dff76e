"""Whether one YAML text says the same as another but for some values: what an edit must come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.store.yaml_scalars import equal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Scalar
    from assay.store.yaml_tree import Node, Tree


def is_only(before: Tree, expected: Mapping[Node, Scalar], after: Tree) -> bool:
    """Return whether the second text differs from the first in some values alone, and has these values there.

    ``expected`` has the keys, as they stand in the first text, and what their values are to be.
    """
    if len(before.documents) != len(after.documents):
        return False
    roots = zip(before.documents, after.documents, strict=True)
    return all(_is_only(was, expected, now, after) for was, now in roots)


def _is_only(was: Node, expected: Mapping[Node, Scalar], now: Node, after: Tree) -> bool:
    if _said(was) != _said(now):
        return False
    for (old_key, old), (key, new) in zip(was.pairs, now.pairs, strict=True):
        if not _is_only(old_key, expected, key, after):
            return False
        if old_key not in expected:
            if not _is_only(old, expected, new, after):
                return False
        elif not _became(old, expected[old_key], new, after.meaning(after.slot(key, new))):
            return False
    return all(_is_only(old, expected, new, after) for old, new in zip(was.items, now.items, strict=True))


def _became(old: Node, wanted: Scalar, new: Node, means: object) -> bool:
    return (new.kind, new.anchor, new.tag) == ("scalar", old.anchor, None) and equal(means, wanted)


def _said(node: Node) -> tuple[object, ...]:
    return node.kind, node.value, node.style, node.anchor, node.tag, len(node.pairs), len(node.items)
