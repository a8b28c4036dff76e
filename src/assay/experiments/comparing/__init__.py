"""Results held against each other, whichever tool or version left them: one comparer for all of Assay.

paths ──sources──> Source: views of one result, each a list of Numbers by their Names
      ──aligning─> the first view that all share; the names in common ──judging──> ratios, verdicts
      ──page─────> tables
"""
