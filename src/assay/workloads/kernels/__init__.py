"""Kernels in Triton and Helion.

These modules import them when loaded, so they are only ever imported inside functions.
"""
