"""The look of figures: colours that stay apart for every kind of colour vision, on white and on dark."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap, to_rgb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.core.page import Tone

Colour: TypeAlias = str | tuple[float, float, float]


@dataclass(frozen=True)
class Theme:
    """Colours by what they are for."""

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
        """Blue below, orange above, paper in between: safe for red-green colour blindness."""
        return LinearSegmentedColormap.from_list("assay_diverging", [self.below, self.middle, self.above])

    @property
    def sequential(self) -> LinearSegmentedColormap:
        """One hue, from hardly to fully coloured."""
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


def theme(*, dark: bool) -> Theme:
    """Return the light or the dark theme."""
    return DARK if dark else LIGHT


@contextmanager
def settings(look: Theme) -> Iterator[None]:
    """Draw with our own settings, whatever the user's matplotlibrc says, and give theirs back afterwards."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        dict.update(cast("dict[Any, Any]", mpl.rcParams), _parameters(dark=look is DARK))  # checked once, not each time
        yield


@cache
def _parameters(*, dark: bool) -> dict[str, Any]:
    """Return every setting that a drawing depends on."""
    drawing_theme = theme(dark=dark)
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
    """Return black or white, whichever stands out more: on any background its contrast is at least 4.5."""
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, background))
