"""From a file's words to the points of a grid: subjects with complete parameters, and each point's size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput, nearest
from assay.experiments.threshold.options import Point, Threshold
from assay.workloads import registry
from assay.workloads.function import is_function_spec
from assay.workloads.nsa.sizes import effective_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.plan import Subject
    from assay.core.values import Params, Scalar
    from assay.experiments.threshold.spec import Wanted
    from assay.workloads.base import Workload

BRANCHES = {
    "sliding": "the most keys a query sees",
    "compressed": "the compressed tokens the last query sees",
}
"""Sizes that are worked out from several parameters, in words."""

MOST_POINTS = 1000
"""A grid of more is a slip of the finger: nobody would wait for it."""


def planned(
    wanted: Wanted, *, kind: str, grid: str | None, margin: float | None, sizes: Sequence[int] = ()
) -> Threshold:
    """Return a threshold with its points on a kind of device; with ``sizes`` only the points of those."""
    grid_params = list(wanted.places(grid))
    if len(grid_params) > MOST_POINTS:
        raise BadInput(f"{wanted.where}: its grid has {len(grid_params)} points; {MOST_POINTS} are the most.")
    sized = [(size, params) for params in grid_params if (size := size_of(wanted, params)) is not None]
    known_sizes = sorted({size for size, _ in sized})
    unknown = [size for size in sizes if size not in known_sizes]
    if sizes and len(unknown) == len(sizes):
        raise BadInput(
            f"{wanted.where} has no size {unknown[0]}; it has {', '.join(f'{size:g}' for size in known_sizes)}."
        )
    reference, fast = _Maker(wanted.reference, kind), _Maker(wanted.fast, kind)
    try:
        points = [
            Point(size=size, params=params, reference=reference.make(params), fast=fast.make(params))
            for size, params in sized
            if not sizes or size in sizes
        ]
    except BadInput as error:
        raise BadInput(f"{wanted.where}: {error}") from None
    points.sort(key=lambda point: (point.size, *map(_order, point.params.values())))
    if not points:
        raise BadInput(f"{wanted.where}: its grid has no point.")
    never = wanted.never
    if isinstance(never, int | float) and not isinstance(never, bool) and points[0].size <= never <= points[-1].size:
        raise BadInput(f"{wanted.where}: never is {never:g}, which is a size of its grid and would switch it on there.")
    if all(point.reference == point.fast for point in points):
        raise BadInput(f"{wanted.where}: reference and fast are the same, {wanted.fast}.")
    return Threshold(
        name=wanted.name,
        key=wanted.key,
        never=wanted.never,
        margin=margin or wanted.margin,
        axis=BRANCHES.get(wanted.size, wanted.size),
        branch="sliding" if wanted.size == "sliding" else "compressed" if wanted.size == "compressed" else None,
        points=tuple(points),
    )


def size_of(wanted: Wanted, params: Params) -> int | float | None:
    """Return how large a point is on the threshold's axis; null for one that is only another name for a smaller one.

    A window that is longer than the sequence shows no more than one as long.
    """
    if wanted.size in BRANCHES and wanted.size not in params:
        try:
            length = effective_length(params)
        except (BadInput, KeyError):
            raise BadInput(f"{wanted.where}: the size of a {wanted.size} branch needs {_NEEDS[wanted.size]}.") from None
        window = params.get("window")
        return None if isinstance(window, int) and window > length else length
    if wanted.size not in params:
        names = (*params, *BRANCHES)
        raise BadInput(
            f"{wanted.where}: its size {wanted.size!r} is none of its parameters.{nearest(wanted.size, names)}"
        )
    size = params[wanted.size]
    if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
        raise BadInput(f"{wanted.where}: a size is a number above zero, and {wanted.size} is {size!r}.")
    return size


_NEEDS = {"sliding": "a sequence and a window", "compressed": "a sequence, a block and a stride"}


class _Maker:
    """Makes the subjects of one path; a workload is looked up once for all points."""

    def __init__(self, spec: str, kind: str) -> None:
        self._spec = spec
        self._kind = kind
        self._first: Subject | None = None
        self._workload: Workload | None = None

    def make(self, params: Params) -> Subject:
        """Return the subject with these parameters."""
        texts = {name: _word(value) for name, value in params.items()}
        if self._first is None or self._workload is None:
            self._first = registry.subject(self._spec, device_kind=self._kind, given=texts)
            if not is_function_spec(self._first.workload):
                self._workload = registry.find(self._first.workload, self._first.impl)
            return self._first
        whole = registry.complete(self._workload, texts, self._kind)
        configs = self._workload.configs(whole)
        return self._first.model_copy(update={"params": whole, "config": configs[0] if configs else None})


def _order(value: Scalar) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))


def _word(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
