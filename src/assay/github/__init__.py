"""Benchmarks asked for on GitHub: who may ask, what was asked, and what is written back."""
