"""One training step as a workload: the models, how a step runs, its costs, and its check."""
