"""Matplotlib drawings, one module for each kind of figure; the theme and the shared parts are in ``sheet``."""
