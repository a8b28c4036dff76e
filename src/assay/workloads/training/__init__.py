"""One training step as a workload: the models, how a step is made, what it costs, and whether it is correct."""
