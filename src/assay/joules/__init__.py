"""Measure energy: sensor models, energy of time windows, and energy per call."""
