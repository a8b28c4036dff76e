"""Where the value of a dotted key stands in a YAML text, if changing it there changes nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.store.yaml_tree import Node, Tree

MERGE = "<<"
BLOCKS = {"|", ">"}


@dataclass(frozen=True)
class _Step:
    """One mapping on the way to a value, and the key in it that leads on."""

    mapping: Node
    key: Node
    value: Node


def find(tree: Tree, key: str, name: str) -> tuple[Node, Node]:
    """Return the last part of a dotted key, and the scalar it stands for, in whichever document of the text it is.

    Raises:
        BadInput: It is not there, is there more than once, is no single value, or is shared with other places. The
            sentence begins with ``name`` and tells the line.
    """
    if not all(part.strip() for part in key.split(".")):
        raise BadInput(f"{key!r} is not a key: write names with dots between them, as runtime.fa2_min_len_win.")
    matches = [(root, steps) for root in tree.documents for steps in _ways(root, key.split("."))]
    if not matches:
        raise BadInput(_missing(tree, key, name))
    if len(matches) > 1:
        lines = " and ".join(map(str, sorted(steps[-1].key.line for _, steps in matches)))
        raise BadInput(f"{name}, lines {lines}: {key} stands there more than once, and it is not clear which is meant.")
    root, steps = matches[0]
    _refuse_doubles(steps, key, name)
    _refuse_shared(root, steps, key, name)
    return steps[-1].key, _single(steps[-1].value, key, name)


def _ways(node: Node, names: Sequence[str]) -> Iterator[tuple[_Step, ...]]:
    """Give every way from a node that these names lead; a key may have dots in it."""
    for count in range(1, len(names) + 1):
        step = _last(node, ".".join(names[:count]))
        if step is None:
            continue
        if count == len(names):
            yield (step,)
        else:
            yield from ((step, *rest) for rest in _ways(step.value, names[count:]))


def _last(mapping: Node, name: str) -> _Step | None:
    """Return the last of a mapping's keys with a name, and its value; that is the one which most readers take."""
    same = [(key, value) for key, value in mapping.pairs if key.kind == "scalar" and key.value == name]
    return _Step(mapping, *same[-1]) if same else None


def _refuse_doubles(way: Sequence[_Step], key: str, name: str) -> None:
    for step in way:
        same = [str(k.line) for k, _ in step.mapping.pairs if k.kind == "scalar" and k.value == step.key.value]
        if len(same) > 1:
            what = f"{step.key.value}, on the way to {key}," if step.key is not way[-1].key else key
            raise BadInput(
                f"{name}, lines {' and '.join(same)}: {what} stands there more than once; remove all but one."
            )


def _refuse_shared(root: Node, way: Sequence[_Step], key: str, name: str) -> None:
    """Refuse what an alias elsewhere repeats: changing it would change that too."""
    used = {part.value: part.line for part in root.parts if part.kind == "alias"}
    for node in (*(step.mapping for step in way), way[-1].value):
        if node.anchor is not None and node.anchor in used:
            raise BadInput(
                f"{name}, line {way[-1].key.line}: {key} is part of &{node.anchor}, which line {used[node.anchor]} "
                f"repeats as *{node.anchor}; changing it would change that too, so write one of them out."
            )


def _single(value: Node, key: str, name: str) -> Node:
    where = f"{name}, line {value.line}: {key}"
    if value.kind == "alias":
        raise BadInput(f"{where} is *{value.value}, a value that stands elsewhere; write it out here to change it.")
    if value.kind != "scalar":
        what = "a list" if value.kind == "sequence" else "a mapping"
        raise BadInput(f"{where} is {what}, and only a single value can be changed.")
    if value.tag is not None:
        raise BadInput(f"{where} has the tag {value.tag}, and what that makes of a value is not known here.")
    if value.style in BLOCKS:
        raise BadInput(f"{where} is a block of text ({value.style}), and only a value on its line can be changed.")
    return value


def _missing(tree: Tree, key: str, name: str) -> str:
    """Say how far the way leads, why no further, and which names are near."""
    names = key.split(".")
    for count in range(len(names) - 1, -1, -1):
        for root in tree.documents:
            for node in [steps[-1].value for steps in _ways(root, names[:count])] if count else [root]:
                reason = _why_not(node, key, ".".join(names[:count]))
                if reason is not None:
                    return f"{name}, line {reason}"
    return f"{name} has no key {key}.{nearest(key, _keys(tree))}"


def _why_not(node: Node, key: str, reached: str) -> str | None:
    """Say, from the line on, why no key stands in the node that its beginning leads to; null: it just does not."""
    if node.kind == "alias":
        return f"{node.line}: {reached} is *{node.value}, which stands elsewhere; write it out here to change {key}."
    merged = next((k.line for k, _ in node.pairs if k.kind == "scalar" and k.value == MERGE), None)
    if merged is not None:
        return (
            f"{merged}: {key} is not written there; it may come from what {MERGE} merges, where others would change "
            f"with it, so write it out beside {MERGE} to change it."
        )
    if node.kind != "mapping" and reached:
        what = "a list" if node.kind == "sequence" else "a single value"
        return f"{node.line}: {reached} is {what}, so that there is no {key} in it."
    return None


def _keys(tree: Tree) -> list[str]:
    """Return every dotted key that stands for a single value."""
    return [key for root in tree.documents for key in _named(root, "")]


def _named(node: Node, before: str) -> Iterator[str]:
    for key, value in node.pairs:
        name = f"{before}{key.value}"
        if value.kind == "mapping":
            yield from _named(value, f"{name}.")
        elif value.kind == "scalar":
            yield name
