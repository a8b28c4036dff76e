"""Benchmarks requested on GitHub: who may request them, what is measured, and what is written back."""
