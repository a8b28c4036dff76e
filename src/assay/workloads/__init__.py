"""Workloads, the programs that are measured: the registry, built-in operators, user functions and commands."""
