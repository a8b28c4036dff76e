"""What to draw, as values: an experiment describes its page once, and every report renders it.

A page is a title, a lead sentence and sections of elements. An element defines what is shown and in which unit; how it
looks in a terminal, in Markdown, in HTML or in a PNG is up to the reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar

from pydantic import Field, FiniteFloat, model_validator

from assay.core.results import Origin
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

Row = TypeVar("Row")
Cell = str | float | int | None
Tone = Literal["plain", "good", "bad", "unsure"]


class Text(Value):
    """A paragraph; ``tone`` distinguishes a result from a warning."""

    kind: Literal["text"] = "text"
    text: str
    tone: Tone = "plain"


class Column(Value):
    """A column's heading and whether its cells are numbers (aligned right)."""

    title: str
    numeric: bool = False


class Table(Value):
    """Rows of cells; null is shown as a dash and means not measured."""

    kind: Literal["table"] = "table"
    title: str
    columns: tuple[Column, ...] = Field(min_length=1)
    rows: tuple[tuple[Cell, ...], ...]
    tones: tuple[Tone, ...] | None = Field(default=None, description="One tone per row.")
    note: str | None = None

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.title!r} has a row that does not fit its columns")
        if self.tones is not None and len(self.tones) != len(self.rows):
            raise ValueError(f"table {self.title!r} has tones for other rows")
        return self


def build_table(
    title: str,
    rows: Iterable[Row],
    columns: Mapping[str, Callable[[Row], Cell]],
    *,
    numeric: Collection[str] = (),
    tone: Callable[[Row], Tone] | None = None,
    note: str | None = None,
) -> Table:
    """Return a table with one line per row, whose columns are functions of the row.

    Args:
        title: Of the table.
        rows: Any values, one per line.
        columns: The cell of each column, by the column's title, from left to right.
        numeric: Titles of the columns that hold numbers (aligned right).
        tone: The tone of a row; null: all rows are plain.
        note: Shown below the table.

    """
    if unknown := set(numeric) - set(columns):
        raise ValueError(f"table {title!r} has no column {', '.join(sorted(unknown))}")
    all_rows = list(rows)
    return Table(
        title=title,
        columns=tuple(Column(title=name, numeric=name in numeric) for name in columns),
        rows=tuple(tuple(cell(row) for cell in columns.values()) for row in all_rows),
        tones=None if tone is None else tuple(map(tone, all_rows)),
        note=note,
    )


class StripRow(Value):
    """One row of a strip plot: every sample as a dot, with the estimate and its interval on top."""

    label: str
    samples: tuple[float, ...]
    value: float | None = None
    low: float | None = None
    high: float | None = None


class StripPlot(Value):
    """Samples of several subjects on one common axis."""

    kind: Literal["strips"] = "strips"
    title: str
    name: str = Field(pattern=r"^[a-z0-9_]+$", description="Names the figure's file.")
    axis: str
    unit: str
    strips: tuple[StripRow, ...] = Field(min_length=1)
    centre: float | None = Field(default=None, description="The value that means no change; marked by a line.")
    note: str | None = None


class PlotLine(Value):
    """One line; ``low`` and ``high`` draw a band around it. A ``limit`` is a reference for the other lines."""

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    limit: bool = False

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        for name, other in (("y", self.y), ("low", self.low), ("high", self.high)):
            if other is not None and len(other) != len(self.x):
                raise ValueError(f"line {self.label!r}: {name} has {len(other)} points, x has {len(self.x)}")
        return self


class LinePlot(Value):
    """Lines over a common axis."""

    kind: Literal["lines"] = "lines"
    title: str
    name: str = Field(pattern=r"^[a-z0-9_]+$")
    x_axis: str
    y_axis: str
    lines: tuple[PlotLine, ...] = Field(min_length=1)
    log_x: bool = False
    log_y: bool = False
    markers: bool = True
    note: str | None = None


class ScatterPoint(Value):
    """A point with optional intervals in x and y; its tone shows whether it is better than the others."""

    label: str
    group: str = Field(default="", description="Dots of one group look alike.")
    x: FiniteFloat
    y: FiniteFloat
    x_low: FiniteFloat | None = None
    x_high: FiniteFloat | None = None
    y_low: FiniteFloat | None = None
    y_high: FiniteFloat | None = None
    tone: Tone = "plain"


class ScatterPlot(Value):
    """Points by two of their values; ``path`` connects some of them, by their indices in ``dots``."""

    kind: Literal["scatter"] = "scatter"
    title: str
    name: str = Field(pattern=r"^[a-z0-9_]+$")
    x_axis: str
    y_axis: str
    dots: tuple[ScatterPoint, ...] = Field(min_length=1)
    path: tuple[int, ...] = ()
    path_label: str = ""
    tones: dict[Tone, str] = Field(default_factory=dict, description="What each tone means here.")
    log_x: bool = False
    log_y: bool = False
    note: str | None = None

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if any(not 0 <= index < len(self.dots) for index in self.path):
            raise ValueError(f"scatter {self.title!r}: its path leads to a dot that is not there")
        return self


class HeatMap(Value):
    """A matrix of numbers with row and column names; null cells were not measured."""

    kind: Literal["heatmap"] = "heatmap"
    title: str
    name: str = Field(pattern=r"^[a-z0-9_]+$")
    rows: tuple[str, ...] = Field(min_length=1)
    columns: tuple[str, ...] = Field(min_length=1)
    cells: tuple[tuple[float | None, ...], ...]
    unit: str
    centre: float | None = Field(
        default=None, description="The value that means no change; the middle of the colour scale."
    )
    unsure: tuple[tuple[bool, ...], ...] | None = Field(
        default=None, description="For each cell, whether it may equal the centre: shown without colour."
    )
    note: str | None = None

    @model_validator(mode="after")
    def _check_cells(self) -> Self:
        if len(self.cells) != len(self.rows) or any(len(row) != len(self.columns) for row in self.cells):
            raise ValueError(f"heat map {self.title!r}: its cells do not fill {len(self.rows)}×{len(self.columns)}")
        if self.unsure is not None and [len(row) for row in self.unsure] != [len(self.columns)] * len(self.rows):
            raise ValueError(f"heat map {self.title!r}: what is unsure does not fit its cells")
        return self


class TimelineBar(Value):
    """A span of time in one lane of a timeline, in seconds since the timeline's start."""

    lane: str
    label: str
    start_s: float
    end_s: float
    tone: Tone = "plain"


class Timeline(Value):
    """What ran when: bars in lanes, and lines (sensors) on the same axis."""

    kind: Literal["timeline"] = "timeline"
    title: str
    name: str = Field(pattern=r"^[a-z0-9_]+$")
    bars: tuple[TimelineBar, ...] = Field(min_length=1)
    lines: tuple[PlotLine, ...] = ()
    lines_axis: str = ""
    note: str | None = None


Element = Annotated[Text | Table | StripPlot | LinePlot | ScatterPlot | HeatMap | Timeline, Field(discriminator="kind")]
Figure = StripPlot | LinePlot | ScatterPlot | HeatMap | Timeline


class Section(Value):
    """A heading and the elements below it."""

    title: str
    elements: tuple[Element, ...]
    brief: bool = Field(default=False, description="Shown on a terminal too: what carries the answer, and failures.")


class Page(Value):
    """A whole report: a title, the answer in one sentence, then the sections."""

    title: str
    lead: str
    lead_tone: Tone = "plain"
    quality: tuple[Text, ...] = Field(default=(), description="How far it can be trusted; shown under the lead.")
    sections: tuple[Section, ...] = ()
    facts: tuple[tuple[str, str], ...] = Field(default=(), description="Name and value pairs for the foot.")
    origin: Origin = "real"

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every element that is drawn rather than written, in order."""
        return tuple(e for s in self.sections for e in s.elements if not isinstance(e, Text | Table))
