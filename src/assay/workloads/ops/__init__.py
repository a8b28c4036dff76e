"""Workloads, one operator a file: its NumPy, PyTorch, Triton and Helion implementations."""
