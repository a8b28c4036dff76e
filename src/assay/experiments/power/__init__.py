"""Power: time, energy and power of each GPU in each case, and what they say about the GPUs."""
