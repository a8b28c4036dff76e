"""Find the line of a key in a YAML or JSON file, and turn a validation error into one sentence with file and line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, suggest_nearest
from assay.core.values import explain_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pydantic import ValidationError

UNKNOWN_KEY = "extra_forbidden"

KeyPath = tuple[int | str, ...]
"""The way to a place: keys, and places in lists from 0 on."""


class FileLocator:
    """Finds the lines of a file that has been read before; it is parsed anew when first asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root: Any = None

    def location(self, steps: KeyPath) -> str:
        """Return the file and the line of the deepest place on the way that the file has."""
        return f"{self.path}, line {self.line(steps)}"

    def line(self, steps: KeyPath) -> int:
        """Return that line, from 1 on; what is merged from elsewhere has the line of what it is merged into."""
        from ruamel.yaml import YAML
        from ruamel.yaml.comments import CommentedMap, CommentedSeq

        if not self.path.is_file():  # a pipe gives its content only once
            return 1
        if self._root is None:
            self._root = YAML(typ="rt", pure=True).load(self.path.read_text(encoding="utf-8-sig"))
        node, line = self._root, 0
        for step in steps:
            if isinstance(node, CommentedMap) and (key := _find_key(node, step)) is not None:
                line, node = (node.lc.data or {}).get(key, (line,))[0], node[key]
            elif isinstance(node, CommentedSeq) and isinstance(step, int) and step < len(node):
                line, node = node.lc.item(step)[0], node[step]
        return line + 1

    def explain_error(self, error: ValidationError, keys_at: Callable[[KeyPath], tuple[str, ...]]) -> BadInput:
        """Return what is wrong first; a key that is not known before all else, with the nearest one that is."""
        problem = min(error.errors(), key=lambda one: one["type"] != UNKNOWN_KEY)
        steps: KeyPath = problem["loc"]
        name = next((step for step in reversed(steps) if isinstance(step, str)), "it")
        message = f"{name} {explain_problem(problem)}"
        if problem["type"] == UNKNOWN_KEY:
            keys = keys_at(steps[:-1])
            message = f"{name!r} is not known here; there are {', '.join(keys)}.{suggest_nearest(name, keys)}"
        return BadInput(f"{self.location(steps)}: {message}{'' if message.endswith(('.', '?')) else '.'}")


def _find_key(mapping: Mapping[Any, Any], step: int | str) -> Any:
    """Return a key as a mapping has it, where numbers may have been read as text; null: it has none such."""
    return next((key for key in mapping if key == step or str(key) == step), None)
