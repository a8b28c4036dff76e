"""The colours of figures by purpose, on white and on dark: distinguishable for every kind of colour vision.

A shape names its ink. A PNG takes the light colours; in HTML an ink is a CSS variable, so that one drawing suits both.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Ink: TypeAlias = str
"""A name in both palettes."""
Colour: TypeAlias = tuple[float, float, float]
"""Red, green and blue, from 0 to 1."""

LINE_INKS = tuple(f"line-{number}" for number in range(1, 8))

_INKS: Mapping[Ink, tuple[str, str]] = {
    "background": ("#ffffff", "#14181d"),
    "ink": ("#1d232b", "#e6eaee"),
    "muted": ("#5b6673", "#9aa5b1"),
    "rule": ("#e3e7ec", "#2b323a"),
    "dot": ("#5b9bd0", "#4f8fc4"),
    "warning": ("#a33b00", "#ffab73"),
    "line-1": ("#0072b2", "#6cb6f0"),
    "line-2": ("#d55e00", "#f08a4b"),
    "line-3": ("#009e73", "#3fc79a"),
    "line-4": ("#b5598f", "#e39cc8"),
    "line-5": ("#b98500", "#e0b040"),
    "line-6": ("#3d4852", "#c3ccd5"),
    "line-7": ("#56b4e9", "#9b9bff"),
    "tone-plain": ("#a9c8e3", "#2f5b80"),
    "tone-good": ("#7fcdb4", "#1f6e57"),
    "tone-bad": ("#f0a07a", "#8c4420"),
    "tone-unsure": ("#ecd27f", "#75601a"),
    "below": ("#2f7fbf", "#5aa9e6"),
    "middle": ("#f7f7f5", "#262b31"),
    "above": ("#dd7a1f", "#f0913a"),
    "faint": ("#eef4fa", "#1e2a36"),
    "strong": ("#155a96", "#86c3f5"),
}

_BLACK, _WHITE = "#000000", "#ffffff"
_ON: Mapping[tuple[str, str], Ink] = {
    (_BLACK, _BLACK): "black-black",
    (_BLACK, _WHITE): "black-white",
    (_WHITE, _BLACK): "white-black",
    (_WHITE, _WHITE): "white-white",
}
"""The inks of text on a coloured ground, by the colour that is readable on white pages and on dark ones."""

LIGHT: Mapping[Ink, str] = {name: light for name, (light, _) in _INKS.items()} | {ink: on[0] for on, ink in _ON.items()}
DARK: Mapping[Ink, str] = {name: dark for name, (_, dark) in _INKS.items()} | {ink: on[1] for on, ink in _ON.items()}


def css_variables(palette: Mapping[Ink, str]) -> str:
    """Return the declarations of a palette, to be put into a rule."""
    return " ".join(f"--{name}: {colour};" for name, colour in palette.items())


@cache
def parse_colour(text: str) -> Colour:
    """Return the colour that ``#rrggbb`` denotes."""
    red, green, blue = (int(text[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue


def blend(palette: Mapping[Ink, str], ground: Ink, ink: Ink, opacity: float) -> Colour:
    """Return the colour of an ink over a ground, as a screen mixes it."""
    pairs = zip(parse_colour(palette[ground]), parse_colour(palette[ink]), strict=True)
    red, green, blue = (below + (above - below) * opacity for below, above in pairs)
    return red, green, blue


def readable_ink(ground: Ink, ink: Ink | None = None, opacity: float = 1.0) -> Ink:
    """Return the ink of text on a ground, or on an ink over it: black or white, by palette."""
    grounds = (blend(palette, ground, ink or ground, opacity) for palette in (LIGHT, DARK))
    light, dark = (readable_on(colour) for colour in grounds)
    return _ON[light, dark]


def luminance(colour: Colour) -> float:
    """Return the relative luminance of a colour as WCAG defines it, from 0 (black) to 1 (white)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    """Return the contrast ratio of two colours, from 1 to 21."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def readable_on(colour: Colour) -> str:
    """Return black or white, whichever contrasts more: on any background the ratio is at least 4.5."""
    return max(_BLACK, _WHITE, key=lambda ink: contrast(parse_colour(ink), colour))
