"""Slurm: an order becomes a batch job, and its results come over the folder that all nodes share."""
