"""What is measured? The registry, one file per workload; any function or command is a workload too."""
