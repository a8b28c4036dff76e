"""Change single values in a YAML file, and nothing else: comments, order, quotes, line ends stay as they are.

    runtime:                                       runtime:
      fa2_min_len_win: 64     # measured   ──>       fa2_min_len_win: 128     # Updated by benchmark; measured
      fa2_min_len_cmp: 16                            fa2_min_len_cmp: 16

The parser says where a value stands; only its characters are replaced, and the mark is put into its line's comment.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assay.core.durable import friendly_os_errors, locked, read_text, replace_atomically
from assay.core.errors import BadInput, MachineCannot
from assay.store.yaml_check import is_only
from assay.store.yaml_places import find
from assay.store.yaml_scalars import equal, written
from assay.store.yaml_tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from assay.core.values import Scalar
    from assay.store.yaml_tree import Node

MARK = "Updated by benchmark"
PATIENCE_S = 10.0
"""How long another writer is waited for: an edit takes milliseconds."""

Span = tuple[int, int]
"""From one character up to another."""


def edited(text: str, changes: Mapping[str, Scalar], mark: str | None = MARK, *, name: str = "The text") -> str:
    """Return a text with the values of some dotted keys changed, ``mark`` in the comment of each changed line.

    A value that is the same already is left alone, and gets no mark: to edit again changes nothing. ``name`` is what
    sentences about the text begin with.

    Raises:
        BadInput: The text is not YAML, or a key cannot be changed without changing something else too.
    """
    if mark is not None and (not mark.isprintable() or mark != mark.strip("# ") or not mark):
        raise BadInput(f"{mark!r} cannot be a comment: it must be one line of text.")
    tree = Tree(text, name)
    values: dict[Span, str] = {}
    marks: dict[Span, str] = {}
    expected: dict[Node, Scalar] = {}
    for key, value in changes.items():
        last, node = find(tree, key, name)
        slot = tree.slot(last, node)
        if equal(tree.meaning(slot), value):
            continue
        new, expected[last] = written(value, node.style), value
        values[slot.start, slot.end] = f" {new}" if slot.start == slot.end else new
        if mark is not None:
            position, insertion = _marked(text, tree.line_end(slot), mark)
            marks[position, position] = insertion
    after = _patched(text, (*values.items(), *marks.items()))
    if not is_only(tree, expected, Tree(after, name) if expected else tree):
        line, what = min(key.line for key in expected), ", ".join(changes)
        raise BadInput(f"{name}, line {line}: {what} cannot be changed without changing more; change it by hand.")
    return after


def _marked(text: str, place: int, mark: str) -> tuple[int, str]:
    """Return where to insert what, so that the line whose last word ends at a place is marked.

    A comment that is there stays, behind the mark: ``# keep me`` becomes ``# Updated by benchmark; keep me``.
    """
    blank = place
    while text[blank : blank + 1] in {" ", "\t"}:
        blank += 1
    if text[blank : blank + 1] != "#" or blank == place:
        return blank, f"{' ' * max(0, 2 - (blank - place))}# {mark}"
    body = re.match(r"[^\r\n\x85\u2028\u2029]*", text[blank + 1 :])
    comment = body[0] if body else ""
    if re.search(rf"(?:^|;)\s*{re.escape(mark)}\s*(?:;|$)", comment):
        return blank, ""
    apart = "" if not comment.strip() else ";" if comment[0].isspace() else "; "
    return blank + 1, f" {mark}{apart}"


def _patched(text: str, patches: Iterable[tuple[Span, str]]) -> str:
    """Return a text with some of its stretches replaced; of two at the same place the one given first comes first."""
    parts: list[str] = []
    done = 0
    for (start, end), new in sorted(patches, key=lambda patch: patch[0]):
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def diff(before: str, after: str, path: Path | str) -> str:
    """Return what changes as a unified diff; nothing where nothing does."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = difflib.unified_diff(old, new, fromfile=str(path), tofile=str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def preview(path: Path, changes: Mapping[str, Scalar], mark: str | None = MARK) -> str:
    """Return, as a unified diff, what ``write`` would change in a file."""
    text = read_text(_real(path))
    return diff(text, edited(text, changes, _mark(text, mark), name=str(path)), path)


def write(path: Path, changes: Mapping[str, Scalar], mark: str | None = MARK) -> str:
    """Change values in a file, whole or not at all, and return what changed as a unified diff.

    The file is read while no other writer may; it keeps its permissions, and a link goes on pointing to it.

    Raises:
        BadInput: The file cannot be read, or not be changed as is wanted; it is left as it was.
        MachineCannot: It is not writable, or another process goes on writing it.
    """
    real = _real(path)
    with _held(real, path):
        text = read_text(real)
        after = edited(text, changes, _mark(text, mark), name=str(path))
        if after != text:
            replace_atomically(real, after.encode(), like=real.stat())
    return diff(text, after, path)


def _mark(text: str, mark: str | None) -> str | None:
    """Return the mark, or none for JSON, which has no comments."""
    try:
        json.loads(text)
    except ValueError:
        return mark
    return None


def _real(path: Path) -> Path:
    """Return the file that a path leads to."""
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except (OSError, RuntimeError) as error:
        raise BadInput(f"{path} cannot be read: {error}.") from None
    if not real.is_file():
        raise BadInput(f"{path} is {'a folder' if real.is_dir() else 'something else'}, but a file is needed.")
    return real


@contextmanager
def _held(real: Path, path: Path) -> Iterator[None]:
    """Keep other writers of a file out.

    The lock is on the file itself, so that nothing is left beside it. A writer replaces it: who waited for the old one
    finds that it is not the file any more, and waits for the new one.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with friendly_os_errors(path):
            descriptor = os.open(real, os.O_RDWR | os.O_CLOEXEC)
        try:
            with locked(descriptor, wait=False) as mine:
                if mine and _is_still(real, descriptor):
                    yield
                    return
        finally:
            os.close(descriptor)
        if time.monotonic() > deadline:
            raise MachineCannot(f"{path} is being edited by another process at this moment.")
        time.sleep(0.005)


def _is_still(real: Path, descriptor: int) -> bool:
    """Return whether a path still leads to the file that was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), real.stat())
    except FileNotFoundError:
        return False
