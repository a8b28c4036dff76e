"""What all drawings share: sheet size, title, remarks, legend, number axes, and the theme.

The colours stay distinguishable for every kind of colour vision, on white and on dark.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullLocator

from assay.core.format import typeset_minus
from assay.reports.text import format_cell, format_ticks, origin_warning, wrap_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as MplAxis

    from assay.core.page import Tone
    from assay.core.results import Origin


WIDTH_IN = 6.3
LINE_IN = 0.155
"""Height of one line of a label."""

LABEL_CHARACTERS = 24
AXIS_CHARACTERS = 70


class NumberFormatter(Formatter):
    """Formats ticks as the tables format their cells."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Format a single tick."""
        del pos
        return typeset_minus(format_cell(float(x)))

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Format all ticks of an axis alike."""
        return [typeset_minus(text) for text in format_ticks([float(value) for value in values])]


class LogNumberFormatter(NumberFormatter):
    """Formats each tick of a logarithmic axis separately, as they differ in size."""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Format the ticks one by one."""
        return [format_ticks([float(value)])[0].removeprefix("1×") for value in values]


def new_sheet(height_in: float, theme: Theme, *, width_in: float = WIDTH_IN) -> Figure:
    """Return an empty figure with a layout that makes room for all labels."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, hspace=0.03)
    figure = Figure(figsize=(width_in, height_in), facecolor=theme.background, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def add_title(figure: Figure, title: str, theme: Theme) -> None:
    """Put a title at the top left."""
    text = wrap_label(title, int(figure.get_figwidth() * 10.5))
    grow_height(figure, (text.count("\n") + 1) * 0.2 + 0.1)
    figure.suptitle(text, x=0.012, ha="left", fontsize=10.5, fontweight="bold", color=theme.ink)


def add_remarks(figure: Figure, remarks: Iterable[str], origin: Origin, theme: Theme) -> None:
    """Put the remarks at the bottom left, and the warning about the origin of the numbers."""
    warned = origin_warning(origin)
    text = wrap_label(" ".join(remarks), int(figure.get_figwidth() * 16.5))
    if warned:
        text = f"{text}\n\n" if text else "\n"
        figure.text(
            0.012, 0.06 / figure.get_figheight(), f"{warned}.", fontsize=8.0, color=theme.warning, weight="bold"
        )
    if text:
        grow_height(figure, (text.count("\n") + 1) * 0.14 + 0.08)
        figure.supxlabel(text, x=0.012, ha="left", fontsize=7.5, color=theme.muted)


def grow_height(figure: Figure, by_in: float) -> None:
    """Increase a figure's height."""
    figure.set_figheight(figure.get_figheight() + by_in)


def add_legend(axes: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Put a legend above the axes, in as many columns as fit."""
    texts = [wrap_label(label, 40) for label in labels]
    widths = [max(len(line) for line in text.split("\n")) + 6 for text in texts]
    room = int(WIDTH_IN * 12)
    columns = len(texts) if sum(widths) <= room else max(1, room // max(widths))
    rows = [texts[start : start + columns] for start in range(0, len(texts), columns)]
    lines = sum(max(text.count("\n") + 1 for text in row) for row in rows)
    grow_height(axes.get_figure(root=True), lines * 0.18 + 0.06)  # type: ignore[arg-type]
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
    """Format an axis's numbers as in tables, with a readable number of ticks; ``whole`` ones for counts."""
    if log:
        low, high = axis.get_view_interval()
        narrow = high / low < 200
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=ticks + 2))
        axis.set_major_formatter(LogNumberFormatter())
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10], integer=whole))
        axis.set_major_formatter(NumberFormatter())


Colour: TypeAlias = str | tuple[float, float, float]


@dataclass(frozen=True)
class Theme:
    """Colours by purpose."""

    background: str
    ink: str
    muted: str
    rule: str
    dot: str
    warning: str
    lines: tuple[str, ...]
    tones: Mapping[Tone, str]
    below: str
    middle: str
    above: str
    faint: str
    strong: str

    @property
    def diverging(self) -> LinearSegmentedColormap:
        """Blue below, orange above, background colour in between: safe for red-green colour blindness."""
        return LinearSegmentedColormap.from_list("assay_diverging", [self.below, self.middle, self.above])

    @property
    def sequential(self) -> LinearSegmentedColormap:
        """One hue, from almost uncoloured to fully coloured."""
        return LinearSegmentedColormap.from_list("assay_sequential", [self.faint, self.strong])


LIGHT = Theme(
    background="#ffffff",
    ink="#1d232b",
    muted="#5b6673",
    rule="#e3e7ec",
    dot="#5b9bd0",
    warning="#a33b00",
    lines=("#0072b2", "#d55e00", "#009e73", "#b5598f", "#b98500", "#3d4852", "#56b4e9"),
    tones={"plain": "#a9c8e3", "good": "#7fcdb4", "bad": "#f0a07a", "unsure": "#ecd27f"},
    below="#2f7fbf",
    middle="#f7f7f5",
    above="#dd7a1f",
    faint="#eef4fa",
    strong="#155a96",
)

DARK = Theme(
    background="#14181d",
    ink="#e6eaee",
    muted="#9aa5b1",
    rule="#2b323a",
    dot="#4f8fc4",
    warning="#ffab73",
    lines=("#6cb6f0", "#f08a4b", "#3fc79a", "#e39cc8", "#e0b040", "#c3ccd5", "#9b9bff"),
    tones={"plain": "#2f5b80", "good": "#1f6e57", "bad": "#8c4420", "unsure": "#75601a"},
    below="#5aa9e6",
    middle="#262b31",
    above="#f0913a",
    faint="#1e2a36",
    strong="#86c3f5",
)

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.labelpad": 6.0,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.6,
    "legend.borderaxespad": 0.0,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "assay",
    "text.parse_math": False,
    "xtick.labelsize": 8.5,
    "xtick.major.size": 3.0,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 0.0,
}


def select_theme(*, dark: bool) -> Theme:
    """Return the light or the dark theme."""
    return DARK if dark else LIGHT


@contextmanager
def drawing_settings(drawing_theme: Theme) -> Iterator[None]:
    """Draw with Assay's settings, independent of the user's matplotlibrc, and restore those settings afterwards."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        dict.update(
            cast("dict[Any, Any]", mpl.rcParams), _parameters(dark=drawing_theme is DARK)
        )  # validated once, not each time
        yield


@cache
def _parameters(*, dark: bool) -> dict[str, Any]:
    """Return every setting that a drawing depends on."""
    drawing_theme = select_theme(dark=dark)
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        for name in ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"):
            mpl.rcParams[name] = drawing_theme.ink
        mpl.rcParams.update(
            {
                "axes.edgecolor": drawing_theme.muted,
                "xtick.color": drawing_theme.muted,
                "ytick.color": drawing_theme.muted,
            }
        )
        mpl.rcParams.update(
            {"axes.facecolor": "none", "grid.color": drawing_theme.rule, "hatch.color": drawing_theme.muted}
        )
        return {name: value for name, value in dict.items(mpl.rcParams) if not name.startswith("backend")}


def luminance(colour: Colour) -> float:
    """Return the relative luminance of a colour as WCAG defines it, from 0 (black) to 1 (white)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    """Return the contrast ratio of two colours, from 1 to 21."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def readable_on(background: Colour) -> str:
    """Return black or white, whichever contrasts more: on any background the ratio is at least 4.5."""
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, background))
