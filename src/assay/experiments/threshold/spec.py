"""A file of thresholds: what is compared, over which grid, and where the answer is written.

    thresholds:
      - name: sorting
        reference: sorts.py:insertion        # a workload, or file.py:function beside this file
        fast: sorts.py:builtin
        axes: {n: [8, 32, 128, 512]}         # the product of all axes is the grid
        size: n                              # the axis that the threshold is on
        key: runtime.sort_min_len            # where the answer is written
        never: 1000000000                    # what is written where it never is faster

Several grids may stand under ``grids`` by their names instead; the first is taken unless another is asked for.
"""

from __future__ import annotations

import math
import os
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field, ValidationError, field_validator

from assay.core.durable import read_yaml
from assay.core.errors import BadInput, nearest
from assay.core.values import Params, Scalar, Value, first_problem
from assay.workloads.function import is_function_spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import JsonValue

DEFAULT = Path(__file__).parent / "branches.yaml"
"""Both branches of native sparse attention."""

MARGINS = {"conservative": 1.5, "balanced": 1.2, "aggressive": 1.1}
"""Margins that have a name: half again as fast, by a fifth, by a tenth."""
LEAST_MEANT = 0.5
"""Who writes less than this means that share more; 0.9 may be meant as slower."""

Axes = dict[str, list[Scalar]]


class Wanted(Value):
    """One threshold as the file has it."""

    name: str = Field(min_length=1)
    reference: str = Field(min_length=1)
    fast: str = Field(min_length=1)
    params: Params = Field(default_factory=dict)
    axes: Axes | None = None
    grids: dict[str, Axes] | None = None
    size: str = Field(min_length=1)
    margin: float = MARGINS["balanced"]
    key: str = Field(min_length=1)
    never: Scalar
    where: str = Field(default="", description="Where in which file it stands.")

    @field_validator("margin", mode="before")
    @classmethod
    def _margin_in_words(cls, value: object) -> float:
        return margin_of(str(value))

    def grid(self, name: str | None) -> Axes:
        """Return the axes of the grid that is asked for; the only one or the first, where none is."""
        if self.axes is not None:
            if name is not None:
                raise BadInput(f"{self.where} has one grid, its axes, and none called {name!r}.")
            return self.axes
        grids = self.grids or {}
        chosen = name or next(iter(grids))
        if chosen not in grids:
            raise BadInput(f"{self.where} has no grid {chosen!r}; it has {', '.join(grids)}.{nearest(chosen, grids)}")
        return grids[chosen]

    def places(self, grid: str | None) -> Iterator[Params]:
        """Give the parameters of every place of a grid."""
        axes = self.grid(grid)
        for values in product(*axes.values()):
            yield {**self.params, **dict(zip(axes, values, strict=True))}


def margin_of(text: str) -> float:
    """Return a margin from a number or its name: 1.2, or ``balanced``.

    Raises:
        BadInput: It is neither, or not above 1.
    """
    try:
        margin = MARGINS[text] if text in MARGINS else float(text)
    except ValueError:
        names = ", ".join(f"{name} ({number:g})" for name, number in MARGINS.items())
        raise BadInput(f"A safety margin is a number above 1, or {names}; not {text!r}.") from None
    if not math.isfinite(margin) or margin <= 1:
        meant = f" Did you mean {1 + margin:g}?" if 0 < margin < LEAST_MEANT else ""
        raise BadInput(f"A safety margin is above 1, as 1.2 for a fifth faster, and {text} is not.{meant}")
    return margin


def load(path: Path) -> tuple[Wanted, ...]:
    """Return the thresholds of a file, its functions found from its folder."""
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("thresholds"), list):
        raise BadInput(f"{path} holds no thresholds: it needs a list under the key thresholds.")
    _known(content, {"thresholds"}, str(path), _lines(path, ()))
    entries = cast("list[JsonValue]", content["thresholds"])
    if not entries:
        raise BadInput(f"{path}: its list of thresholds is empty.")
    specs = tuple(_wanted(entry, path, number) for number, entry in enumerate(entries))
    for what in ("name", "key"):
        texts = [getattr(spec, what) for spec in specs]
        twice = next((one for one in texts if texts.count(one) > 1), None)
        if twice is not None:
            raise BadInput(f"{path}: two thresholds have the {what} {twice!r}.")
    return specs


def _wanted(entry: JsonValue, path: Path, number: int) -> Wanted:
    name = entry.get("name") if isinstance(entry, dict) else None
    where = f"{path}: thresholds[{number}]" + (f" ({name})" if isinstance(name, str) else "")
    if not isinstance(entry, dict):
        raise BadInput(f"{where} is not a threshold: it must map names to values.")
    _known(entry, set(Wanted.model_fields) - {"where"}, where, _lines(path, ("thresholds", number)))
    try:
        spec = Wanted.model_validate({**entry, "where": where})
    except ValidationError as error:
        raise BadInput(f"{where}: {first_problem(error)}.") from None
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    if (spec.axes is None) == (spec.grids is None):
        raise BadInput(f"{where} needs either axes, or several grids by their names.")
    _full(spec)
    folder = path.parent
    functions = {side: beside(getattr(spec, side), folder) for side in ("reference", "fast")}
    return spec.model_copy(update=functions)


def _full(wanted: Wanted) -> None:
    """Refuse a grid that has nothing on an axis, and parameters that stand both fixed and on an axis."""
    grids = wanted.grids if wanted.axes is None else {"axes": wanted.axes}
    for name, axes in (grids or {}).items():
        empty = [axis for axis, values in axes.items() if not values]
        if empty or not axes:
            raise BadInput(f"{wanted.where}: {name} has {f'nothing on {empty[0]}' if empty else 'no axis'}.")
        both = sorted(set(axes) & set(wanted.params))
        if both:
            raise BadInput(f"{wanted.where}: {both[0]} stands both among the params and on an axis.")


def beside(spec: str, folder: Path) -> str:
    """Return a function's place as it is written from here, where it is given relative to a file's folder."""
    file, _, name = spec.rpartition(":")
    if not is_function_spec(spec) or not file.endswith(".py") or Path(file).is_absolute():
        return spec
    return f"{os.path.relpath(folder / file)}:{name}"


def _known(found: Mapping[str, Any], known: set[str], where: str, lines: Mapping[str, int]) -> None:
    for key in found:
        if key not in known:
            line = f", line {lines[key]}" if key in lines else ""
            raise BadInput(f"{where}{line}: unknown key {key!r}.{nearest(key, known)}")


def _lines(path: Path, within: tuple[str | int, ...]) -> dict[str, int]:
    """Return the line of each key of a mapping in a file."""
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap

    if not path.is_file():  # a pipe gives its content only once
        return {}
    node: Any = YAML(typ="rt", pure=True).load(path.read_text(encoding="utf-8-sig"))
    for step in within:
        node = node[step]
    if not isinstance(node, CommentedMap):
        return {}
    standing = node.lc.data or {}  # what is merged from elsewhere stands there
    return {str(key): standing[key][0] + 1 for key in node if key in standing}
