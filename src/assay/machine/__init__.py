"""The machine: CPU cores, memory nodes and GPUs, their sensors and settings, and interference by other processes."""
