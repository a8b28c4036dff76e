"""Experiments: each answers one question with pure functions (step, analyse, page) over records."""
