"""The sheet a figure is drawn on: its size, its title, its remarks, and the parts all kinds share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullLocator

from assay.reports.numbers import typeset, write_cell, write_ticks
from assay.reports.wording import warning, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as MplAxis

    from assay.core.results import Origin
    from assay.reports.drawing.theme import Theme

WIDTH_IN = 6.3
LINE_IN = 0.155
"""Height of one line of a label."""

LABEL_CHARACTERS = 24
AXIS_CHARACTERS = 70


class Numbers(Formatter):
    """Writes ticks as the tables write their cells."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Write one tick on its own."""
        del pos
        return typeset(write_cell(float(x)))

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Write all ticks of an axis alike."""
        return [typeset(text) for text in write_ticks([float(value) for value in values])]


class LogNumbers(Numbers):
    """Writes each tick of a logarithmic axis on its own, as they differ in size."""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Write the ticks one by one."""
        return [write_ticks([float(value)])[0].removeprefix("1×") for value in values]


def new_sheet(height_in: float, look: Theme, *, width_in: float = WIDTH_IN) -> Figure:
    """Return an empty figure that makes room for all labels."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, hspace=0.03)
    figure = Figure(figsize=(width_in, height_in), facecolor=look.background, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def add_title(figure: Figure, title: str, look: Theme) -> None:
    """Put a title at the top left."""
    text = wrapped(title, int(figure.get_figwidth() * 10.5))
    grow(figure, (text.count("\n") + 1) * 0.2 + 0.1)
    figure.suptitle(text, x=0.012, ha="left", fontsize=10.5, fontweight="bold", color=look.ink)


def add_remarks(figure: Figure, remarks: Iterable[str], origin: Origin, look: Theme) -> None:
    """Put what must be known to read the drawing at the bottom left, and the warning about its origin."""
    warned = warning(origin)
    text = wrapped(" ".join(remarks), int(figure.get_figwidth() * 16.5))
    if warned:
        text = f"{text}\n\n" if text else "\n"
        figure.text(0.012, 0.06 / figure.get_figheight(), f"{warned}.", fontsize=8.0, color=look.warning, weight="bold")
    if text:
        grow(figure, (text.count("\n") + 1) * 0.14 + 0.08)
        figure.supxlabel(text, x=0.012, ha="left", fontsize=7.5, color=look.muted)


def grow(figure: Figure, by_in: float) -> None:
    """Make a figure higher."""
    figure.set_figheight(figure.get_figheight() + by_in)


def add_legend(axes: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Put a legend above the axes, in as many columns as its labels leave room for."""
    texts = [wrapped(label, 40) for label in labels]
    widths = [max(len(line) for line in text.split("\n")) + 6 for text in texts]
    room = int(WIDTH_IN * 12)
    columns = len(texts) if sum(widths) <= room else max(1, room // max(widths))
    rows = [texts[start : start + columns] for start in range(0, len(texts), columns)]
    lines = sum(max(text.count("\n") + 1 for text in row) for row in rows)
    grow(axes.get_figure(root=True), lines * 0.18 + 0.06)  # type: ignore[arg-type]
    by_rows = [index for column in range(columns) for index in range(column, len(texts), columns)]
    axes.legend(
        [handles[index] for index in by_rows],
        [texts[index] for index in by_rows],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.02),
        ncols=columns,
        columnspacing=1.6,
        handlelength=1.6,
        handletextpad=0.5,
        labelspacing=0.35,
    )


def number_axis(axis: MplAxis, *, log: bool, ticks: int = 6, whole: bool = False) -> None:
    """Let an axis write numbers as we do, with a readable number of ticks; ``whole`` ones for counts."""
    if log:
        low, high = axis.get_view_interval()
        narrow = high / low < 200
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=ticks + 2))
        axis.set_major_formatter(LogNumbers())
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10], integer=whole))
        axis.set_major_formatter(Numbers())
