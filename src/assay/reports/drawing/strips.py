"""Strip plots: a dot for every sample, the estimate and its interval over them, the numbers beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patheffects import withStroke

from assay.core.format import typeset_minus
from assay.reports.drawing.sheet import AXIS_CHARACTERS, LABEL_CHARACTERS, LINE_IN, new_sheet, number_axis
from assay.reports.scales import Axis, Floats, bin_counts, finite, strip_axis, thin_samples
from assay.reports.text import format_cell, format_interval, with_unit, wrap_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.core.page import StripPlot, StripRow
    from assay.reports.drawing.sheet import Theme

MAX_DOTS = 300
"""Dots drawn per strip; more would only make the file large and the strip black."""

_FEW_DOTS = 12
"""Up to this many dots are drawn in a row above the bar of their interval."""

_ARROW = 0.01
"""Distance of an arrow from the edge of the axis, as a share of its length."""

_ROW_IN = 0.46
_GOLDEN = 0.6180339887498949


def draw_strips(strips: StripPlot, theme: Theme) -> tuple[Figure, list[str]]:
    """Draw the strips below each other; also return the remarks to print below them."""
    labels = [wrap_label(strip.label, LABEL_CHARACTERS) for strip in strips.strips]
    heights = [max(_ROW_IN, (label.count("\n") + 1) * LINE_IN + 0.12) for label in labels]
    middles = np.cumsum(heights) - np.array(heights) / 2
    figure = new_sheet(sum(heights) + 0.62, theme)
    axes = figure.add_subplot()
    axis = strip_axis(strips.strips, strips.centre)
    if strips.centre is not None:
        axes.axvline(strips.centre, color=theme.muted, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    for strip, middle in zip(strips.strips, middles, strict=True):
        _draw_strip(axes, strip, float(middle), axis, theme)
    _set_axes(axes, axis, with_unit(strips.axis, strips.unit))
    axes.set_ylim(float(sum(heights)), 0.0)
    axes.set_yticks(middles, labels)
    return figure, _remarks(strips, axis)


def _set_axes(axes: Axes, axis: Axis, title: str) -> None:
    if axis.log:
        axes.set_xscale("log")
    axes.set_xlim(axis.low, axis.high)
    number_axis(axes.xaxis, log=axis.log)
    axes.set_xlabel(wrap_label(f"{title}, logarithmic" if axis.log else title, AXIS_CHARACTERS))
    axes.grid(axis="x")


def _draw_strip(axes: Axes, strip: StripRow, middle: float, axis: Axis, theme: Theme) -> None:
    samples = finite(strip.samples)
    visible = samples[(samples >= axis.low) & (samples <= axis.high)]
    dots = thin_samples(visible, MAX_DOTS)
    axes.axhline(middle, color=theme.rule, linewidth=0.7, zorder=0.5)
    if len(dots):
        axes.plot(
            dots,
            middle + (_dot_spread(dots, axis) + _dot_lift(strip, dots)) * _ROW_IN * 0.62,
            linestyle="none",
            marker="o",
            markersize=3.4,
            markeredgewidth=0,
            color=theme.dot,
            alpha=0.55,
            zorder=2,
        )
    _draw_estimate(axes, strip, middle, axis, theme)
    _draw_strays(axes, samples, middle, axis, theme)
    if strip.value is None and not len(samples):
        _note_at_edge(axes, "not measured", (0.0, middle), theme, lift=0)
    elif strip.value is not None:
        text = typeset_minus(format_interval(strip.value, strip.low, strip.high))
        axes.annotate(
            text.replace(" [", "\n["),
            (1.0, middle),
            xycoords=axes.get_yaxis_transform(),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.0,
            annotation_clip=False,
        )


def _dot_spread(dots: Floats, axis: Axis) -> Floats:
    """Return the offset of each dot from its line, from -0.5 to 0.5: wider where dots are denser."""
    bins = 48
    counts = np.convolve(bin_counts(dots, axis, bins), [0.25, 0.5, 0.25], mode="same")
    bin_index = np.clip((axis.position(dots) * bins).astype(np.intp), 0, bins - 1)
    room = counts[bin_index] / max(float(counts.max()), 1.0)
    if len(dots) <= _FEW_DOTS:
        room = np.zeros(len(dots))
    sequence = np.mod(np.arange(1, len(dots) + 1) * _GOLDEN, 1.0) - 0.5
    return np.asarray(sequence * room, dtype=np.float64)


def _dot_lift(strip: StripRow, dots: Floats) -> float:
    """Return the offset that lifts a few dots above their line, so that the interval's bar does not hide them."""
    return -0.4 if len(dots) <= _FEW_DOTS and strip.low is not None else 0.0


def _draw_estimate(axes: Axes, strip: StripRow, middle: float, axis: Axis, theme: Theme) -> None:
    """Draw the value and its interval; an end beyond the axis is an arrow at its edge."""
    halo = [withStroke(linewidth=4.6, foreground=theme.background)]
    if strip.low is not None and strip.high is not None:
        shown = [max(strip.low, axis.at(_ARROW)), min(strip.high, axis.at(1 - _ARROW))]
        axes.plot(shown, [middle, middle], color=theme.ink, linewidth=2.0, zorder=4, path_effects=halo)
        for end, position, arrow in zip((strip.low, strip.high), shown, "<>", strict=True):
            if end == position:
                axes.plot([end, end], [middle - 0.085, middle + 0.085], color=theme.ink, linewidth=1.4, zorder=4)
            else:
                axes.plot([position], [middle], marker=arrow, markersize=6.5, color=theme.ink, zorder=5)
    if strip.value is not None:
        axes.plot(
            [strip.value],
            [middle],
            marker="D",
            markersize=4.6,
            color=theme.ink,
            markeredgecolor=theme.background,
            markeredgewidth=1.0,
            linestyle="none",
            zorder=5,
        )


def _draw_strays(axes: Axes, samples: Floats, middle: float, axis: Axis, theme: Theme) -> None:
    """Note at the edges how many samples lie beyond them and how far they reach."""
    below, above = samples[samples < axis.low], samples[samples > axis.high]
    if len(below):
        note = f"◂ {len(below):,}, down to {typeset_minus(format_cell(float(below.min())))}"
        _note_at_edge(axes, note, (0.0, middle), theme)
    if len(above):
        note = f"{len(above):,}, up to {typeset_minus(format_cell(float(above.max())))} ▸"
        _note_at_edge(axes, note, (1.0, middle), theme)


def _note_at_edge(axes: Axes, note: str, position: tuple[float, float], theme: Theme, *, lift: float = 9) -> None:
    axes.annotate(
        note,
        position,
        xycoords=axes.get_yaxis_transform(),
        xytext=(2 - 4 * position[0], lift),
        textcoords="offset points",
        ha="right" if position[0] else "left",
        va="center",
        fontsize=7.0,
        color=theme.muted,
        bbox={"facecolor": theme.background, "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
        zorder=6,
    )


def _exceeds_axis(strip: StripRow, axis: Axis) -> bool:
    if strip.low is None or strip.high is None:
        return False
    return strip.low < axis.at(_ARROW) or strip.high > axis.at(1 - _ARROW)


def _remarks(strips: StripPlot, axis: Axis) -> list[str]:
    largest = max(len(finite(strip.samples)) for strip in strips.strips)
    remarks = []
    if largest > MAX_DOTS:
        remarks.append(f"{MAX_DOTS} dots per row, evenly ranked among up to {largest:,} samples.")
    if any(np.any((s < axis.low) | (s > axis.high)) for s in (finite(strip.samples) for strip in strips.strips)):
        remarks.append("▸ counts samples beyond the axis.")
    if any(strip.low is not None for strip in strips.strips):
        remarks.append("◆ is the estimate, the bar its interval.")
    if any(_exceeds_axis(strip, axis) for strip in strips.strips):
        remarks.append("A bar that ends in an arrow goes on beyond the axis.")
    return remarks
