"""What happened meanwhile: a process of its own that reads the sensors, and what can be said of a window of time."""
