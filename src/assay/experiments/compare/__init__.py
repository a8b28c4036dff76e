"""Compare results with each other, whichever tool or version wrote them.

    paths ──sources──> ResultSource: views of one result, each a list of cells by name
          ──pairing──> the first view that all share; the names in common; ratios, verdicts
          ──report───> result and page

``assay contention variance`` compares groups of tuning results kernel by kernel: tunings ──> variance.
"""
