"""A fleet: the same command on many nodes, one run folder per node, and a file with the state of each node."""
