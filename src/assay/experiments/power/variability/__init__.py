"""How unequal GPUs are: which are slow, hot or hungry, where the variance comes from, and which to ask for."""
