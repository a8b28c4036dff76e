"""Strip plots: every sample as a dot, with the estimate and its interval on top; strays are counted at the edge.

         ·:.::.
softmax  ·:|━◆━|:·   ·          1, up to 50 ▸   1.23 (1.21–1.25)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import typeset_minus
from assay.reports.drawing.axes import (
    AXIS_CHARACTERS,
    LABEL_CHARACTERS,
    MARGIN,
    NOTE_SIZE,
    TICK_SIZE,
    WIDTH,
    PlotArea,
    Ticks,
)
from assay.reports.drawing.shapes import DASHED, Canvas, Dots, Marker, text_height, text_width
from assay.reports.scales import Axis, Floats, bin_counts, finite, strip_axis, thin_samples
from assay.reports.text import format_cell, format_interval, with_unit, wrap_label

if TYPE_CHECKING:
    from assay.core.page import StripPlot, StripRow
    from assay.reports.drawing.shapes import MarkerShape

MAX_DOTS = 300
"""Dots drawn per strip; more would only make the file large and the strip black."""

_FEW_DOTS = 12
"""Up to this many dots are drawn in a row above the bar of their interval."""

_ARROW = 0.01
"""Distance of an arrow from the edge of the axis, as a share of its length."""

_ROW = 33.0
"""Height of a row, in points."""
_NOTE_WIDTH = 90.0
"""Maximum width of an estimate on one line, in points."""
_EDGE_SIZE = 7.0
_ARROWS: tuple[MarkerShape, MarkerShape] = ("<", ">")
_GOLDEN = 0.6180339887498949


def draw_strips(strips: StripPlot) -> tuple[Canvas, list[str]]:
    """Draw the strips below each other; also return the remarks to print below them."""
    labels = [wrap_label(strip.label, LABEL_CHARACTERS) for strip in strips.strips]
    notes = [_estimate_note(strip) for strip in strips.strips]
    axis = strip_axis(strips.strips, strips.centre)
    title = with_unit(strips.axis, strips.unit)
    ticks = Ticks.numbered(axis, wrap_label(f"{title}, logarithmic" if axis.log else title, AXIS_CHARACTERS))
    heights = [max(_ROW, text_height(label, TICK_SIZE) + 9) for label in labels]
    canvas = Canvas(WIDTH)
    left = MARGIN + max(text_width(label, TICK_SIZE) for label in labels) + 3.5
    right = WIDTH - MARGIN - max(max(text_width(note, NOTE_SIZE) for note in notes) + 8, 8)
    area = PlotArea(canvas, left, MARGIN, right, MARGIN + sum(heights), axis, Axis(0.0, 1.0))
    area.draw_x_axis(ticks)
    middles = [float(middle) for middle in area.top + np.cumsum(heights) - np.array(heights) / 2]
    canvas.line([[(left, middle), (right, middle)] for middle in middles], "rule", 0.7)
    if strips.centre is not None:
        x = float(area.across([strips.centre])[0])
        canvas.line([[(x, area.top), (x, area.bottom)]], "muted", 1.0, dash=DASHED)
    for strip, middle, note in zip(strips.strips, middles, notes, strict=True):
        _draw_strip(area, strip, middle)
        canvas.write(note, (right + 8, middle), NOTE_SIZE, middle=True)
    area.write_rows(zip(middles, labels, strict=True))
    return canvas, _remarks(strips, axis)


def _estimate_note(strip: StripRow) -> str:
    if strip.value is None:
        return ""
    text = typeset_minus(format_interval(strip.value, strip.low, strip.high))
    return text if text_width(text, NOTE_SIZE) <= _NOTE_WIDTH else text.replace(" (", "\n(")


def _draw_strip(area: PlotArea, strip: StripRow, middle: float) -> None:
    samples, axis = finite(strip.samples), area.x
    dots = thin_samples(samples[(samples >= axis.low) & (samples <= axis.high)], MAX_DOTS)
    if len(dots):
        heights = middle + (_dot_spread(dots, axis) + _dot_lift(strip, dots)) * _ROW * 0.62
        area.canvas.add(Dots(np.column_stack([area.across(dots), heights]), "dot", 3.4, 0.55))
    _draw_estimate(area, strip, middle)
    _note_strays(area, samples, middle)
    if strip.value is None and not len(samples):
        area.canvas.write("not measured", (area.left + 2, middle), _EDGE_SIZE, "muted", middle=True, halo=True)


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


def _draw_estimate(area: PlotArea, strip: StripRow, middle: float) -> None:
    """Draw the value and its interval; an end beyond the axis is an arrow at its edge."""
    canvas, axis = area.canvas, area.x
    if strip.low is not None and strip.high is not None:
        shown = [max(strip.low, axis.at(_ARROW)), min(strip.high, axis.at(1 - _ARROW))]
        left, right = (float(x) for x in area.across(shown))
        canvas.line([[(left, middle), (right, middle)]], "background", 4.6)
        canvas.line([[(left, middle), (right, middle)]], "ink", 2.0)
        for end, position, x, arrow in zip((strip.low, strip.high), shown, (left, right), _ARROWS, strict=True):
            if end == position:
                canvas.line([[(x, middle - 6), (x, middle + 6)]], "ink", 1.4)
            else:
                canvas.add(Marker(x, middle, arrow, 6.5, "ink"))
    if strip.value is not None:
        canvas.add(Marker(float(area.across([strip.value])[0]), middle, "D", 4.6, "ink", "background"))


def _note_strays(area: PlotArea, samples: Floats, middle: float) -> None:
    """Note at the edges how many samples lie beyond them and how far they reach."""
    below, above = samples[samples < area.x.low], samples[samples > area.x.high]
    if len(below):
        note = f"◂ {len(below):,}, down to {typeset_minus(format_cell(float(below.min())))}"
        area.canvas.write(note, (area.left + 2, middle - 9), _EDGE_SIZE, "muted", middle=True, halo=True)
    if len(above):
        note = f"{len(above):,}, up to {typeset_minus(format_cell(float(above.max())))} ▸"
        area.canvas.write(note, (area.right - 2, middle - 9), _EDGE_SIZE, "muted", "end", middle=True, halo=True)


def _exceeds_axis(strip: StripRow, axis: Axis) -> bool:
    if strip.low is None or strip.high is None:
        return False
    return strip.low < axis.at(_ARROW) or strip.high > axis.at(1 - _ARROW)


def _remarks(strips: StripPlot, axis: Axis) -> list[str]:
    arrays = [finite(strip.samples) for strip in strips.strips]
    largest = max(len(samples) for samples in arrays)
    remarks = []
    if largest > MAX_DOTS:
        remarks.append(f"{MAX_DOTS} dots per row, evenly ranked among up to {largest:,} samples.")
    if any(np.any((samples < axis.low) | (samples > axis.high)) for samples in arrays):
        remarks.append("▸ counts samples beyond the axis.")
    if any(strip.low is not None for strip in strips.strips):
        remarks.append("◆ is the estimate, the bar its interval.")
    if any(_exceeds_axis(strip, axis) for strip in strips.strips):
        remarks.append("A bar with an arrowhead continues beyond the axis.")
    return remarks
