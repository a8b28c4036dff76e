"""The options of ``assay threshold run``, the file of thresholds that they come from, and the points of its grids.

A file says what is compared, over which grid, and where the answer is written:

    thresholds:
      - name: sorting
        reference: sorts.py:insertion        # a workload, or file.py:function next to this file
        fast: sorts.py:builtin
        axes: {n: [8, 32, 128, 512]}         # the product of all axes is the grid
        size: n                              # the axis that the threshold is on
        key: runtime.sort_min_len            # where the answer is written
        never: 1000000000                    # what is written where it never is faster

Several grids may be given under ``grids`` by name instead; the first is used unless another is selected. The grid's
points are subjects with complete parameters, each with its size.
"""

from __future__ import annotations

import math
import os
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import Field, ValidationError, field_validator, model_validator

from assay.core.errors import BadInput, suggest_nearest
from assay.core.values import Cache, InterferencePolicy, Isolation, Params, Scalar, Subject, Value, first_problem
from assay.core.yaml_input import read_yaml
from assay.workloads import registry
from assay.workloads.function import is_function_spec
from assay.workloads.nsa.branches import effective_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from assay.workloads.base import Workload


TimeKind = Literal["call", "span"]
TIME_KINDS: tuple[TimeKind, ...] = ("call", "span")
DecideOn = Literal["call", "span", "cautious"]

ROUNDS, GROWTH = 8, 2
"""Pairs of a point in each of the first two processes, and how many times as many each next one takes: together they
make 8, 16, 32, 64 and 128, which are planned looks. Most sizes need few, and few sizes need many."""
MAX_BLOCKS = 5
MIN_BLOCKS = 2
"""One process is one draw: what differs between processes is not seen in one."""


class GridPoint(Value):
    """One place of a grid: its parameters, its size on the threshold's axis, and the two that are compared there."""

    size: int | float
    params: Params
    reference: Subject
    fast: Subject


class Threshold(Value):
    """From which size on is ``fast`` faster than ``reference`` by the margin? The answer is written to ``key``."""

    name: str = Field(min_length=1)
    key: str = Field(min_length=1)
    never: Scalar = Field(description="What is written where it never is.")
    margin: float = Field(gt=1)
    axis: str = Field(description="What a size is, in words.")
    branch: Literal["sliding", "compressed"] | None = None
    points: tuple[GridPoint, ...] = Field(min_length=1)

    @property
    def sizes(self) -> tuple[int | float, ...]:
        """The sizes of the grid, each once, in order."""
        return tuple(sorted({point.size for point in self.points}))

    @property
    def axes(self) -> tuple[str, ...]:
        """The parameters in which points differ."""
        names = dict.fromkeys(name for point in self.points for name in point.params)
        return tuple(n for n in names if len({str(point.params.get(n)) for point in self.points}) > 1)


class ThresholdOptions(Value):
    """Thresholds that are looked for in one run, on one device."""

    thresholds: tuple[Threshold, ...] = Field(min_length=1)
    device: str
    decide_on: DecideOn = Field(default="cautious", description="Cautious: by both times, so the higher threshold.")
    rounds: int = Field(default=ROUNDS, ge=4, description="Pairs of a point in each of the first two processes.")
    growth: int = Field(default=1, ge=1, description="Factor by which each next process measures more pairs.")
    blocks: int = Field(default=MAX_BLOCKS, ge=MIN_BLOCKS, description="Processes at the most.")
    duration_s: float = Field(default=60.0, gt=0, description="A process, its starting not counted, at the most.")
    budget_s: float | None = Field(default=None, gt=0, description="No process begins that would not fit any more.")
    isolation: Isolation = "full"
    on_interference: InterferencePolicy = "warn"
    cache: Cache | None = None
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0

    def rounds_of(self, number: int) -> int:
        """Return the pairs of a point in a process, the first being 1."""
        return int(self.rounds * self.growth ** max(0, number - 2))

    @model_validator(mode="after")
    def _check_unique(self) -> Self:
        for what, texts in (
            ("named", [threshold.name for threshold in self.thresholds]),
            ("written to", [threshold.key for threshold in self.thresholds]),
        ):
            twice = sorted({name for name in texts if texts.count(name) > 1})
            if twice:
                raise ValueError(f"two thresholds are {what} {twice[0]}")
        return self


DEFAULT_SPEC_FILE = Path(__file__).parent / "branches.yaml"
"""Both branches of native sparse attention."""

NAMED_MARGINS = {"conservative": 1.5, "balanced": 1.2, "aggressive": 1.1}
"""Margins that have a name: half again as fast, by a fifth, by a tenth."""
SHARE_TYPO_LIMIT = 0.5
"""Who writes less than this means that share more; 0.9 may be meant as slower."""

GridAxes = dict[str, list[Scalar]]


class ThresholdSpec(Value):
    """One threshold as the file has it."""

    name: str = Field(min_length=1)
    reference: str = Field(min_length=1)
    fast: str = Field(min_length=1)
    params: Params = Field(default_factory=dict)
    axes: GridAxes | None = None
    grids: dict[str, GridAxes] | None = None
    size: str = Field(min_length=1)
    margin: float = NAMED_MARGINS["balanced"]
    key: str = Field(min_length=1)
    never: Scalar
    where: str = Field(default="", description="Where in which file it stands.")

    @field_validator("margin", mode="before")
    @classmethod
    def _parse_margin(cls, value: object) -> float:
        return parse_margin(str(value))

    def grid(self, name: str | None) -> GridAxes:
        """Return the axes of the grid that is asked for; the only one or the first, where none is."""
        if self.axes is not None:
            if name is not None:
                raise BadInput(f"{self.where} has one grid, its axes, and none called {name!r}.")
            return self.axes
        grids = self.grids or {}
        chosen = name or next(iter(grids))
        if chosen not in grids:
            raise BadInput(
                f"{self.where} has no grid {chosen!r}; it has {', '.join(grids)}.{suggest_nearest(chosen, grids)}"
            )
        return grids[chosen]

    def grid_params(self, grid: str | None) -> Iterator[Params]:
        """Give the parameters of every place of a grid."""
        axes = self.grid(grid)
        for values in product(*axes.values()):
            yield {**self.params, **dict(zip(axes, values, strict=True))}


def parse_margin(text: str) -> float:
    """Return a margin from a number or its name: 1.2, or ``balanced``.

    Raises:
        BadInput: It is neither, or not above 1.
    """
    try:
        margin = NAMED_MARGINS[text] if text in NAMED_MARGINS else float(text)
    except ValueError:
        names = ", ".join(f"{name} ({number:g})" for name, number in NAMED_MARGINS.items())
        raise BadInput(f"A safety margin is a number above 1, or {names}; not {text!r}.") from None
    if not math.isfinite(margin) or margin <= 1:
        meant = f" Did you mean {1 + margin:g}?" if 0 < margin < SHARE_TYPO_LIMIT else ""
        raise BadInput(f"A safety margin is above 1, as 1.2 for a fifth faster, and {text} is not.{meant}")
    return margin


def load_thresholds(path: Path) -> tuple[ThresholdSpec, ...]:
    """Return the thresholds of a file, its functions found from its folder."""
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("thresholds"), list):
        raise BadInput(f"{path} holds no thresholds: it needs a list under the key thresholds.")
    _check_keys(content, {"thresholds"}, str(path), _find_key_lines(path, ()))
    entries = cast("list[JsonValue]", content["thresholds"])
    if not entries:
        raise BadInput(f"{path}: its list of thresholds is empty.")
    specs = tuple(_load_threshold(entry, path, number) for number, entry in enumerate(entries))
    for what in ("name", "key"):
        texts = [getattr(spec, what) for spec in specs]
        twice = next((one for one in texts if texts.count(one) > 1), None)
        if twice is not None:
            raise BadInput(f"{path}: two thresholds have the {what} {twice!r}.")
    return specs


def _load_threshold(entry: JsonValue, path: Path, number: int) -> ThresholdSpec:
    name = entry.get("name") if isinstance(entry, dict) else None
    where = f"{path}: thresholds[{number}]" + (f" ({name})" if isinstance(name, str) else "")
    if not isinstance(entry, dict):
        raise BadInput(f"{where} is not a threshold: it must map names to values.")
    _check_keys(
        entry, set(ThresholdSpec.model_fields) - {"where"}, where, _find_key_lines(path, ("thresholds", number))
    )
    try:
        spec = ThresholdSpec.model_validate({**entry, "where": where})
    except ValidationError as error:
        raise BadInput(f"{where}: {first_problem(error)}.") from None
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    if (spec.axes is None) == (spec.grids is None):
        raise BadInput(f"{where} needs either axes, or several grids by their names.")
    _check_axes(spec)
    folder = path.parent
    functions = {side: resolve_function(getattr(spec, side), folder) for side in ("reference", "fast")}
    return spec.model_copy(update=functions)


def _check_axes(spec: ThresholdSpec) -> None:
    """Refuse a grid that has nothing on an axis, and parameters that stand both fixed and on an axis."""
    grids = spec.grids if spec.axes is None else {"axes": spec.axes}
    for name, axes in (grids or {}).items():
        empty = [axis for axis, values in axes.items() if not values]
        if empty or not axes:
            raise BadInput(f"{spec.where}: {name} has {f'nothing on {empty[0]}' if empty else 'no axis'}.")
        both = sorted(set(axes) & set(spec.params))
        if both:
            raise BadInput(f"{spec.where}: {both[0]} stands both among the params and on an axis.")


def resolve_function(spec: str, folder: Path) -> str:
    """Return a function's place as it is written from here, where it is given relative to a file's folder."""
    file, _, name = spec.rpartition(":")
    if not is_function_spec(spec) or not file.endswith(".py") or Path(file).is_absolute():
        return spec
    return f"{os.path.relpath(folder / file)}:{name}"


def _check_keys(entry: Mapping[str, Any], known_keys: set[str], where: str, lines: Mapping[str, int]) -> None:
    for key in entry:
        if key not in known_keys:
            line = f", line {lines[key]}" if key in lines else ""
            raise BadInput(f"{where}{line}: unknown key {key!r}.{suggest_nearest(key, known_keys)}")


def _find_key_lines(path: Path, within: tuple[str | int, ...]) -> dict[str, int]:
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


BRANCH_SIZES = {"sliding": "the most keys a query sees", "compressed": "the compressed tokens the last query sees"}
"""Sizes computed from several parameters, and what they are."""

MAX_POINTS = 1000
"""A larger grid is a typing error: nobody would wait for it."""


def build_threshold(
    spec: ThresholdSpec, *, kind: str, grid: str | None, margin: float | None, sizes: Sequence[int] = ()
) -> Threshold:
    """Return a threshold with its points on a kind of device; with ``sizes`` only the points of those."""
    grid_params = list(spec.grid_params(grid))
    if len(grid_params) > MAX_POINTS:
        raise BadInput(f"{spec.where}: its grid has {len(grid_params)} points; {MAX_POINTS} are the most.")
    sized = [(size, params) for params in grid_params if (size := compute_point_size(spec, params)) is not None]
    known_sizes = sorted({size for size, _ in sized})
    unknown = [size for size in sizes if size not in known_sizes]
    if sizes and len(unknown) == len(sizes):
        raise BadInput(
            f"{spec.where} has no size {unknown[0]}; it has {', '.join(f'{size:g}' for size in known_sizes)}."
        )
    reference, fast = _subject_builder(spec.reference, kind), _subject_builder(spec.fast, kind)
    try:
        points = [
            GridPoint(size=size, params=params, reference=reference(params), fast=fast(params))
            for size, params in sized
            if not sizes or size in sizes
        ]
    except BadInput as error:
        raise BadInput(f"{spec.where}: {error}") from None
    points.sort(key=lambda point: (point.size, *map(_sort_key, point.params.values())))
    if not points:
        raise BadInput(f"{spec.where}: its grid has no point.")
    never = spec.never
    if isinstance(never, int | float) and not isinstance(never, bool) and points[0].size <= never <= points[-1].size:
        raise BadInput(f"{spec.where}: never is {never:g}, which is a size of its grid and would switch it on there.")
    if all(point.reference == point.fast for point in points):
        raise BadInput(f"{spec.where}: reference and fast are the same, {spec.fast}.")
    return Threshold(
        name=spec.name,
        key=spec.key,
        never=spec.never,
        margin=margin or spec.margin,
        axis=BRANCH_SIZES.get(spec.size, spec.size),
        branch="sliding" if spec.size == "sliding" else "compressed" if spec.size == "compressed" else None,
        points=tuple(points),
    )


def compute_point_size(spec: ThresholdSpec, params: Params) -> int | float | None:
    """Return how large a point is on the threshold's axis; null for one that is only another name for a smaller one.

    A window that is longer than the sequence shows no more than one as long.
    """
    if spec.size in BRANCH_SIZES and spec.size not in params:
        try:
            length = effective_length(params)
        except (BadInput, KeyError):
            raise BadInput(
                f"{spec.where}: the size of a {spec.size} branch needs {_BRANCH_NEEDS[spec.size]}."
            ) from None
        window = params.get("window")
        return None if isinstance(window, int) and window > length else length
    if spec.size not in params:
        names = (*params, *BRANCH_SIZES)
        raise BadInput(
            f"{spec.where}: its size {spec.size!r} is none of its parameters.{suggest_nearest(spec.size, names)}"
        )
    size = params[spec.size]
    if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
        raise BadInput(f"{spec.where}: a size is a number above zero, and {spec.size} is {size!r}.")
    return size


_BRANCH_NEEDS = {"sliding": "a sequence and a window", "compressed": "a sequence, a block and a stride"}


def _subject_builder(spec: str, kind: str) -> Callable[[Params], Subject]:
    """Return a function that builds the subjects of one path; a workload is looked up once for all points."""
    workload: Workload | None = None
    first: Subject | None = None

    def build(params: Params) -> Subject:
        nonlocal first, workload
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in params.items()}
        if first is None or workload is None:
            first = registry.resolve_subject(spec, device_kind=kind, explicit=texts)
            if not is_function_spec(first.workload):
                workload = registry.find_workload(first.workload, first.impl)
            return first
        whole = registry.complete_params(workload, texts, kind)
        configs = workload.configs(whole)
        return first.model_copy(update={"params": whole, "config": configs[0] if configs else None})

    return build


def _sort_key(value: Scalar) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))
