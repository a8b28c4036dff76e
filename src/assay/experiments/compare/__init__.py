"""Compare results with each other, whichever tool or version wrote them.

    paths ──sources, adapters──> ResultSource: views of one result, each a list of Numbers by name
          ──alignment──────────> the first view that all share; the names in common
          ──verdicts───────────> ratios, verdicts
          ──report─────────────> result and page

``assay contention variance`` compares groups of tuning results kernel by kernel: tunings ──kernels──kernel_report.
"""
