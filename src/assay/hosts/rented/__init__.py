"""Machines that cost money by the hour: asked for once, watched, seen gone, written down."""
