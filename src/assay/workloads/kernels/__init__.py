"""Kernels in Triton. These modules import it as they are loaded, so they are only ever imported inside functions."""
