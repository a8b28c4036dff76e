"""Slurm: a job runs as a batch job; its results arrive over the shared file system of the nodes."""
