"""Record GPU and host sensors in a process of its own, and compute statistics of the recording or of a window of it."""
