"""How much GPUs differ: which are slow, hot or power-hungry, where the variance comes from, and which to request."""
