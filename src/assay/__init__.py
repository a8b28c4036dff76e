"""Assay measures GPU programs so that the numbers can be believed."""

from assay._version import __version__

__all__ = ["__version__"]
