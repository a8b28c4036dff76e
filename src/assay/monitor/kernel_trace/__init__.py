"""Kernel traces: a profiler's events as rows, with sensor readings and hardware counters added."""
