"""Record GPU and host sensors in a separate process, and compute statistics of the recording or of a window of it."""
