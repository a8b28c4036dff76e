"""Which question? Each experiment is three pure functions: step, analyse, page."""
