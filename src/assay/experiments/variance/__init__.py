"""Two groups of results held against each other: times, spread, picks, and whether devices agree."""
