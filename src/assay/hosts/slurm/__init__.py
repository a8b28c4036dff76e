"""Slurm: a job becomes a batch job; its results arrive over the file system that all nodes share."""
