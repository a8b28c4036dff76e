"""Run folders, records, samples, and the history of measurements."""
