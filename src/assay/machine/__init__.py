"""What is here? GPUs, cores, memory nodes, and what this process may use of them."""
