"""Matplotlib's SVG made fit to stand inside a page: one element, its own ids, the page's font, short numbers."""

from __future__ import annotations

import re

_ROOT_STYLE = "stroke-linejoin: round; stroke-linecap: butt; font-family: system-ui, sans-serif"
_TAG = re.compile(r"<[^<>]*>")
_BETWEEN_TAGS = re.compile(r">\s+<")
_SIZE = re.compile(r' (?:width|height)="[^"]*pt"')
_REFERENCE = re.compile(r'\bhref="#([^"]*)"')
_URL = re.compile(r"url\(#([^)]*)\)")
_ID = re.compile(r' id="([^"]*)"')
_DIGITS = re.compile(r"(\.\d{2})\d+")
_FONT = re.compile(r" ?font-family: [^;\"]*;?")


def element(svg: str, prefix: str) -> str:
    """Return the ``<svg>`` element of a file that matplotlib wrote; ``prefix`` begins each of its ids.

    Only tags are changed: whatever stands between them is text that somebody wrote.
    """
    svg = re.sub(r"<!--.*?-->\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)
    start, end = svg.split(">", 1)
    start = _SIZE.sub("", start).replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    body = _TAG.sub(lambda tag: _tidied(tag.group(), prefix), end)
    body = _BETWEEN_TAGS.sub("><", body).strip()
    return f'{start} style="{_ROOT_STYLE}">{body}'


def _tidied(tag: str, prefix: str) -> str:
    """Give a tag's ids their prefix, and take away what the page decides or nobody sees."""
    if tag.startswith("<g"):
        tag = _ID.sub("", tag)
    tag = _ID.sub(rf' id="{prefix}\1"', tag)
    tag = tag.replace(" xlink:href=", " href=")
    tag = _REFERENCE.sub(rf'href="#{prefix}\1"', tag)
    tag = _URL.sub(rf"url(#{prefix}\1)", tag)
    return _DIGITS.sub(r"\1", _FONT.sub("", tag))
