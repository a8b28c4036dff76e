"""Timelines: what ran when, as bars in lanes, with the sensors' lines above on the same axis.

W  ╱╲__╱╲___      lines
───────────────
GPU 0  ▇▇▇ ▇▇▇▇   lanes
GPU 1     ▇▇▇▇
───────────────→ s
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from matplotlib.patches import Patch, Rectangle

from assay.reports.drawing.lines import add_lines, thinning_remarks
from assay.reports.drawing.sheet import LABEL_CHARACTERS, LINE_IN, add_legend, new_sheet, number_axis
from assay.reports.drawing.theme import readable_on
from assay.reports.wording import one_line, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.core.page import Bar, Timeline
    from assay.reports.drawing.theme import Theme

_BAR_IN = 0.26
_GAP_IN = 0.14
_LINES_IN = 1.7

Levels: TypeAlias = "list[list[Bar]]"
"""The bars of one lane, in levels in which no bar covers another."""


@dataclass(frozen=True)
class _Drawn:
    """A bar, the height of its middle, and until when its level is free behind it."""

    bar: Bar
    middle: float
    free_until: float


def draw_timeline(timeline: Timeline, look: Theme) -> tuple[Figure, list[str]]:
    """Draw lanes and lines; also return the remarks that belong under the drawing."""
    lanes = stacked(timeline.bars)
    heights = {
        lane: max(len(levels) * _BAR_IN, (wrapped(lane, LABEL_CHARACTERS).count("\n") + 1) * LINE_IN) + _GAP_IN
        for lane, levels in lanes.items()
    }
    lanes_in = sum(heights.values())
    figure = new_sheet(lanes_in + 0.5 + (_LINES_IN if timeline.lines else 0), look)
    axes, upper = _axes(figure, timeline, lanes_in, look)
    _set_time_axis(axes, timeline)
    placed_bars = _draw_lanes(axes, lanes, heights, look)
    if upper is None:
        _add_tones(axes, timeline.bars, look)
    return figure, [*thinning_remarks(timeline.lines), *_write_labels(figure, axes, placed_bars, look)]


def stacked(bars: Sequence[Bar]) -> dict[str, Levels]:
    """Return the bars by lane, in the order the lanes are first named."""
    lanes: dict[str, Levels] = {}
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.end_s)):
        levels = lanes.setdefault(one_line(bar.lane), [])
        free = next((level for level in levels if level[-1].end_s <= bar.start_s), None)
        if free is None:
            levels.append([bar])
        else:
            free.append(bar)
    order = dict.fromkeys(one_line(bar.lane) for bar in bars)
    return {lane: lanes[lane] for lane in order}


def _axes(figure: Figure, timeline: Timeline, lanes_in: float, look: Theme) -> tuple[Axes, Axes | None]:
    if not timeline.lines:
        return figure.add_subplot(), None
    grid = figure.add_gridspec(2, 1, height_ratios=[_LINES_IN, lanes_in])
    axes = figure.add_subplot(grid[1])
    upper = figure.add_subplot(grid[0], sharex=axes)
    handles: list[Patch] = list(add_lines(upper, timeline.lines, look, markers=False))  # type: ignore[arg-type]
    number_axis(upper.yaxis, log=False, ticks=4)
    upper.set_ylabel(wrapped(timeline.lines_axis, 20))
    upper.tick_params(labelbottom=False, bottom=False)
    upper.spines["bottom"].set_visible(False)
    tones = _tone_handles(timeline.bars, look)
    add_legend(upper, [*handles, *tones.values()], [*(line.label for line in timeline.lines), *tones])
    return axes, upper


def _set_time_axis(axes: Axes, timeline: Timeline) -> None:
    times = [time for bar in timeline.bars for time in (bar.start_s, bar.end_s)]
    times += [time for line in timeline.lines for time in line.x]
    low, high = min(times), max(times)
    pad = (high - low) * 0.01 or 0.5
    axes.set_xlim(low - pad, high + pad)
    number_axis(axes.xaxis, log=False)
    axes.set_xlabel("time (s)")
    axes.grid(axis="x")


def _draw_lanes(axes: Axes, lanes: Mapping[str, Levels], heights: Mapping[str, float], look: Theme) -> list[_Drawn]:
    """Draw every bar; return where each stands."""
    top, middles, placed_bars = 0.0, [], []
    left, right = axes.get_xlim()
    for lane, levels in lanes.items():
        middles.append(top + heights[lane] / 2)
        first = middles[-1] - (len(levels) - 1) * _BAR_IN / 2
        for depth, level in enumerate(levels):
            nexts = [*(bar.start_s for bar in level[1:]), right]
            for bar, free_until in zip(level, nexts, strict=True):
                placed_bars.append(_Drawn(bar, first + depth * _BAR_IN, free_until))
                _draw_bar(axes, placed_bars[-1], (right - left) / 200, look)
        top += heights[lane]
        axes.axhline(top, color=look.rule, linewidth=0.7, zorder=0.5)
    axes.set_ylim(top, 0.0)
    axes.set_yticks(middles, [wrapped(lane, LABEL_CHARACTERS) for lane in lanes])
    return placed_bars


def _draw_bar(axes: Axes, drawn: _Drawn, least: float, look: Theme) -> None:
    bar, height = drawn.bar, _BAR_IN * 0.82
    axes.add_patch(
        Rectangle(
            (bar.start_s, drawn.middle - height / 2),
            max(bar.end_s - bar.start_s, least),
            height,
            facecolor=look.tones[bar.tone],
            edgecolor=look.background,
            linewidth=0.5,
            zorder=2,
        )
    )


def _tone_handles(bars: Sequence[Bar], look: Theme) -> dict[str, Patch]:
    """Return a legend for the tones, when any bar has one."""
    used = {bar.tone for bar in bars} - {"plain"}
    return {tone: Patch(facecolor=colour, linewidth=0) for tone, colour in look.tones.items() if tone in used}


def _add_tones(axes: Axes, bars: Sequence[Bar], look: Theme) -> None:
    tones = _tone_handles(bars, look)
    if tones:
        add_legend(axes, list(tones.values()), list(tones))


def _write_labels(figure: Figure, axes: Axes, drawn: Sequence[_Drawn], look: Theme) -> list[str]:
    """Write each label into its bar, or into the free room behind it; say so where it fits nowhere."""
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    labelled = [_write_label(axes, one, look) for one in drawn if one_line(one.bar.label)]
    return [] if all(labelled) else ["Bars too short for their label stand without it."]


def _write_label(axes: Axes, drawn: _Drawn, look: Theme) -> bool:
    bar = drawn.bar
    ink = readable_on(look.tones[bar.tone])
    text = axes.text(0, drawn.middle, one_line(bar.label), va="center", fontsize=7.5, zorder=3, in_layout=False)
    needed = text.get_window_extent().width + 5
    start, end, free = (axes.transData.transform((x, 0))[0] for x in (bar.start_s, bar.end_s, drawn.free_until))
    end = max(end, start + 3)
    if needed <= end - start:
        text.set(x=(bar.start_s + bar.end_s) / 2, horizontalalignment="center", color=ink)
    elif needed + 3 <= free - end:
        text.set(x=axes.transData.inverted().transform((end + 3, 0))[0], color=look.ink)
    else:
        text.remove()
        return False
    return True
