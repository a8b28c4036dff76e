"""Scatter plots: things by two numbers with their intervals, each with its name beside it where there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.lines import Line2D

from assay.reports.drawing.labels import Label, place_labels
from assay.reports.drawing.sheet import AXIS_CHARACTERS, add_legend, new_sheet, number_axis
from assay.reports.scales import finite
from assay.reports.wording import one_line, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.core.page import Dot, Scatter, Tone
    from assay.reports.drawing.theme import Theme

MOST_LABELS = 28
"""So many dots get a name; of more, only those that the path joins."""

_HEIGHT_IN = 3.9
_SIZE = 7.0
_MARKERS = "osD^vPX"
_FILLS: dict[Tone, str] = {"good": "full", "unsure": "left", "plain": "none", "bad": "none"}


def draw_scatter(scatter: Scatter, look: Theme) -> tuple[Figure, list[str]]:
    """Draw the dots; also return the remarks that belong under the drawing.

    A logarithmic axis that was asked for stays linear where a dot is not positive: no dot is lost.
    """
    figure = new_sheet(_HEIGHT_IN, look)
    axes = figure.add_subplot()
    _scale(axes, scatter)
    axes.set_xlabel(wrapped(scatter.x_axis, AXIS_CHARACTERS))
    axes.set_ylabel(wrapped(scatter.y_axis, 44))
    axes.grid()
    groups = list(dict.fromkeys(dot.group for dot in scatter.dots))
    _draw_path(axes, scatter, look)
    for dot in scatter.dots:
        _draw_dot(axes, dot, groups.index(dot.group), look)
    handles, names = _legend(scatter, groups, look)
    if names:
        add_legend(axes, handles, names)
    named = _named(scatter)
    left = len(scatter.dots) - len(named)
    left += place_labels(axes, [_label(dot, shown=index in named) for index, dot in enumerate(scatter.dots)], look)
    return figure, [f"{left} of {len(scatter.dots)} dots are not named; the table has them all."] if left else []


def _named(scatter: Scatter) -> set[int]:
    if len(scatter.dots) <= MOST_LABELS:
        return set(range(len(scatter.dots)))
    return set(scatter.path[:MOST_LABELS])


def _colour(group: int, look: Theme) -> str:
    return look.lines[group % len(look.lines)]


def _scale(axes: Axes, scatter: Scatter) -> None:
    """Set the ends of the axes so that every dot and interval lies well inside, with room for names."""
    low, high, log_x = _ends([end for dot in scatter.dots for end in (dot.x, dot.x_low, dot.x_high)], log=scatter.log_x)
    axes.set_xscale("log" if log_x else "linear")
    axes.set_xlim(low, high)
    low, high, log_y = _ends([end for dot in scatter.dots for end in (dot.y, dot.y_low, dot.y_high)], log=scatter.log_y)
    axes.set_yscale("log" if log_y else "linear")
    axes.set_ylim(low, high)
    number_axis(axes.xaxis, log=log_x)
    number_axis(axes.yaxis, log=log_y)


def _ends(numbers: Sequence[float | None], *, log: bool) -> tuple[float, float, bool]:
    """Return both ends of an axis, and whether it can be logarithmic."""
    values = finite(numbers)
    low, high = float(values.min()), float(values.max())
    if log and low > 0:
        room = max((high / low) ** 0.12, 1.3)
        return low / room, high * room, True
    room = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    return (max(0.0, low - room) if low > 0 else low - room / 3), high + room, False


def _draw_path(axes: Axes, scatter: Scatter, look: Theme) -> None:
    joined = [scatter.dots[index] for index in scatter.path]
    if len(joined) > 1:
        axes.plot(
            [dot.x for dot in joined],
            [dot.y for dot in joined],
            color=look.muted,
            linewidth=1.1,
            linestyle=(0, (4, 2.4)),
            zorder=1.5,
        )


def _draw_dot(axes: Axes, dot: Dot, group: int, look: Theme) -> None:
    colour = _colour(group, look)
    if dot.x_low is not None and dot.x_high is not None:
        axes.plot([dot.x_low, dot.x_high], [dot.y, dot.y], color=colour, linewidth=1.3, alpha=0.75, zorder=2)
    if dot.y_low is not None and dot.y_high is not None:
        axes.plot([dot.x, dot.x], [dot.y_low, dot.y_high], color=colour, linewidth=1.3, alpha=0.75, zorder=2)
    axes.add_line(_marker(dot.tone, group, look, at=(dot.x, dot.y)))


def _marker(tone: Tone, group: int | None, look: Theme, *, at: tuple[float, float] | None = None) -> Line2D:
    """Return a dot: full, half or hollow by its tone; colour and shape are its group's."""
    colour = look.muted if group is None else _colour(group, look)
    return Line2D(
        [] if at is None else [at[0]],
        [] if at is None else [at[1]],
        linestyle="none",
        marker="o" if group is None else _MARKERS[group % len(_MARKERS)],
        markersize=_SIZE,
        fillstyle=_FILLS[tone],  # type: ignore[arg-type]
        color=colour,
        markerfacecoloralt=look.background,
        markeredgecolor=colour,
        markeredgewidth=1.3,
        zorder=3,
    )


def _legend(scatter: Scatter, groups: Sequence[str], look: Theme) -> tuple[list[Artist], list[str]]:
    handles: list[Artist] = []
    names: list[str] = []
    if len(groups) > 1:
        handles += [_marker("good", index, look) for index in range(len(groups))]
        names += groups
    used = {dot.tone for dot in scatter.dots}
    for tone, meaning in scatter.tones.items():
        if tone in used:
            handles.append(_marker(tone, None, look))
            names.append(meaning)
    if len(scatter.path) > 1 and scatter.path_label:
        handles.append(Line2D([], [], color=look.muted, linewidth=1.1, linestyle=(0, (4, 2.4))))
        names.append(scatter.path_label)
    return handles, names


def _label(dot: Dot, *, shown: bool) -> Label:
    ends = (dot.x_low, dot.x_high, dot.y_low, dot.y_high)
    return Label(one_line(dot.label) if shown else "", dot.x, dot.y, ends)
