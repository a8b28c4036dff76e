"""Workloads: what is measured. The registry, the built-in operators, and any function or command of the user's."""
